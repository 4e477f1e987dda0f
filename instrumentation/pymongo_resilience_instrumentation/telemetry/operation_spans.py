"""Spans: one for each call of the public API, below it one for each command sent."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from opentelemetry import context, trace
from opentelemetry.trace import SpanKind

from pymongo_resilience.rules.events import BreakerEvent, ReadHedged, RetryScheduled
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.addresses import namespace_text
from pymongo_resilience_instrumentation.failures.outcomes import outcome_of
from pymongo_resilience_instrumentation.timeouts.wait_times import For

from . import semconv
from .client_tracing import DIFFERENT, tracing_of
from .listeners import publish_without_events
from .sampling import Sampling
from .sdk.spans import DirectSpans, write
from .span_errors import end_span
from .suppression import is_suppressed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.trace import Span, Tracer

    from pymongo_resilience.rules.events import Event
    from pymongo_resilience_instrumentation.calls import Call

EVENTS = {
    For.SERVER: semconv.EVENT_SELECTION_WAITED,
    For.CONNECTION: semconv.EVENT_CONNECTION_WAITED,
}
SHOWN_WAITS = 32
"""The last of a call. An SDK keeps the last 128 events of a span; decisions need a place, too."""


@functools.lru_cache(maxsize=semconv.KNOWN_NAMES)
def _operation_attributes(
    operation: str, database: str, collection: str | None
) -> tuple[str, Mapping[str, str]]:
    """The span's name, and what never changes for the same operation on the same collection."""
    name = f"{operation} {namespace_text(database, collection)}"
    attributes = {
        semconv.DB_SYSTEM_NAME: semconv.MONGODB,
        semconv.DB_NAMESPACE: database,
        semconv.DB_OPERATION_NAME: operation,
        semconv.DB_OPERATION_SUMMARY: name,
    }
    if collection is not None and database != "admin":
        attributes[semconv.DB_COLLECTION_NAME] = collection
    return name, attributes


