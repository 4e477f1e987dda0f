"""One span for each operation of the public API."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from opentelemetry import context, trace
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from pymongo_resilience.events import BreakerEvent, Event, ReadHedged, RetryEvent, RetryScheduled
from pymongo_resilience.internal_errors import foreign
from pymongo_resilience.redaction import stack
from pymongo_resilience_instrumentation import driver, in_progress
from pymongo_resilience_instrumentation.addresses import namespace_text
from pymongo_resilience_instrumentation.failures.error_texts import (
    outcome_of,
    qualified_name,
    safe_message,
)
from pymongo_resilience_instrumentation.operation import Operation
from pymongo_resilience_instrumentation.timeouts.bounded_waits import For

from . import semconv
from .client_tracing import tracing_of

EVENTS = {
    For.SERVER: "server_selection.waited",
    For.CONNECTION: "connection.waited",
}
SHOWN_WAITS = 32
"""The last of an operation. An SDK keeps the last 128 events of a span; decisions need a place,
too."""


@functools.lru_cache(maxsize=semconv.KNOWN_NAMES)
def _operation_attributes(
    operation: str, database: str, collection: str | None
) -> tuple[str, Mapping[str, str]]:
    """The span's name, and what never changes for the same operation on the same collection."""
    name = f"{operation} {namespace_text(database, collection)}"
    attributes = {semconv.DB_OPERATION_NAME: operation, "db.operation.summary": name}
    return name, semconv.namespace_attributes(database, collection) | attributes


class OperationSpans:
    """Starts and ends the operation span; as a listener, writes the decisions on it. Thread- and
    task-safe: all state is on the operation."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def start(self, operation: Operation, transaction: Any = None) -> None:
        """``transaction``: the one that it is in."""
        if not (tracing_of(operation.client).enabled and is_instrumentation_enabled()):
            return
        outer = parent = context.get_current()
        if transaction is not None:
            parent = trace.set_span_in_context(transaction.span, outer)
        database, collection = operation.target
        # A transaction's end has no database of its own.
        name, attributes = _operation_attributes(operation.name, database or "admin", collection)
        # What samplers and processors send meanwhile is no part of the operation.
        start = self._tracer.start_span
        operation.span = in_progress.publish(
            operation, start, name, parent, SpanKind.CLIENT, attributes
        )
        operation.outer_context = outer
        context.attach(trace.set_span_in_context(operation.span, outer))

    def end(
        self, operation: Operation, error: BaseException | None, ended_ns: int | None = None
    ) -> None:
        """``ended_ns``: since the epoch; None is now."""
        span = operation.span
        if span is None or not span.is_recording():
            return
        try:
            # A cancelled task or an interrupted thread leaves a command without its end.
            while operation.command_spans:
                operation.command_spans.popitem()[1].end(operation, error, ended_ns)
            for wait in (operation.history.waits or ())[-SHOWN_WAITS:]:
                waited = {
                    semconv.WAITED: wait.seconds,
                    semconv.OUTCOME: wait.outcome,
                    "pymongo_resilience.connecting": wait.connecting,
                }
                _add_event(span, EVENTS[wait.what], waited, wait.ended_ns)
            attributes = _retry_attributes(operation)
            attributes[semconv.OUTCOME] = outcome_of(operation, error)
            if operation.history.only_command is not None:
                attributes |= operation.history.only_command.settle(operation, error)
            span.set_attributes(attributes)
        finally:
            # A coroutine that is closed unfinished has left its client.
            hidden = (
                error is None or operation.history.withholds or isinstance(error, GeneratorExit)
            )
            quotes = not hidden and tracing_of(operation.client).quotes
            end_span(span, error, quotes, ended_ns)

    def on_event(self, event: Event, /) -> None:
        operation = in_progress.current()
        if operation is None or isinstance(event, BreakerEvent):
            return
        span = operation.span
        if span is None:
            if not driver.clients.records_spans(operation.client):
                return
            # The driver's own span of the operation is current around all attempts, and ends
            # before the operation: what is known is added as it happens.
            span = trace.get_current_span()
            span.set_attributes(_retry_attributes(operation))
        if isinstance(event, ReadHedged):
            attributes = {
                semconv.SERVER: event.server,
                semconv.WAITED: event.waited,
                "pymongo_resilience.hedge.server": event.second_server,
            }
            _add_event(span, "read.hedged", attributes)
            span.set_attribute(semconv.HEDGE_WINNER, event.winner or semconv.NEITHER)
        else:
            add_decision(span, event)


def add_decision(span: Span, event: RetryEvent) -> None:
    attributes: dict[str, Any] = {
        semconv.REASON: event.reason.value,
        semconv.SERVER: event.server,
    }
    if isinstance(event, RetryScheduled):
        attributes["pymongo_resilience.delay"] = event.delay
        _add_event(span, semconv.EVENT_SCHEDULED, attributes)
    else:
        attributes["pymongo_resilience.rule"] = event.rule.value
        _add_event(span, semconv.EVENT_DECLINED, attributes)


def _add_event(span: Span, name: str, attributes: dict[str, Any], at: int | None = None) -> None:
    known = {key: value for key, value in attributes.items() if value is not None}
    span.add_event(name, known, at)


def _retry_attributes(operation: Operation) -> dict[str, Any]:
    attributes: dict[str, Any] = {semconv.ATTEMPTS: 1}
    if operation.history.reasons:
        attributes[semconv.ATTEMPTS] = operation.history.attempts
        reasons = tuple(reason.value for reason in operation.history.reasons)
        attributes["pymongo_resilience.retry.reasons"] = reasons
        attributes["pymongo_resilience.backoff.total"] = operation.history.backoff
    if operation.timeout:
        attributes["pymongo_resilience.deadline"] = operation.timeout
    return attributes


def error_attributes(error: BaseException, quotes: bool = False) -> dict[str, Any]:
    """The exception as attributes: class, code and code name, and the frames without their source.
    ``quotes``: with the server's text, which carries document values."""
    message = safe_message(error)
    with suppress(Exception):  # str(error) may raise
        message = str(error) if quotes else message
    return {
        semconv.EXCEPTION_TYPE: qualified_name(error),
        semconv.EXCEPTION_MESSAGE: message,
        "exception.stacktrace": "".join([*stack(error), message]),
    }


def end_span(
    span: Span, error: BaseException | None, quotes: bool = False, ended_ns: int | None = None
) -> None:
    """With what it ended with; ended in any case, whatever the error is like."""
    try:
        if error is not None and span.is_recording():
            attributes = error_attributes(error, quotes)
            span.set_attributes(attributes)
            span.set_status(Status(StatusCode.ERROR, attributes[semconv.EXCEPTION_MESSAGE]))
    finally:
        foreign(span.end, ended_ns)
