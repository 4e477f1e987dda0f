"""Writes to many documents that can match but one: sent as writes to one document.

Those carry a transaction number, and so are repeated and applied once. ``docs/deviations.md`` says
where this cannot hold; there, and where the server refuses it, the call is sent as it is.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pymongo import DeleteMany, UpdateMany
from pymongo.errors import BulkWriteError, ClientBulkWriteException, OperationFailure

from pymongo_resilience.faults import logger
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.clients.by_client import keep
from pymongo_resilience_instrumentation.interception.methods import Method, is_async
from pymongo_resilience_instrumentation.interception.steps import run, run_async
from pymongo_resilience_instrumentation.transactions import sessions

from . import bulk_results
from .collection_kinds import Collections
from .pinned_ids import pins_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.interception.methods import Function
    from pymongo_resilience_instrumentation.interception.steps import Steps
    from pymongo_resilience_instrumentation.runtime import Runtime

TWINS = {"delete_many": "delete_one", "update_many": "update_one"}
BULK = "bulk_write"
MANY: frozenset[type] = frozenset({UpdateMany, DeleteMany})
_UNNUMBERED = frozenset({"local", "config"})
"""Databases of a server's own."""
REFUSALS = frozenset({
    2,  # BadValue
    9,  # FailedToParse
    20,  # IllegalOperation
    61,  # ShardKeyNotFound
    72,  # InvalidOptions: a single document of a time-series collection
})  # fmt: skip
"""What a server refuses a write to one document with, before anything is written."""


class Attempted(NamedTuple):
    """A write that is sent for single documents."""

    call: Call
    collections: Collections
    namespaces: Iterable[str]
    send: Callable[[], Any]
    fall_back: Callable[[BaseException], Callable[[], Any] | None]
    """What to do after the error of an only attempt; None where that is to be raised."""
    settle: Callable[[Any], Any]
    """From the result of the fallback to that of the call."""


def around(
    runtime: Runtime,
    method: Method,
    owner: type,
    name: str,
    *,
    originals: Mapping[str, Any],
    of_clients: dict[int, Collections],
) -> Method:
    """``method``, of the public API, around what sends a write to one document where it can.

    ``originals``: the methods of its class, as they were before. ``of_clients``: what is known of
    collections, by the identity of their client.
    """
    if not (runtime.owns_retries and runtime.config.single_document_writes):
        return method
    if name in TWINS and TWINS[name] in originals:
        twin = originals[TWINS[name]]
    elif name == BULK:
        twin = None
    else:
        return method
    writes = _Writes(runtime, owner, name, twin, of_clients)

    def wrapped(original: Function) -> Function:
        names = _parameters(original)
        if names is None or (twin is not None and not set(names) <= set(_parameters(twin) or ())):
            return method.around(original)
        writes.names = names
        return method.around(_rewritten(writes, original, is_async(original)))

    return Method(wrapped)


def _rewritten(writes: _Writes, original: Function, asynchronous: bool) -> Function:
    drive: Callable[[Steps], Any] = run_async if asynchronous else run

    def method(*given: Any, **kwargs: Any) -> Any:
        write = writes.plan(original, given, kwargs)
        if write is None:
            return original(*given, **kwargs)
        return drive(_steps(write, partial(original, *given, **kwargs)))

    return method


def _steps(write: Attempted, unchanged: Callable[[], Any]) -> Steps:
    if not (yield from write.collections.permit(write.call.client, write.namespaces)):
        return (yield unchanged)
    retries = len(write.call.reasons)
    try:
        return (yield write.send)
    except OperationFailure as error:
        # After another attempt a refusal proves nothing: that one may have been executed.
        instead = write.fall_back(error)
        if instead is None or len(write.call.reasons) != retries:
            raise
    try:
        result = yield instead
    except (BulkWriteError, ClientBulkWriteException) as error:
        result = error
    return write.settle(result)


