"""Aggregates that are equivalent to a find: only ``$match``, and perhaps a ``$sort`` by ``_id``.

If the option ``resumable`` is set, they are resumed like a find. Unlike for finds, True does not
refuse the others: an aggregate that cannot be resumed always runs unchanged.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pymongo_resilience.internal_errors import contain_internal_errors
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.driver import aggregates
from pymongo_resilience_instrumentation.interceptor import Function, Send, Sender
from pymongo_resilience_instrumentation.operation import Operation
from pymongo_resilience_instrumentation.public_api.public_methods import PublicMethod
from pymongo_resilience_instrumentation.retries.loop_hooks import LoopHooks
from pymongo_resilience_instrumentation.runtime import Runtime

from . import rules
from .scan import ATTRIBUTE, AsyncFetch, Fetch, Position, kinds, position_if_possible

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pymongo_resilience_instrumentation.driver.attempts import DriverAttempts

METHOD = "aggregate"
ARGUMENTS = frozenset({
    "allowDiskUse", "batchSize", "comment", "let", "maxTimeMS", "pipeline", "session",
})  # fmt: skip
"""The arguments of a resumable aggregate. A hint or a collation may belong to another index."""


def plug_in(runtime: Runtime) -> None:
    """Add a sender to ``aggregate``, around those of other features: a resumable aggregate is not
    hedged.
    """
    if runtime.owns_retries:
        runtime.senders.setdefault(METHOD, []).insert(0, Sender(_sender, by_policy=True))


def _sender(public: PublicMethod) -> Send | None:
    """Return a function that sends an aggregate of a collection; None for those of a database."""
    if public.entry.target is not None:
        return None
    runtime = public.runtime
    start = AsyncStart if public.asynchronous else Start

    def send(operation: Operation, original: Function, *args: Any, **kwargs: Any) -> Any:
        if operation.call.option(runtime.rules, "resumable"):
            found = _found(operation, args, kwargs)
            if found is not None:
                operation.hook_first_loop(start(runtime, operation, found))
        return original(*args, **kwargs)

    return send


def _found(
    operation: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, Any] | None] | None:
    """Return the filter and the sort of an aggregate that can be resumed, or None.

    All others must not be changed at all, so as much as possible is decided here.
    """
    found = rules.as_find(args[1] if len(args) > 1 else kwargs.get("pipeline"))
    if found is None or not kwargs.keys() <= ARGUMENTS:
        return None
    client = operation.client
    # Behind a load balancer, a cursor keeps the connection on which it was created.
    if client.options.load_balanced or rules.problem_of(rules.Find(*found)) is not None:
        return None
    is_plain = found[1] is not None or kinds.of(client).is_plain(*operation.call.target)
    return None if is_plain is False else found


class Start(LoopHooks):
    """The first batch of an aggregate. Belongs to one thread or task."""

    fetch_class: type[Fetch] = Fetch

    def __init__(
        self,
        runtime: Runtime,
        operation: Operation,
        found: tuple[Mapping[str, Any], Mapping[str, Any] | None],
    ) -> None:
        self._state = runtime.clients.of(operation.client)
        self._collection: Any = operation.call.source
        self._found = found
        """The filter and the sort of the pipeline."""
        self._fetch: Fetch | None = None
        self._not_resumed: str | None = None
        """Why the aggregate runs unchanged."""

    def begin(self, attempts: DriverAttempts) -> None:
        attempts.replace_function(partial(self._open, attempts.function))

    def unfinished(self, attempts: DriverAttempts) -> Callable[[], Any] | None:
        return None if self._fetch is None else self._fetch.unfinished(attempts)

    def _open(self, original: Any, session: Any, server: Any, connection: Any, prefers: Any) -> Any:
        send = partial(self._send, (session, server, connection, prefers))
        exchange = aggregates.Exchange(connection, send)
        return self._attach(original(session, server, exchange, prefers))

    def _send(
        self, args: tuple[Any, ...], database: str, command: Any, prefers: Any, codec_options: Any,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        send = self._prepared(database, command, codec_options, read_preference=prefers, **kwargs)
        if send is None or self._fetch is None:
            return args[2].command(database, command, prefers, codec_options, **kwargs)
        return self._fetch.fetch(send, *args).docs[0]

    def _prepared(
        self, database: str, command: Any, codec_options: Any, **arguments: Any
    ) -> Callable[..., Any] | None:
        """Return a function that sends the aggregate as a find is sent, or None to leave it to
        pymongo.
        """
        fetch, self._fetch = self._fetch, None
        with contain_internal_errors("before a resumable aggregate"):
            if fetch is not None and isinstance(kept := fetch.kept_position(), str):
                # An earlier attempt has found out that it cannot be resumed.
                self._not_resumed = kept
            if self._not_resumed is None:
                return self._as_find(database, command, codec_options, arguments)
        return None

    def _as_find(
        self, database: str, command: Any, codec_options: Any, arguments: dict[str, Any]
    ) -> Callable[..., Any] | None:
        query = aggregates.query(database, command, self._found, codec_options, **arguments)
        if query is None:
            return None
        position = position_if_possible(query, rules.Find(**driver.finds.read(query)))
        if not isinstance(position, Position):
            self._not_resumed = position
            return None
        is_async = issubclass(self.fetch_class, AsyncFetch)
        method = aggregates.sender(self._collection, asynchronous=is_async)
        setattr(method.__self__, ATTRIBUTE, position)
        self._fetch = self.fetch_class(position, query, method, self._state)

        def send(_session: Any, _server: Any, connection: Any, prefers: Any) -> Any:
            # The query caches its command, which is built for one connection.
            query.reset()
            return method(connection, query, prefers)

        return send

    def _attach(self, cursor: Any) -> Any:
        """Let the cursor that pymongo has created keep its position."""
        with contain_internal_errors("after a resumable aggregate"):
            position: Any = self._not_resumed
            if self._fetch is not None:
                position = self._fetch.kept_position()
            if position is not None:
                setattr(cursor, ATTRIBUTE, position)
        return cursor


class AsyncStart(Start):
    """As ``Start``, in a task."""

    fetch_class = AsyncFetch

    async def _open(
        self, original: Any, session: Any, server: Any, connection: Any, prefers: Any
    ) -> Any:
        send = partial(self._send, (session, server, connection, prefers))
        exchange = aggregates.Exchange(connection, send)
        return self._attach(await original(session, server, exchange, prefers))

    async def _send(
        self, args: tuple[Any, ...], database: str, command: Any, prefers: Any, codec_options: Any,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        send = self._prepared(database, command, codec_options, read_preference=prefers, **kwargs)
        if send is None or self._fetch is None:
            return await args[2].command(database, command, prefers, codec_options, **kwargs)
        return (await self._fetch.fetch(send, *args)).docs[0]
