"""One span for each command sent, below the operation span of the call it belongs to.

With ``on_retry`` an operation that sends one command, and succeeds with it, shows on its own span
what the command's would show; with ``never``, every operation does. A command that is part of no
recorded operation has no span.

The application's hooks are called as opentelemetry-instrumentation-pymongo calls them:
``request_hook(span, CommandStartedEvent)``, ``response_hook(span, CommandSucceededEvent)`` and
``failed_hook(span, CommandFailedEvent)``, in the thread or task of the operation.

Where it is asked for, a comment on commands leads from the server's profiler and slow-query log to
the trace. It carries the context of the operation span, which all attempts of an operation share: a
repeated write is the same to the last byte, and the server recognises it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from opentelemetry import context, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pymongo import monitoring
from pymongo.errors import PyMongoError
from pymongo.monitoring import CommandListener

from pymongo_resilience.config import NEVER, ON_RETRY
from pymongo_resilience.enabled_flag import EnabledFlag
from pymongo_resilience.internal_errors import logger, shielded
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.calls import Call
from pymongo_resilience_instrumentation.failures.error_texts import qualified_name
from pymongo_resilience_instrumentation.interceptor import Function, Wrapper

from . import semconv
from .client_tracing import DEFAULT, Tracing
from .command_attributes import SENSITIVE, command_attributes, cursor_of, number, text_of
from .listeners import OurListener, guarded
from .operation_spans import error_attributes

OTHER = "_OTHER"
"""The name of an unknown error in OpenTelemetry's conventions."""
Hook = Callable[[Any, Any], object]


@dataclass(frozen=True)
class CommandSpans:
    """Whether and how commands are shown. As thread- and task-safe as the hooks."""

    tracer: Tracer
    mode: str = ON_RETRY
    """Of the option ``command_spans``."""
    hooks: Mapping[str, Hook] = field(default_factory=dict)
    _raised: set[str] = field(default_factory=set)

    def call_hook(self, name: str, span: Span, event: object) -> None:
        """What it raises is logged once, and never hurts the operation."""
        if name in self.hooks:
            try:
                calls.reported(self.hooks[name], span, event)
            except Exception:
                if name not in self._raised:
                    self._raised.add(name)
                    logger.exception("the %s raised; later errors of it are not logged", name)


@dataclass(slots=True, eq=False)
class SentCommand:
    """One command, and what its span shows. It belongs to one thread or task."""

    _spans: CommandSpans
    event: monitoring.CommandStartedEvent
    around: Span
    """The operation's."""
    result: dict[str, Any]
    """Attributes beside those of what was sent."""
    span: Span | None = None
    """None where it is only started once the command has ended, if at all."""
    started_ns: int = field(default_factory=time.time_ns)
    ended_ns: int = 0

    def start_span(self) -> Span:
        self.span = self._spans.tracer.start_span(
            self.event.command_name,
            trace.set_span_in_context(self.around, context.get_current()),
            kind=SpanKind.CLIENT,
            attributes=command_attributes(self.event, self.result),
            start_time=self.started_ns,
        )
        return self.span

    def end(self, call: Call, ended_ns: int | None = None) -> None:
        """End its span, or keep it for the end of the operation. ``ended_ns``: None is now."""
        self.ended_ns = ended_ns or time.time_ns()
        if self.span is None:
            if self._spans.mode == NEVER:
                call.only_command = self
                return
            if self is call.only_command:
                if semconv.ERROR_TYPE not in self.result:
                    return
                call.has_command_spans, call.only_command = True, None
        calls.publish(call, self.record)

    def record(self) -> None:
        """End its span, which is made now where there is none."""
        span = self.span
        if span is None:
            span = self.start_span()
        else:
            span.set_attributes(self.result)
        if semconv.ERROR_TYPE in self.result:
            message = self.result.get(semconv.EXCEPTION_MESSAGE)
            span.set_status(Status(StatusCode.ERROR, message))
        span.end(self.ended_ns)

    def interrupt(self, call: Call, error: BaseException | None, ended_ns: int | None) -> None:
        """End it with the operation, where the driver did not report its end."""
        if error is not None:
            self.result |= _error_of(error)
        self.end(call, ended_ns)

    def settle(self, call: Call, error: BaseException | None) -> Mapping[str, Any]:
        """Attributes to copy onto the operation's span when it ends with a single command."""
        if self._spans.mode == NEVER:
            # The span of an operation has no error.type.
            self.result.pop(semconv.ERROR_TYPE, None)
        elif error is not None or call.reasons:
            self.record()
            return {}
        return command_attributes(self.event, self.result)