class _Writes:
    """Those of one method of one class. Thread- and task-safe: nothing changes but a set."""

    names: tuple[str, ...]
    """The method's parameters but ``self``."""

    def __init__(
        self,
        runtime: Runtime,
        owner: type,
        name: str,
        twin: Any,
        of_clients: dict[int, Collections],
    ) -> None:
        self._enabled_flag = runtime.enabled_flag
        self._of_clients = of_clients
        self._twin = twin
        self._required = {"filter", "update"} if name == "update_many" else {"filter"}
        self._asynchronous = owner.__name__.startswith("Async")
        self._of_a_client = not hasattr(owner, "update_many")

    def plan(
        self, original: Function, given: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Attempted | None:
        """None where the call is to be sent as it is."""
        try:
            if self._twin is not None:
                criteria = given[1] if len(given) > 1 else kwargs.get("filter")
                if not pins_id(criteria):
                    return None
            call = calls.current()
            if call is None or not self._enabled_flag.on or len(given) > 1 + len(self.names):
                return None
            if call.made is None or call.made[1][0] is not given[0]:
                return None
            arguments = dict(zip(self.names, given[1:], strict=False))
            if kwargs.keys() & arguments.keys() or not kwargs.keys() <= set(self.names):
                return None
            arguments.update(kwargs)
            if self._twin is not None:
                return self._plan_one(call, original, given[0], arguments)
            return self._plan_bulk(call, original, given[0], arguments)
        except Exception:
            logger.exception("internal error in pymongo-resilience before a write")
            return None

    def _plan_one(
        self, call: Call, original: Function, collection: Any, arguments: dict[str, Any]
    ) -> Attempted | None:
        if arguments.get("collation") is not None or not self._required <= arguments.keys():
            return None
        if not self._may_be_retried(call, collection, arguments, {call.namespace}):
            return None
        namespaces, collections = (call.namespace,), self._collections_of(call.client)
        send = self._twin.__get__(collection, type(collection))

        def fall_back(error: BaseException) -> Callable[[], Any] | None:
            if not _is_refusal(error):
                return None
            return lambda: original(collection, **arguments)

        def settle(result: Any) -> Any:
            collections.refuse(namespaces)
            return result

        return Attempted(
            call, collections, namespaces, lambda: send(**arguments), fall_back, settle
        )

    def _plan_bulk(
        self, call: Call, original: Function, target: Any, arguments: dict[str, Any]
    ) -> Attempted | None:
        name = "models" if self._of_a_client else "requests"
        models = arguments.get(name)
        if type(models) is not list:
            return None
        if MANY.isdisjoint(map(type, models)):
            return None
        many = [index for index, each in enumerate(models) if isinstance(each, tuple(MANY))]
        if not all(_can_be_single(models[index]) for index in many):
            return None
        namespaces = {
            driver.commands.namespace_of_model(models[index])
            if self._of_a_client
            else call.namespace
            for index in many
        }
        if not self._may_be_retried(call, target, arguments, namespaces):
            return None
        collections = self._collections_of(call.client)
        bulk = _Bulk(models, many, ordered=bool(arguments.get("ordered", True)))

        def send(models: Sequence[Any]) -> Any:
            return original(target, **{**arguments, name: models})

        def settle(result: Any) -> Any:
            if not bulk.is_refused_as_well(result):
                collections.refuse(namespaces)
            return bulk.settle(result)

        def fall_back(error: BaseException) -> Callable[[], Any] | None:
            rest = bulk.rest_after(error)
            return None if rest is None else lambda: send(rest)

        return Attempted(
            call, collections, namespaces, lambda: send(bulk.single), fall_back, settle
        )

    def _may_be_retried(
        self, call: Call, target: Any, arguments: Mapping[str, Any], namespaces: set[Any]
    ) -> bool:
        concern = arguments.get("write_concern") or target.write_concern
        if not (call.client.options.retry_writes and concern.acknowledged):
            return False
        if not all(namespaces) or not _UNNUMBERED.isdisjoint(map(_database, namespaces)):
            return False
        session = sessions.session_of_call((), dict(arguments), None, self._asynchronous)
        # What is no session is the driver's to refuse.
        return session is None or not getattr(session, "in_transaction", True)

    def _collections_of(self, client: Any) -> Collections:
        found = self._of_clients.get(id(client))
        return found or keep(self._of_clients, client, Collections())


class _Bulk:
    """One bulk write, in one thread or task."""

    def __init__(self, models: list[Any], many: Sequence[int], *, ordered: bool) -> None:
        self._models = models
        self._many = frozenset(many)
        self._ordered = ordered
        self._sent: Sequence[int] = ()
        self._before: dict[str, Any] = {}
        self.single = [
            driver.commands.for_one_document(each) if index in self._many else each
            for index, each in enumerate(models)
        ]

    def rest_after(self, error: BaseException) -> list[Any] | None:
        """The models to be sent as they are; None where the error is to be raised."""
        details = getattr(error, "details", None)
        if not isinstance(error, (BulkWriteError, ClientBulkWriteException)):
            alone = len(self._models) == 1 and _is_refusal(error)
            self._sent = range(len(self._models))
            return self._models if alone else None
        if not isinstance(details, dict):
            return None
        bulk_results.show_as_many(error, self._many)
        refused = [
            index
            for index, code in bulk_results.failed(details)
            if index in self._many and code in REFUSALS
        ]
        if not refused or details.get("error") is not None:
            return None
        self._sent = range(refused[0], len(self._models)) if self._ordered else refused
        self._before = bulk_results.without_errors(details, refused)
        return [self._models[index] for index in self._sent]

    def is_refused_as_well(self, result: Any) -> bool:
        """Whether the rest failed of what it was refused for: then not of being for one."""
        details = result.details if isinstance(result, BaseException) else {}  # type: ignore[attr-defined]  # of a bulk write
        return any(code in REFUSALS for _, code in bulk_results.failed(details))

    def settle(self, result: Any) -> Any:
        """The result of the whole; raises the error of the whole."""
        if not self._before:
            if isinstance(result, BaseException):
                raise result
            return result
        return bulk_results.whole(self._before, result, self._sent)


def _is_refusal(error: BaseException) -> bool:
    """Whether a reply shows that nothing was written, and why."""
    if not isinstance(error, OperationFailure):
        return False
    details = error.details or {}
    return error.code in REFUSALS and "writeConcernError" not in details and not details.get("n")


def _can_be_single(model: Any) -> bool:
    return (
        type(model) in MANY
        and not driver.commands.has_collation(model)
        and pins_id(driver.commands.filter_of(model))
    )


def _database(namespace: str) -> str:
    return namespace.partition(".")[0]


def _parameters(method: Any) -> tuple[str, ...] | None:
    code = getattr(inspect.unwrap(method), "__code__", None)
    if code is None or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return None
    names: tuple[str, ...] = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    return names
