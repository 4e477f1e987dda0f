"""One span for each command sent, below the operation span of the call it belongs to."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
import uuid
from typing import TYPE_CHECKING, Any

from bson.binary import Binary
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanKind, Status, StatusCode
from pymongo.errors import PyMongoError

from pymongo_resilience_instrumentation import calls
from pymongo_resilience_instrumentation.addresses import namespace_text

from . import semconv
from .query_text import text_of
from .sampling import Sampling
from .span_errors import end_span, record_error
from .span_hooks import NO_HOOKS
from .suppression import is_suppressed
from .tracing import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.trace import Tracer
    from pymongo.monitoring import CommandFailedEvent, CommandSucceededEvent

    from pymongo_resilience_instrumentation.addresses import Address

    from .span_hooks import SpanHooks
    from .tracing import Tracing

SENSITIVE = frozenset({
    "authenticate", "saslstart", "saslcontinue", "getnonce", "createuser", "updateuser",
    "copydbgetnonce", "copydbsaslstart", "copydb",
})  # fmt: skip
NAMING_A_COLLECTION = frozenset({
    "aggregate", "analyze", "collMod", "collStats", "compact", "convertToCapped", "count", "create",
    "createIndexes", "createSearchIndexes", "delete", "distinct", "drop", "dropIndexes",
    "dropSearchIndex", "find", "findAndModify", "findandmodify", "insert", "killCursors",
    "listIndexes", "mapReduce", "mapreduce", "planCacheClear", "reIndex", "update",
    "updateSearchIndex", "validate",
})  # fmt: skip
"""Others begin with a value: ``usersInfo`` with a user's name."""
InFlight = dict[int, tuple[Span, "int | None"]]
"""By request id: the span, and the cursor that the command uses."""
NOTHING = (None, None)
AGAINST_ADMIN = frozenset({"commitTransaction", "abortTransaction", "bulkWrite"})


@functools.lru_cache(maxsize=semconv.KNOWN_NAMES)
def _attributes(
    command: str, database: str, collection: str | None, address: Address
) -> Mapping[str, Any]:
    """What never changes for the same command on the same collection and server."""
    attributes: dict[str, Any] = {
        semconv.DB_SYSTEM_NAME: semconv.MONGODB,
        semconv.DB_NAMESPACE: database,
        semconv.DB_COMMAND_NAME: command,
        semconv.DB_QUERY_SUMMARY: f"{command} {namespace_text(database, collection)}",
        semconv.NETWORK_TRANSPORT: "unix" if address[1] is None else "tcp",
        **semconv.address_attributes(address),
    }
    if collection is not None:
        attributes[semconv.DB_COLLECTION_NAME] = collection
    return attributes


class CommandSpans:
    """Thread- and task-safe: a span in flight is kept on its call, or for its thread or task."""

    def __init__(self, tracer: Tracer, hooks: SpanHooks = NO_HOOKS) -> None:
        self._tracer = tracer
        self.hooks = hooks
        self._sampling = Sampling(tracer)
        self.without_call: dict[tuple[str, int], InFlight] = {}

    def start(  # noqa: PLR0917 - what an event of the driver's says, without the event
        self,
        command: Mapping[str, Any],
        database: str,
        request_id: int,
        address: Address,
        server_connection_id: Any,
        call: calls.Call | None,
        tracing: Tracing = DEFAULT,
        *,
        name: str | None = None,
    ) -> Span | None:
        """``call``: the one that it is sent in. ``tracing``: of the client that sends it.
        ``name``: where the command itself was emptied, since it carries credentials.

        Answers with the span, None where none is drawn.
        """
        if name is None:
            name = next(iter(command), "")
        if not command or name.lower() in SENSITIVE:
            if call is not None:
                call.withholds = True
            return None
        around = None if call is None else call.span
        if not self._asks_tracer(around):
            return None
        if name in AGAINST_ADMIN:
            database = "admin"
        attributes = _attributes(name, database, _collection(name, command, database), address)
        recording = around is not None and around.is_recording()
        if recording:
            # Likely this one is, too, and to give them all at once takes less.
            attributes = {**attributes, **_of_this_command(command, server_connection_id, call)}
        # A task started inside of a call that has ended still carries its span: not a parent.
        orphan = call is None and calls.inherited() is not None
        span = calls.publish(
            call,
            self._tracer.start_span,
            name,
            context=Context() if orphan else None,
            kind=SpanKind.CLIENT,
            attributes=attributes,
        )
        unfinished = self._of(call).pop(request_id, None)
        if unfinished is not None:
            unfinished[0].end()
        if type(span) is NonRecordingSpan:
            # Nothing has to end it.
            return span
        self._of(call)[request_id] = span, _used_cursor(name, command)
        if span.is_recording():
            if not recording:
                span.set_attributes(_of_this_command(command, server_connection_id, call))
            if tracing.quotes:
                span.set_attribute(
                    semconv.DB_QUERY_TEXT, text_of(command, tracing.query_text_max_length)
                )
        return span

    def _asks_tracer(self, around: Span | None) -> bool:
        """``around``: the operation's span, None where it has none. False where nothing but a span
        that records nothing can come of it, and no hook of the application waits for that."""
        if around is None:
            return not is_suppressed()
        if self.hooks.any:
            return True
        if around is trace.INVALID_SPAN:
            # There is no SDK: what the API gives is the same again.
            return False
        below_undrawn = type(around) is NonRecordingSpan and trace.get_current_span() is around
        return not (below_undrawn and self._sampling.never_below_undrawn())

    def succeed(
        self,
        request_id: int,
        reply: Any,
        call: calls.Call | None,
        event: CommandSucceededEvent | None = None,
    ) -> None:
        """``event``: for the application's hook, where it has one."""
        span, used_cursor = self._taken(request_id, call)
        if span is None:
            return
        try:
            if span.is_recording():
                cursor_id = _open_cursor(reply) or used_cursor
                if cursor_id:
                    span.set_attribute(semconv.CURSOR_ID, cursor_id)
                if self.hooks.response is not None and event is not None:
                    self.hooks.response(span, event)
        finally:
            # A Ctrl-C may come while the hook runs.
            calls.publish(call, span.end)

    def fail(self, event: CommandFailedEvent, tracing: Tracing = DEFAULT) -> None:
        """``tracing``: of the client that sent it."""
        call = calls.current()
        span, _ = self._taken(event.request_id, call)
        if span is None:
            return
        try:
            if span.is_recording():
                _record_failure(span, event, quotes=tracing.quotes)
                if self.hooks.failed is not None:
                    self.hooks.failed(span, event)
        finally:
            calls.publish(call, span.end)

    def leave_connection(self) -> None:
        """The caller sends no more over its connection: without a call, this is what ends a
        command that was interrupted (with the strategy ``driver``, a ``close()`` sends such)."""
        if not self.without_call or calls.current() is not None:
            return
        error = sys.exception()
        for span, _ in self.without_call.pop(_thread_or_task(), {}).values():
            end_span(span, error)

    def reset_after_fork(self) -> None:
        """In a forked child: what is in flight without a call is the parent's, which ends it."""
        self.without_call.clear()

    def _taken(self, request_id: int, call: calls.Call | None) -> tuple[Span | None, int | None]:
        """The span of a command that ends, None for one whose start drew none; and its cursor."""
        if call is not None:
            return call.command_spans.pop(request_id, NOTHING)
        return self.without_call.get(_thread_or_task(), {}).pop(request_id, NOTHING)

    def _of(self, call: calls.Call | None) -> InFlight:
        if call is not None:
            return call.command_spans
        return self.without_call.setdefault(_thread_or_task(), {})


