"""One span for each command sent, below the operation span of the call it belongs to.

With ``on_retry`` an operation that sends one command, and succeeds with it, shows on its own span
what the command's would show; with ``never``, every operation does.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanKind, Status, StatusCode
from pymongo.errors import PyMongoError

from pymongo_resilience.options.config import ALWAYS, NEVER, ON_RETRY
from pymongo_resilience_instrumentation import calls
from pymongo_resilience_instrumentation.failures.safe_texts import qualified_name
from pymongo_resilience_instrumentation.telemetry import semconv
from pymongo_resilience_instrumentation.telemetry.client_tracing import DEFAULT
from pymongo_resilience_instrumentation.telemetry.sampling import Sampling
from pymongo_resilience_instrumentation.telemetry.sdk.spans import UNSET, DirectSpans
from pymongo_resilience_instrumentation.telemetry.span_errors import end_span, error_attributes
from pymongo_resilience_instrumentation.telemetry.suppression import is_suppressed

from . import command_attributes as shown
from .query_text import text_of
from .span_hooks import NO_HOOKS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.trace import Span, Tracer
    from pymongo.monitoring import CommandFailedEvent, CommandSucceededEvent

    from pymongo_resilience_instrumentation.addresses import Address
    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.telemetry.client_tracing import Tracing

    from .span_hooks import SpanHooks

OTHER = "_OTHER"
"""As OpenTelemetry's conventions name an error of which nothing is known."""


class SentCommand:
    """One command, and what its span shows. It belongs to one thread or task."""

    __slots__ = (
        "_spans", "attributes", "cursor", "ended_ns", "name", "span", "started_ns", "status",
    )  # fmt: skip

    def __init__(
        self, spans: CommandSpans, name: str, attributes: Mapping[str, Any], cursor: int | None
    ) -> None:
        self._spans = spans
        self.name = name
        self.attributes = attributes
        self.cursor = cursor
        """The one that it uses."""
        self.span: Span | None = None
        """Where a processor, hook or listener may read it before it has ended."""
        self.started_ns = time.time_ns()
        self.ended_ns = 0
        self.status = UNSET

    def add(self, attributes: Mapping[str, Any]) -> None:
        if self.span is None:
            self.attributes = {**self.attributes, **attributes}
        else:
            self.span.set_attributes(attributes)

    def interrupt(self, call: Call, error: BaseException | None, ended_ns: int | None) -> None:
        """The operation has ended without a report of the command's end."""
        self._spans.interrupt(self, call, error, ended_ns)

    def settle(self, call: Call, error: BaseException | None) -> Mapping[str, Any]:
        """Of an operation that ends with this as the only command without a span: what its own span
        shows of it, where the command gets none."""
        return self._spans.settle(self, call, error)


InFlight = dict[int, SentCommand]
"""By request id."""