@dataclass(eq=False, repr=False)
class Commands(OurListener, CommandListener):
    """Notes which server a call's command went to, and records its span."""

    spans: CommandSpans | None
    tracing: Tracing = DEFAULT
    """The client's."""
    recorded_elsewhere: Callable[[], bool] | None = None
    """Asked for each command, where another tracer was active when the client was made."""

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        call = calls.found()
        if call is None or call.ended or not self.enabled_flag.on:
            return
        call.server = event.connection_id
        if self.spans is not None and call.span is not None and call.span.is_recording():
            self._started(event, call, self.spans, call.span)

    @guarded
    def _started(
        self, event: monitoring.CommandStartedEvent, call: Call, spans: CommandSpans, around: Span
    ) -> None:
        if not event.command or event.command_name.lower() in SENSITIVE:
            call.withholds = True
            return
        if self.recorded_elsewhere is not None and self.recorded_elsewhere():
            return
        earlier = call.command_spans.pop(event.request_id, None)
        if earlier is not None:
            earlier.interrupt(call, None, None)
        result: dict[str, Any] = {}
        if call.driver_connection_id is not None:
            result["db.mongodb.driver_connection_id"] = call.driver_connection_id
        sent = SentCommand(spans, event, around, result)
        call.command_spans[event.request_id] = sent
        if self.tracing.query_text_max_length:
            # Now: later, the application may have changed its documents.
            result["db.query.text"] = text_of(event.command, self.tracing.query_text_max_length)
        first: SentCommand | None = call.only_command
        if spans.mode == ON_RETRY and not (call.has_command_spans or first or call.reasons):
            call.only_command = sent
        elif spans.mode != NEVER:
            call.has_command_spans, call.only_command = True, None
            if first is not None and first.ended_ns:
                calls.publish(call, first.record)
            calls.publish(call, sent.start_span)
        if spans.hooks:
            spans.call_hook("request_hook", sent.span or around, event)

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        call = calls.found()
        if call is not None and call.command_spans and not call.ended:
            self._ended(event, call, "response_hook")

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        call = calls.found()
        if call is not None and call.command_spans and not call.ended:
            self._ended(event, call, "failed_hook")

    @guarded
    def _ended(self, event: Any, call: Call, hook: str) -> None:
        sent: SentCommand | None = call.command_spans.pop(event.request_id, None)
        if sent is None or self.spans is None:
            return
        if isinstance(event, monitoring.CommandFailedEvent):
            sent.result |= _failure_of(event, self.tracing.quotes)
        elif cursor_id := cursor_of(sent.event, event.reply):
            sent.result["db.mongodb.cursor_id"] = cursor_id
        try:
            if self.spans.hooks:
                self.spans.call_hook(hook, sent.span or sent.around, event)
        finally:
            sent.end(call)


def _failure_of(event: monitoring.CommandFailedEvent, quotes: bool) -> dict[str, Any]:
    # The driver reports the failure while it handles the exception, and so do we an interruption.
    error, attributes = sys.exception(), {semconv.ERROR_TYPE: OTHER}
    ours = isinstance(error, Exception) and not isinstance(error, PyMongoError | OSError)
    if error is not None and not ours:
        attributes = _error_of(error, quotes)
    code = number(event.failure.get("code")) if hasattr(event.failure, "get") else None
    if code is not None:
        attributes["db.response.status_code"] = attributes[semconv.ERROR_TYPE] = str(code)
    return attributes


def _error_of(error: BaseException, quotes: bool = False) -> dict[str, Any]:
    return error_attributes(error, quotes) | {semconv.ERROR_TYPE: qualified_name(error)}


COMMENTED = frozenset({
    "abortTransaction", "aggregate", "bulkWrite", "collMod", "commitTransaction", "count", "create",
    "createIndexes", "delete", "distinct", "drop", "dropDatabase", "dropIndexes", "find",
    "findAndModify", "getMore", "insert", "killCursors", "listCollections", "listDatabases",
    "listIndexes", "renameCollection", "update",
})  # fmt: skip
"""What shows up in the profiler. mongod takes a comment with any command (generic arguments)."""
FIRST_WIRE_VERSION = 9
"""MongoDB 4.4: before, a server refuses an argument that it does not know."""
KEY = "traceparent"
PROPAGATOR = TraceContextTextMapPropagator()


def comment(enabled_flag: EnabledFlag) -> Wrapper:
    """A connection's method that each command passes on its way, with the command."""

    def wrapper(original: Function, connection: Any, args: Any, kwargs: Any) -> Any:
        with shielded("before a command was sent"):
            if enabled_flag.on:
                _add(connection, *driver.commands.passing_command(args, kwargs))
        return original(*args, **kwargs)

    return wrapper


def _add(connection: Any, command: Any, client: Any) -> None:
    call = calls.current()
    # Without a client it is a handshake, an authentication or a monitor's; the document of a
    # runCommand is the application's own: what is put there would stay there.
    if call is None or call.span is None or client is None or call.operation == "runCommand":
        return
    if next(iter(command)) not in COMMENTED or command.get("comment") is not None:
        return
    carrier: dict[str, str] = {}
    PROPAGATOR.inject(carrier, trace.set_span_in_context(call.span))
    if KEY in carrier and connection.max_wire_version >= FIRST_WIRE_VERSION:
        command["comment"] = {KEY: carrier[KEY]}
