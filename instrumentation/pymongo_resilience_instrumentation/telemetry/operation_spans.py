"""Spans of operations of the public API."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry import context, trace
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.trace import Span, Tracer

from pymongo_resilience.events import (
    BreakerEvent,
    Event,
    ReadHedged,
    RequestExpired,
    RetryScheduled,
    StreamNotice,
)
from pymongo_resilience.internal_errors import wrap_foreign_error
from pymongo_resilience.timeout_source import TimeoutSource
from pymongo_resilience_instrumentation import driver, in_progress
from pymongo_resilience_instrumentation.addresses import namespace_text
from pymongo_resilience_instrumentation.failures.error_texts import OK, outcome_of
from pymongo_resilience_instrumentation.operation import Operation
from pymongo_resilience_instrumentation.timeouts.bounded_waits import Wait, WaitKind

from . import semconv
from .client_tracing import tracing_of
from .observers import Observer
from .span_state import SpanState
from .transaction_spans import parent_of

EVENTS = {
    WaitKind.SERVER: "server_selection.waited",
    WaitKind.CONNECTION: "connection.waited",
}
SHOWN_WAITS = 32
"""Maximum number of waits on a span, the last ones. An SDK keeps the last 128 events of a span, and
decisions need room as well.
"""


@functools.lru_cache(maxsize=semconv.KNOWN_NAMES)
def _operation_attributes(
    operation: str, database: str, collection: str | None
) -> tuple[str, Mapping[str, str]]:
    """Return the span's name and the attributes that are constant for an operation and a
    collection.
    """
    name = f"{operation} {namespace_text(database, collection)}"
    attributes = {semconv.DB_OPERATION_NAME: operation, "db.operation.summary": name}
    return name, semconv.namespace_attributes(database, collection) | attributes


class OperationSpans(Observer):
    """Starts and ends the operation's span, and adds the decisions to it."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def begins(self, operation: Operation) -> None:
        """Start the operation's span.

        The operation is the current one, and its deadline is active.
        """
        call = operation.call
        if not (tracing_of(call.client).enabled and is_instrumentation_enabled()):
            return
        outer = parent = context.get_current()
        transaction = operation.transaction_span
        if transaction is None and call.session is not None:
            transaction = parent_of(call.session)
        if transaction is not None:
            parent = trace.set_span_in_context(transaction.span, outer)
        database, collection = call.given_target or call.target
        # The end of a transaction belongs to no database; it is sent to ``admin``.
        name, attributes = _operation_attributes(call.name, database or "admin", collection)
        # Commands of samplers and span processors are not part of the operation.
        span = in_progress.call_foreign_wrapped(
            self._tracer.start_span, name, parent, semconv.CLIENT, attributes
        )
        try:
            operation.shown = SpanState(span, records=span.is_recording())
        except BaseException:
            in_progress.call_foreign_wrapped(span.end)
            raise
        operation.outer_context = outer
        context.attach(trace.set_span_in_context(span, outer))

    def ends(self, operation: Operation, error: BaseException | None) -> None:
        state = operation.shown
        if state is None or not state.records:
            return
        span = state.span
        if not span.is_recording():
            return
        try:
            # If a task is canceled or a thread is interrupted, pymongo reports no end of its
            # command.
            for sent in list(state.commands.values()) if state.commands else ():
                sent.end(state, operation.ended_ns, error)
            if operation.limits.waits:
                _add_waits(span, operation.limits.waits)
            outcome, attributes = operation.outcome, {}
            if (only := state.only_command) is not None:
                retried = bool(outcome.attempts) and outcome.is_retried
                attributes = only.settle(error, retried=retried)
                # A context that outlives the operation must not keep the command's documents.
                state.only_command = None
            _add_retries(attributes, operation)
            is_plain = error is None and not outcome.attempts
            attributes[semconv.OUTCOME] = OK if is_plain else outcome_of(operation, error)
            span.set_attributes(attributes)
        finally:
            if error is None:
                wrap_foreign_error(span.end, operation.ended_ns)
            else:
                # If the coroutine was closed, the call no longer contains the client.
                hidden = state.withholds or isinstance(error, GeneratorExit)
                quotes = not hidden and tracing_of(operation.client).quotes
                semconv.end_span(span, error, quotes, operation.ended_ns)

    def on_event(self, event: Event, /) -> None:
        operation = in_progress.current()
        if operation is None or isinstance(event, BreakerEvent | RequestExpired | StreamNotice):
            return
        span = operation.span
        if span is None:
            if not driver.clients.records_spans(operation.client):
                return
            # pymongo's own span is the current one during all attempts, and ends before the
            # operation. So add the attributes now, with each event.
            span = trace.get_current_span()
            span.set_attributes(_add_retries({}, operation))
        if isinstance(event, ReadHedged):
            attributes: dict[str, Any] = {
                semconv.SERVER: event.server,
                semconv.WAITED: event.waited,
                "pymongo_resilience.hedge.server": event.second_server,
            }
            _add_event(span, "read.hedged", attributes)
            span.set_attribute(semconv.HEDGE_WINNER, event.winner or semconv.NEITHER)
        else:
            attributes = {semconv.REASON: event.reason.value, semconv.SERVER: event.server}
            if isinstance(event, RetryScheduled):
                attributes["pymongo_resilience.delay"] = event.delay
                _add_event(span, semconv.EVENT_SCHEDULED, attributes)
            else:
                attributes["pymongo_resilience.rule"] = event.rule.value
                _add_event(span, semconv.EVENT_DECLINED, attributes)


def _add_waits(span: Span, waits: Sequence[Wait]) -> None:
    for wait in waits[-SHOWN_WAITS:]:
        waited = {
            semconv.WAITED: wait.seconds,
            semconv.OUTCOME: wait.outcome,
            "pymongo_resilience.connecting": wait.connecting,
        }
        _add_event(span, EVENTS[wait.what], waited, wait.ended_ns)


def _add_event(span: Span, name: str, attributes: dict[str, Any], at: int | None = None) -> None:
    known = {key: value for key, value in attributes.items() if value is not None}
    span.add_event(name, known, at)


def _add_retries(attributes: dict[str, Any], operation: Operation) -> dict[str, Any]:
    """Add what the library did for an operation to the attributes of its span."""
    outcome, limits = operation.outcome, operation.limits
    attributes[semconv.ATTEMPTS] = 1
    if outcome.attempts and (reasons := outcome.retry_reasons):
        attributes[semconv.ATTEMPTS] = outcome.number_of_attempts
        attributes["pymongo_resilience.retry.reasons"] = tuple(each.value for each in reasons)
        attributes["pymongo_resilience.backoff.total"] = outcome.backoff
    if timeout := limits.timeout or limits.timeout_of_pymongo:
        attributes["pymongo_resilience.deadline"] = timeout
    if limits.without_request is not None:
        attributes["pymongo_resilience.deadline.source"] = TimeoutSource.REQUEST.value
    return attributes
