"""One span for each command sent, below the operation span of the call it belongs to.

With ``on_retry`` an operation that sends one command, and succeeds with it, shows on its own span
what the command's would show; with ``never``, every operation does. A command that is part of no
recorded operation has no span.

The application's hooks are called as opentelemetry-instrumentation-pymongo calls them:
``request_hook(span, CommandStartedEvent)``, ``response_hook(span, CommandSucceededEvent)`` and
``failed_hook(span, CommandFailedEvent)``, in the thread or task of the operation.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opentelemetry import context, trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from pymongo.errors import PyMongoError

from pymongo_resilience.internal_errors import logger
from pymongo_resilience.options.config import ALWAYS, NEVER, ON_RETRY
from pymongo_resilience_instrumentation import calls
from pymongo_resilience_instrumentation.failures.safe_texts import qualified_name
from pymongo_resilience_instrumentation.telemetry import semconv
from pymongo_resilience_instrumentation.telemetry.client_tracing import DEFAULT
from pymongo_resilience_instrumentation.telemetry.operation_spans import error_attributes

from . import command_attributes as shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.trace import Span, Tracer
    from pymongo import monitoring

    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.telemetry.client_tracing import Tracing


OTHER = "_OTHER"
"""The name of an unknown error in OpenTelemetry's conventions."""
OK = Status()


Hook = Callable[[Any, Any], object]


class SpanHooks:
    """Thread- and task-safe as far as the hooks are."""

    def __init__(
        self,
        request_hook: Hook | None = None,
        response_hook: Hook | None = None,
        failed_hook: Hook | None = None,
    ) -> None:
        self.request = _harmless("request_hook", request_hook)
        self.response = _harmless("response_hook", response_hook)
        self.failed = _harmless("failed_hook", failed_hook)


def _harmless(name: str, hook: Hook | None) -> Callable[[Span, Any], None] | None:
    """The hook; what it raises is logged once, and never hurts the operation."""
    if hook is None:
        return None
    logged = False

    def call(span: Span, event: object) -> None:
        nonlocal logged
        try:
            calls.reported(hook, span, event)
        except Exception:
            if not logged:
                logged = True
                logger.exception("the %s raised; later errors of it are not logged", name)

    return call


NO_HOOKS = SpanHooks()


class SentCommand:
    """One command, and what its span shows. It belongs to one thread or task."""

    __slots__ = (
        "_spans", "around", "attributes", "cursor", "ended_ns", "name", "span", "started_ns",
        "status",
    )  # fmt: skip

    def __init__(
        self, spans: CommandSpans, event: monitoring.CommandStartedEvent, around: Span
    ) -> None:
        self._spans = spans
        self.name = event.command_name
        self.around = around
        """The operation's span."""
        self.attributes: dict[str, Any] = {}
        self.cursor = shown.used_cursor(self.name, event.command)
        self.span: Span | None = None
        """None where it is only started once the command has ended, if at all."""
        self.started_ns = time.time_ns()
        self.ended_ns = 0
        self.status = OK

    def interrupt(self, call: Call, error: BaseException | None, ended_ns: int | None) -> None:
        """End it with the operation, where the driver did not report its end."""
        attributes, status = ({}, OK) if error is None else _of_error(error)
        self._spans.end(self, call, attributes, status, ended_ns)

    def settle(self, call: Call, error: BaseException | None) -> Mapping[str, Any]:
        """Attributes to copy onto the operation's span when it ends with a single command."""
        return self._spans.settle(self, call, error)