class OperationSpans:
    """Starts and ends the operation span; as a listener, writes the decisions on it.

    Thread- and task-safe: all state is on the call.
    """

    def __init__(self, tracer: Tracer, *, leads_from_server: bool = False) -> None:
        """``leads_from_server``: commands carry the context of the span, recorded or not."""
        self._tracer = tracer
        self._sampling = Sampling(tracer)
        self._direct = DirectSpans(tracer)
        self._leads_from_server = leads_from_server

    def start(self, call: Call, transaction: Span | None = None) -> None:
        """``transaction``: the span of the one that it is in."""
        client, sampling = call.client, self._sampling
        if getattr(self._tracer, "sampler", None) is not sampling.sampler:
            calls.publish(call, sampling.look)
        if sampling.never and not self._leads_from_server:
            # The caller's own span stays the current one, for spans that others start inside.
            call.span = trace.INVALID_SPAN
            if not driver.publishing.want_commands(client, False):
                publish_without_events(client, dispensable=True)
            return
        outer = context.get_current()
        if (outer and is_suppressed(outer)) or (DIFFERENT.used and not tracing_of(client).enabled):
            return
        parent = trace.get_current_span(outer) if transaction is None else transaction
        if sampling.never_below and not self._leads_from_server:
            above = parent.get_span_context()
            if above.is_valid and not above.is_remote and not above.trace_flags & 1:
                # As above, of this trace.
                call.span = trace.INVALID_SPAN
                return
        database, collection = call.known_target or call.target
        # A transaction's end has no database of its own.
        name, attributes = _operation_attributes(call.operation, database or "admin", collection)
        span = self._direct.start(name, attributes, parent)
        if span is None:
            span = calls.publish(
                call,
                self._tracer.start_span,
                name,
                outer if transaction is None else trace.set_span_in_context(transaction, outer),
                kind=SpanKind.CLIENT,
                attributes=attributes,
            )
        call.span = span
        invalid = span is trace.INVALID_SPAN
        if not driver.publishing.want_commands(client, not invalid):
            publish_without_events(client, dispensable=True)
        if invalid:
            # Of an API without an SDK, and outside of any trace: nothing has to find it.
            return
        call.outer_context = outer
        context.attach(trace.set_span_in_context(span, outer))

    def end(self, call: Call, error: BaseException | None, ended_ns: int | None = None) -> None:
        """``ended_ns``, here and below: since the epoch; None is now."""
        try:
            # A cancelled task or an interrupted thread leaves a command without its end.
            if call.command_spans:
                for sent in [*call.command_spans.values()]:
                    sent.interrupt(call, error, ended_ns)
                call.command_spans.clear()
        finally:
            if call.span is not None and call.span is not trace.INVALID_SPAN:
                _end_operation(call, call.span, error, ended_ns)

    def describe(self, call: Call, error: BaseException | None) -> None:
        """What is known of a call, onto a span that the driver ends."""
        if call.span is not None and call.span.is_recording():
            call.span.set_attributes(_result_attributes(call, error))
            self.add_waits(call)

    def add_waits(self, call: Call) -> None:
        """Each that had to be, for a server or for a connection, at the time when it was over."""
        if not call.waits or call.span is None or not call.span.is_recording():
            return
        for wait in call.waits[-SHOWN_WAITS:]:
            attributes: dict[str, Any] = {
                semconv.WAITED: wait.seconds,
                semconv.OUTCOME: wait.outcome or "",
            }
            if wait.connecting is not None:
                attributes[semconv.CONNECTING] = wait.connecting
            name = EVENTS[wait.what]
            call.span.add_event(name, attributes, timestamp=wait.ended_ns)

    def on_event(self, event: Event, /) -> None:
        if isinstance(event, BreakerEvent):
            return
        call = calls.current()
        if call is None or call.span is None or not call.span.is_recording():
            return
        if isinstance(event, ReadHedged):
            _show_hedge(call.span, event)
            return
        attributes: dict[str, Any] = {semconv.REASON: event.reason.value}
        if event.server is not None:
            attributes[semconv.SERVER] = event.server
        if isinstance(event, RetryScheduled):
            call.span.add_event(semconv.EVENT_SCHEDULED, attributes | {semconv.DELAY: event.delay})
        else:
            call.span.add_event(
                semconv.EVENT_DECLINED, attributes | {semconv.RULE: event.rule.value}
            )


def _show_hedge(span: Span, event: ReadHedged) -> None:
    attributes: dict[str, Any] = {semconv.SERVER: event.server, semconv.WAITED: event.waited}
    if event.second_server is not None:
        attributes[semconv.HEDGE_SERVER] = event.second_server
    span.add_event(semconv.EVENT_HEDGED, attributes)
    span.set_attribute(semconv.HEDGE_WINNER, event.winner or semconv.NEITHER)


def _end_operation(
    call: Call, span: Span, error: BaseException | None, ended_ns: int | None
) -> None:
    shown = error is not None and not call.withholds and not isinstance(error, GeneratorExit)
    quotes = shown and tracing_of(call.client).quotes
    try:
        if span.is_recording():
            attributes = _result_attributes(call, error)
            if call.only_command is not None:
                attributes = {**call.only_command.settle(call, error), **attributes}
            write(span, attributes)
    finally:
        end_span(span, error, quotes=quotes, ended_ns=ended_ns)


def _result_attributes(call: Call, error: BaseException | None) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        semconv.ATTEMPTS: 1 + len(call.reasons),
        semconv.OUTCOME: outcome_of(call, error),
    }
    if call.reasons:
        attributes[semconv.RETRY_REASONS] = tuple(reason.value for reason in call.reasons)
        attributes[semconv.BACKOFF_TOTAL] = call.backoff
    if call.timeout:
        attributes[semconv.DEADLINE] = call.timeout
    return attributes
