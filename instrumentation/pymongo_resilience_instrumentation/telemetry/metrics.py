"""Durations, retries, waits and heartbeats, recorded as they happen.

An instrument that would record each operation, beside its duration, is None unless all are asked
for. Durations are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from opentelemetry.metrics import Histogram, Meter

from pymongo_resilience.errors import OperationTimeoutError
from pymongo_resilience.events import (
    BreakerEvent,
    Event,
    ReadHedged,
    RequestExpired,
    RetryScheduled,
)
from pymongo_resilience_instrumentation import in_progress
from pymongo_resilience_instrumentation.addresses import Address
from pymongo_resilience_instrumentation.failures.error_texts import (
    code_name,
    outcome_of,
    qualified_name,
)
from pymongo_resilience_instrumentation.operation import Operation
from pymongo_resilience_instrumentation.timeouts.bounded_waits import WaitKind

from . import semconv
from .observers import Observer

TIMED_OUT = "pymongo_resilience.OperationTimeoutError"


@lru_cache(semconv.KNOWN_NAMES)
def _duration_attributes(
    operation: str,
    database: str,
    collection: str | None,
    server: Address | None,
    error: str | None,
) -> Mapping[str, Any]:
    attributes = semconv.namespace_attributes(database, collection)
    attributes[semconv.DB_OPERATION_NAME] = operation
    if server is not None:
        attributes.update(semconv.address_attributes(server))
    if error is not None:
        attributes[semconv.ERROR_TYPE] = error
    return attributes


def _seconds(meter: Meter, name: str, description: str) -> Histogram:
    return meter.create_histogram(
        name, "s", description, explicit_bucket_boundaries_advisory=semconv.DURATION_BOUNDARIES
    )


class OperationMetrics(Observer):
    """Records what one operation did, and counts the decisions."""

    def __init__(
        self, meter: Meter, *, by_collection: bool = True, everything: bool = True
    ) -> None:
        self._by_collection = by_collection
        self._duration = _seconds(
            meter, "db.client.operation.duration", "Duration of an operation, its retries included."
        )
        self._retries = meter.create_counter(
            "pymongo_resilience.retries", "{decision}", "Failed attempts, by what was decided."
        )
        self._hedged = meter.create_counter(
            "pymongo_resilience.hedged_reads", "{read}", "Reads sent to a second server as well."
        )
        self._expired_requests = meter.create_counter(
            "pymongo_resilience.expired_requests",
            "{request}",
            "Incoming requests that were refused because they had expired.",
        )
        self._selection = _seconds(
            meter, "pymongo_resilience.server_selection.duration", "Waits of attempts for a server."
        )
        self._backoff = _seconds(
            meter, "pymongo_resilience.backoff", "Delay before an attempt is repeated."
        )
        self._attempts: Histogram | None = None
        if everything:
            self._attempts = meter.create_histogram(
                semconv.ATTEMPTS,
                "{attempt}",
                "Attempts that one operation took.",
                explicit_bucket_boundaries_advisory=semconv.ATTEMPT_BOUNDARIES,
            )

    def ends(self, operation: Operation, error: BaseException | None) -> None:
        for wait in operation.limits.waits or ():
            if wait.what is WaitKind.SERVER:
                waited = {semconv.DB_OPERATION_NAME: operation.name}
                waited[semconv.OUTCOME] = wait.outcome or ""
                self._selection.record(wait.seconds, waited)
        if not operation.call.is_public:
            return
        database, collection = operation.call.target
        attributes = _duration_attributes(
            operation.name,
            database or "admin",
            collection if self._by_collection else None,
            operation.address,
            None if error is None else error_type(error),
        )
        self._duration.record(operation.seconds, attributes)
        if self._attempts is not None:
            attributes = {
                semconv.DB_OPERATION_NAME: operation.name,
                semconv.OUTCOME: outcome_of(operation, error),
            }
            self._attempts.record(operation.outcome.number_of_attempts, attributes)

    def on_event(self, event: Event, /) -> None:
        if isinstance(event, BreakerEvent):
            return
        if isinstance(event, RequestExpired):
            self._expired_requests.add(1, {semconv.RECEIVED_BY: event.received_by})
            return
        operation = in_progress.current()
        attributes = {semconv.DB_OPERATION_NAME: operation.name if operation else event.operation}
        if isinstance(event, ReadHedged):
            attributes[semconv.HEDGE_WINNER] = event.winner or semconv.NEITHER
            self._hedged.add(1, attributes)
            return
        attributes[semconv.REASON] = event.reason.value
        if isinstance(event, RetryScheduled):
            attributes[semconv.DECISION] = "scheduled"
            self._backoff.record(event.delay, {semconv.REASON: event.reason.value})
        else:
            attributes[semconv.DECISION] = event.rule.value
        self._retries.add(1, attributes)


def error_type(error: BaseException) -> str:
    """The server's name of its code, else the exception's class; one name for missed deadlines."""
    if isinstance(error, OperationTimeoutError):
        return TIMED_OUT
    return code_name(error) or qualified_name(error)


class DriverMetrics:
    """The instruments of what pools and monitors report."""

    def __init__(self, meter: Meter, *, everything: bool = True) -> None:
        self.wait_time = self.use_time = None
        if everything:
            self.wait_time = _seconds(
                meter, "db.client.connection.wait_time", "Time until the pool gave a connection."
            )
            self.use_time = _seconds(
                meter, "db.client.connection.use_time", "Time that a connection was taken."
            )
        self.create_time = _seconds(
            meter, "db.client.connection.create_time", "TCP, TLS, hello and authentication."
        )
        self.rejected_handshakes = meter.create_counter(
            "pymongo_resilience.rejected_handshakes",
            "{handshake}",
            "New connections that an overloaded server rejected.",
        )
        self.timeouts = meter.create_counter(
            "db.client.connection.timeouts", "{timeout}", "Waits for a connection, out of time."
        )
        self.heartbeat = _seconds(
            meter, "pymongo_resilience.heartbeat.duration", "Duration of a monitor's hello."
        )
        self.heartbeat_failures = meter.create_counter(
            "pymongo_resilience.heartbeat.failures", "{failure}", "Failed hellos of a monitor."
        )