class CommandSpans:
    """Starts and ends the spans. Thread- and task-safe: what is in flight is kept on its call."""

    def __init__(self, tracer: Tracer, hooks: SpanHooks = NO_HOOKS, mode: str = ON_RETRY) -> None:
        """``mode``: of the option ``command_spans``."""
        self._tracer = tracer
        self._hooks = hooks
        self._mode = mode

    def start(
        self, event: monitoring.CommandStartedEvent, call: Call, tracing: Tracing = DEFAULT
    ) -> None:
        """``tracing``: of the client that sends it."""
        name, around = event.command_name, call.span
        if not event.command or name.lower() in shown.SENSITIVE:
            call.withholds = True
            return
        if around is None or not around.is_recording():
            return
        sent = SentCommand(self, event, around)
        earlier = call.command_spans.pop(event.request_id, None)
        if earlier is not None:
            earlier.interrupt(call, None, None)
        call.command_spans[event.request_id] = sent
        sent.attributes = shown.of_command(event, call, tracing)
        if not self._waits(sent, call):
            sent.span = calls.publish(call, self._start, sent)
        if self._hooks.request is not None:
            self._hooks.request(sent.span or around, event)

    def succeed(self, event: monitoring.CommandSucceededEvent, call: Call) -> None:
        sent: SentCommand | None = call.command_spans.pop(event.request_id, None)
        if sent is not None:
            cursor_id = shown.open_cursor(event.reply) or sent.cursor
            attributes = {semconv.CURSOR_ID: cursor_id} if cursor_id else {}
            self._end_reported(sent, call, attributes, OK, self._hooks.response, event)

    def fail(
        self, event: monitoring.CommandFailedEvent, call: Call, tracing: Tracing = DEFAULT
    ) -> None:
        """``tracing``: of the client that sent it."""
        sent: SentCommand | None = call.command_spans.pop(event.request_id, None)
        if sent is not None:
            attributes, status = _of_failure(event, quotes=tracing.quotes)
            self._end_reported(sent, call, attributes, status, self._hooks.failed, event)

    def _end_reported(  # noqa: PLR0917 - the end of a command, and whom it is reported to
        self,
        sent: SentCommand,
        call: Call,
        attributes: Mapping[str, Any],
        status: Status,
        hook: Hook | None,
        event: object,
    ) -> None:
        try:
            if hook is not None:
                hook(sent.span or sent.around, event)
        finally:
            self.end(sent, call, attributes, status)

    def end(
        self,
        sent: SentCommand,
        call: Call,
        attributes: Mapping[str, Any],
        status: Status,
        ended_ns: int | None = None,
    ) -> None:
        """End its span, or keep it for the end of the operation. ``ended_ns``: None is now."""
        sent.attributes |= attributes
        sent.status, sent.ended_ns = status, ended_ns or time.time_ns()
        if sent.span is not None:
            sent.span.set_attributes(attributes)
            calls.publish(call, _end, sent)
        elif self._mode == NEVER:
            call.only_command = sent
        elif sent is not call.only_command:
            calls.publish(call, self._record, sent)
        elif status is not OK:
            call.has_command_spans, call.only_command = True, None
            calls.publish(call, self._record, sent)

    def settle(
        self, sent: SentCommand, call: Call, error: BaseException | None
    ) -> Mapping[str, Any]:
        """See ``SentCommand.settle``."""
        if self._mode == NEVER:
            # The span of an operation has no error.type.
            sent.attributes.pop(semconv.ERROR_TYPE, None)
        elif error is not None or call.reasons:
            self._record(sent)
            return {}
        return sent.attributes

    def _waits(self, sent: SentCommand, call: Call) -> bool:
        """Whether it has no span until it has ended, or until the operation has."""
        if self._mode == ALWAYS or call.has_command_spans:
            return False
        if self._mode == NEVER:
            return True
        first: SentCommand | None = call.only_command
        if first is None and not call.reasons:
            call.only_command = sent
            return True
        call.has_command_spans, call.only_command = True, None
        if first is not None and first.ended_ns:
            calls.publish(call, self._record, first)
        return False

    def _start(self, sent: SentCommand, started_ns: int | None = None) -> Span:
        return self._tracer.start_span(
            sent.name,
            trace.set_span_in_context(sent.around, context.get_current()),
            kind=SpanKind.CLIENT,
            attributes=sent.attributes,
            start_time=started_ns,
        )

    def _record(self, sent: SentCommand) -> None:
        """Make the span of a command that has ended."""
        sent.span = self._start(sent, sent.started_ns)
        _end(sent)


def _end(sent: SentCommand) -> None:
    if sent.span is not None:
        if sent.status is not OK:
            sent.span.set_status(sent.status)
        sent.span.end(sent.ended_ns or None)


def _of_failure(
    event: monitoring.CommandFailedEvent, *, quotes: bool
) -> tuple[dict[str, Any], Status]:
    # The driver reports the failure while it handles the exception, and so do we an interruption.
    error = sys.exception()
    is_an_interruption = not isinstance(error, Exception)
    if error is not None and (is_an_interruption or isinstance(error, PyMongoError | OSError)):
        attributes, status = _of_error(error, quotes=quotes)
    else:
        attributes, status = {semconv.ERROR_TYPE: OTHER}, Status(StatusCode.ERROR)
    code = shown.number(event.failure.get("code")) if hasattr(event.failure, "get") else None
    if code is not None:
        attributes[semconv.DB_RESPONSE_STATUS_CODE] = attributes[semconv.ERROR_TYPE] = str(code)
    return attributes, status


def _of_error(error: BaseException, *, quotes: bool = False) -> tuple[dict[str, Any], Status]:
    attributes = error_attributes(error, quotes=quotes)
    attributes[semconv.ERROR_TYPE] = qualified_name(error)
    return attributes, Status(StatusCode.ERROR, attributes[semconv.EXCEPTION_MESSAGE])
