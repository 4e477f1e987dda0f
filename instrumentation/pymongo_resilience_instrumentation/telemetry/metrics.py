"""Metrics of durations, retries, waits and heartbeats, recorded when they happen.

The duration of every operation is recorded. The other instruments that record every operation are
None unless all metrics are on. Durations are in seconds.
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
    StreamNotice,
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
    """Records what operations did, and counts decisions."""

    def __init__(
        self, meter: Meter, *, by_collection: bool = True, everything: bool = True
    ) -> None:
        self._by_collection = by_collection
        self._duration = _seconds(
            meter, "db.client.operation.duration", "Duration of an operation, including retries."
        )
        self._retries = meter.create_counter(
            "pymongo_resilience.retries", "{decision}", "Decisions about failed attempts."
        )
        self._hedged = meter.create_counter(
            "pymongo_resilience.hedged_reads", "{read}", "Reads also sent to a second server."
        )
        self._stream_steps = meter.create_counter(
            "pymongo_resilience.stream.steps",
            "{step}",
            "What has happened to consumers of change streams.",
        )
        self._expired_requests = meter.create_counter(
            "pymongo_resilience.expired_requests",
            "{request}",
            "Incoming requests that were refused because they had expired.",
        )
        self._selection = _seconds(
            meter,
            "pymongo_resilience.server_selection.duration",
            "Time that an attempt waited for a server.",
        )
        self._backoff = _seconds(meter, "pymongo_resilience.backoff", "Delay before a retry.")
        self._attempts: Histogram | None = None
        if everything:
            self._attempts = meter.create_histogram(
                semconv.ATTEMPTS,
                "{attempt}",
                "Attempts of one operation.",
                explicit_bucket_boundaries_advisory=semconv.ATTEMPT_BOUNDARIES,
            )

    def ends(self, operation: Operation, error: BaseException | None) -> None:
        call = operation.call
        for wait in operation.limits.waits or ():
            if wait.what is WaitKind.SERVER:
                waited = {semconv.DB_OPERATION_NAME: call.name}
                waited[semconv.OUTCOME] = wait.outcome or ""
                self._selection.record(wait.seconds, waited)
        if not call.is_public:
            return
        database, collection = call.given_target or call.target
        # If the operation succeeded, the server of its last command has answered, even if a failed
        # attempt had selected another server.
        server = operation.sent_to if error is None else None
        attributes = _duration_attributes(
            call.name,
            database or "admin",
            collection if self._by_collection else None,
            operation.address if server is None else server,
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
        if isinstance(event, StreamNotice):
            self._stream_steps.add(
                1, {semconv.STREAM: event.stream, semconv.STEP: event.step.value}
            )
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
    """Return the server's name of the error code, or else the exception's class. All missed
    deadlines have the same name.
    """
    if isinstance(error, OperationTimeoutError):
        return TIMED_OUT
    return code_name(error) or qualified_name(error)


class DriverMetrics:
    """The instruments for pools and monitors."""

    def __init__(self, meter: Meter, *, everything: bool = True) -> None:
        self.wait_time = self.use_time = None
        if everything:
            self.wait_time = _seconds(
                meter, "db.client.connection.wait_time", "Time to get a connection from the pool."
            )
            self.use_time = _seconds(
                meter, "db.client.connection.use_time", "Time for which a connection is in use."
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
            "db.client.connection.timeouts", "{timeout}", "Timed-out waits for a connection."
        )
        self.heartbeat = _seconds(
            meter, "pymongo_resilience.heartbeat.duration", "Duration of a monitor's hello."
        )
        self.heartbeat_failures = meter.create_counter(
            "pymongo_resilience.heartbeat.failures", "{failure}", "Failed hellos of a monitor."
        )