def _thread_or_task() -> tuple[str, int]:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        task = None
    return ("thread", threading.get_ident()) if task is None else ("task", id(task))


def _collection(name: str, command: Mapping[str, Any], database: str) -> str | None:
    if database == "admin":
        return None
    if name != "getMore" and name not in NAMING_A_COLLECTION:
        return None
    value = command.get("collection" if name == "getMore" else name)
    # Plain: a bson.Code is a str that cannot be hashed.
    return str(value) if isinstance(value, str) else None


def _of_this_command(
    command: Mapping[str, Any], server_connection_id: Any, call: calls.Call | None
) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    # The server's word, as the cursor's id further down: what is no number is left out.
    number = _number(server_connection_id)
    if number is not None:
        attributes[semconv.SERVER_CONNECTION_ID] = number
    if call is not None and call.driver_connection_id is not None:
        attributes[semconv.DRIVER_CONNECTION_ID] = call.driver_connection_id
    session_id = _session_id(command.get("lsid"))
    if session_id is not None:
        attributes[semconv.LSID] = session_id
    txn_number = _number(command.get("txnNumber"))
    if txn_number is not None:
        attributes[semconv.TXN_NUMBER] = txn_number
    return attributes


def _used_cursor(name: str, command: Mapping[str, Any]) -> int | None:
    """The one cursor that it reads on or closes; an attribute once it has succeeded."""
    if name == "getMore":
        return _number(command.get("getMore"))
    if name == "killCursors":
        ids = command.get("cursors")
        return _number(ids[0]) if isinstance(ids, list) and len(ids) == 1 else None
    return None


def _number(value: Any) -> int | None:
    """A plain int, of an Int64 too."""
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _session_id(lsid: Any) -> str | None:
    value = lsid.get("id") if hasattr(lsid, "get") else None
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, Binary) and len(value) == 16:  # noqa: PLR2004 - the size of a UUID
        return _uuid_text(bytes(value))
    return None


@functools.lru_cache(maxsize=semconv.KNOWN_NAMES)
def _uuid_text(octets: bytes) -> str:
    """Sessions are used again and again."""
    return str(uuid.UUID(bytes=octets))


def _open_cursor(reply: Any) -> int | None:
    cursor: Any = reply.get("cursor") if hasattr(reply, "get") else None
    return _number(cursor.get("id")) if hasattr(cursor, "get") else None


def _record_failure(span: Span, event: CommandFailedEvent, *, quotes: bool) -> None:
    # The driver reports the failure while it handles the exception, and so do we an interruption.
    error = sys.exc_info()[1]
    is_an_interruption = not isinstance(error, Exception)
    if error is not None and (is_an_interruption or isinstance(error, PyMongoError | OSError)):
        record_error(span, error, quotes=quotes)
    else:
        span.set_status(Status(StatusCode.ERROR))
    code = _number(event.failure.get("code")) if hasattr(event.failure, "get") else None
    if code is not None:
        span.set_attribute(semconv.DB_RESPONSE_STATUS_CODE, str(code))