class CommandSpans:
    """Thread- and task-safe: what is in flight is kept on its call, or for its thread or task."""

    def __init__(self, tracer: Tracer, hooks: SpanHooks = NO_HOOKS, mode: str = ALWAYS) -> None:
        """``mode``: of the option ``command_spans``."""
        self._tracer = tracer
        self.hooks = hooks
        self._mode = mode
        self._sampling = Sampling(tracer)
        self._direct = DirectSpans(tracer)
        self.without_call: dict[tuple[str, int], InFlight] = {}

    def start(  # noqa: PLR0917 - what an event of the driver's says, without the event
        self,
        command: Mapping[str, Any],
        database: str,
        request_id: int,
        address: Address,
        server_connection_id: object,
        call: Call | None,
        tracing: Tracing = DEFAULT,
        *,
        name: str | None = None,
    ) -> Span | None:
        """``call``: the one that it is sent in. ``tracing``: of the client that sends it.
        ``name``: where the command itself was emptied, since it carries credentials.

        Answers with the span that shows it, the operation's where it has none of its own; None
        where nothing does.
        """
        if name is None:
            name = next(iter(command), "")
        if not command or name.lower() in shown.SENSITIVE:
            if call is not None:
                call.withholds = True
            return None
        around = None if call is None else call.span
        if not self._asks_tracer(around):
            return None
        if name in shown.AGAINST_ADMIN:
            database = "admin"
        attributes = shown.of_name(
            name, database, shown.collection_of(name, command, database), address
        )
        sent = SentCommand(self, name, attributes, shown.used_cursor(name, command))
        in_flight = self._of(call)
        unfinished = in_flight.pop(request_id, None)
        if unfinished is not None:
            self.interrupt(unfinished, call, None, None)
        recorded = call is not None and around is not None and around.is_recording()
        if recorded or self._mode != NEVER:
            span = self._shown_by(sent, call, around if recorded else None)
            if sent.span is None and not recorded:
                return span
            in_flight[request_id] = sent
            if recorded or (span is not None and span.is_recording()):
                sent.add(shown.of_this_command(command, server_connection_id, call))
                if tracing.quotes:
                    sent.add(
                        {semconv.DB_QUERY_TEXT: text_of(command, tracing.query_text_max_length)}
                    )
            return span
        return None

    def _shown_by(self, sent: SentCommand, call: Call | None, around: Span | None) -> Span | None:
        """``around``: the operation's span, where it is recorded."""
        if call is not None and around is not None:
            if self._keeps(sent, call, around):
                return around
            if not self.hooks.any and self._direct.suits(around):
                return None
        # A task started inside of a call that has ended still carries its span: not a parent.
        orphan = call is None and calls.inherited() is not None
        span = calls.publish(call, self._live, sent, Context() if orphan else None)
        if type(span) is not NonRecordingSpan:
            # Else nothing has to end it.
            sent.span = span
        return span

    def _live(self, sent: SentCommand, around: Context | None) -> Span:
        return self._tracer.start_span(
            sent.name, context=around, kind=SpanKind.CLIENT, attributes=sent.attributes
        )

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

    def _keeps(self, sent: SentCommand, call: Call, around: Span) -> bool:
        """Whether it has no span until the operation ends."""
        if self._mode != ON_RETRY:
            return self._mode == NEVER
        if call.has_command_spans:
            return False
        first = call.only_command
        if first is None and not call.reasons:
            call.only_command = sent
            return True
        call.has_command_spans = True
        call.only_command = None
        if first is not None and first.ended_ns:
            calls.publish(call, self._record, first, around)
        return False

    def succeed(
        self,
        request_id: int,
        reply: object,
        call: Call | None,
        event: CommandSucceededEvent | None = None,
    ) -> None:
        """``event``: for the application's hook, where it has one."""
        sent = self._taken(request_id, call)
        if sent is None:
            return
        span = sent.span
        cursor_id = shown.open_cursor(reply) or sent.cursor
        if span is None:
            if cursor_id:
                sent.add({semconv.CURSOR_ID: cursor_id})
            self._end(sent, call, self.hooks.response, event)
            return
        try:
            if span.is_recording():
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
        sent = self._taken(event.request_id, call)
        if sent is None:
            return
        span = sent.span
        if span is None:
            _fail(sent, *_of_failure(event, quotes=tracing.quotes))
            self._end(sent, call, self.hooks.failed, event)
            return
        try:
            if span.is_recording():
                attributes, status = _of_failure(event, quotes=tracing.quotes)
                span.set_attributes(attributes)
                span.set_status(status)
                if self.hooks.failed is not None:
                    self.hooks.failed(span, event)
        finally:
            calls.publish(call, span.end)

    def interrupt(
        self,
        sent: SentCommand,
        call: Call | None,
        error: BaseException | None,
        ended_ns: int | None,
    ) -> None:
        """The operation has ended without a report of its end. ``ended_ns``: None is now."""
        if sent.span is not None:
            if error is not None and sent.span.is_recording():
                sent.span.set_attribute(semconv.ERROR_TYPE, qualified_name(error))
            end_span(sent.span, error, ended_ns=ended_ns)
            return
        if error is not None:
            _fail(sent, *_of_error(error))
        self._end(sent, call, ended_ns=ended_ns)

    def _end(
        self,
        sent: SentCommand,
        call: Call | None,
        hook: Any = None,
        event: Any = None,
        ended_ns: int | None = None,
    ) -> None:
        """Of one without a live span; an operation that is recorded is around it."""
        sent.ended_ns = ended_ns or time.time_ns()
        around = None if call is None else call.span
        if call is None or around is None:
            return
        try:
            if hook is not None and event is not None and around.is_recording():
                hook(around, event)
        finally:
            if self._mode == NEVER:
                call.only_command = sent
            elif sent is not call.only_command:
                calls.publish(call, self._record, sent, around)
            elif sent.status is not UNSET:
                call.has_command_spans = True
                call.only_command = None
                calls.publish(call, self._record, sent, around)

    def settle(
        self, sent: SentCommand, call: Call, error: BaseException | None
    ) -> Mapping[str, Any]:
        """See ``SentCommand.settle``."""
        if self._mode == NEVER or (error is None and not call.reasons):
            if sent.status is UNSET:
                return sent.attributes
            # The span of an operation has no error.type.
            return {
                name: each for name, each in sent.attributes.items() if name != semconv.ERROR_TYPE
            }
        if call.span is not None:
            self._record(sent, call.span)
        return {}

    def _record(self, sent: SentCommand, around: Span) -> None:
        """A span that begins and ends as the command did."""
        if self._direct.suits(around):
            self._direct.record(
                sent.name,
                around,
                sent.attributes,
                started_ns=sent.started_ns,
                ended_ns=sent.ended_ns,
                status=sent.status,
            )
            return
        span = self._tracer.start_span(
            sent.name,
            trace.set_span_in_context(around, context.get_current()),
            kind=SpanKind.CLIENT,
            attributes=sent.attributes,
            start_time=sent.started_ns,
        )
        if sent.status is not UNSET:
            span.set_status(sent.status)
        span.end(sent.ended_ns)

    def leave_connection(self) -> None:
        """The caller sends no more over its connection: without a call, this is what ends a
        command that was interrupted (with the strategy ``driver``, a ``close()`` sends such)."""
        if not self.without_call or calls.current() is not None:
            return
        error = sys.exception()
        for sent in self.without_call.pop(_thread_or_task(), {}).values():
            self.interrupt(sent, None, error, None)

    def reset_after_fork(self) -> None:
        """In a forked child: what is in flight without a call is the parent's, which ends it."""
        self.without_call.clear()

    def _taken(self, request_id: int, call: Call | None) -> SentCommand | None:
        """The command that ends, None for one that nothing shows."""
        if call is not None:
            found: SentCommand | None = call.command_spans.pop(request_id, None)
            return found
        return self.without_call.get(_thread_or_task(), {}).pop(request_id, None)

    def _of(self, call: Call | None) -> InFlight:
        if call is not None:
            return call.command_spans
        return self.without_call.setdefault(_thread_or_task(), {})


def _thread_or_task() -> tuple[str, int]:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        task = None
    return ("thread", threading.get_ident()) if task is None else ("task", id(task))


def _fail(sent: SentCommand, attributes: Mapping[str, Any], status: Status) -> None:
    sent.add(attributes)
    sent.status = status


def _of_failure(event: CommandFailedEvent, *, quotes: bool) -> tuple[dict[str, Any], Status]:
    # The driver reports the failure while it handles the exception, and so do we an interruption.
    error = sys.exc_info()[1]
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
