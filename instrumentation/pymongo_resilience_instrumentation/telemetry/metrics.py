"""Durations, retries, waits and heartbeats, recorded as they happen.

An instrument that would record each operation, beside its duration, is None unless all are asked
for. Durations are seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.metrics import Histogram, Meter
from pymongo.monitoring import ConnectionCheckOutFailedReason

from pymongo_resilience.errors import OperationTimeoutError
from pymongo_resilience.events import BreakerEvent, Event, ReadHedged, RetryScheduled
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.addresses import Address
from pymongo_resilience_instrumentation.calls import Call
from pymongo_resilience_instrumentation.clients.client_registry import Pool
from pymongo_resilience_instrumentation.failures.error_texts import (
    code_name,
    outcome_of,
    qualified_name,
)
from pymongo_resilience_instrumentation.timeouts.bounded_waits import For

from . import semconv

TIMED_OUT = "pymongo_resilience.OperationTimeoutError"
NO_CONTEXT = trace.set_span_in_context(trace.INVALID_SPAN, Context())
"""Async clients' monitors and background tasks have inherited the context of the first operation,
whose trace theirs is not. The SDK takes an empty context for none (opentelemetry-sdk 1.45.2)."""


@lru_cache(semconv.KNOWN_NAMES)
def _duration_attributes(
    operation: str,
    database: str,
    collection: str | None,
    server: Address | None,
    error: str | None,
) -> Mapping[str, Any]:
    attributes: dict[str, Any] = {
        semconv.DB_SYSTEM_NAME: semconv.MONGODB,
        semconv.DB_NAMESPACE: database,
        semconv.DB_OPERATION_NAME: operation,
    }
    if collection is not None:
        attributes[semconv.DB_COLLECTION_NAME] = collection
    if server is not None:
        attributes.update(semconv.address_attributes(server))
    if error is not None:
        attributes[semconv.ERROR_TYPE] = error
    return attributes


def _histogram(
    meter: Meter,
    name: str,
    description: str,
    unit: str = "s",
    boundaries: Sequence[float] = semconv.DURATION_BOUNDARIES,
) -> Histogram:
    return meter.create_histogram(
        name, unit=unit, description=description, explicit_bucket_boundaries_advisory=boundaries
    )


class OperationMetrics:
    """Records what one call did; as a listener, counts the decisions. Thread- and task-safe."""

    def __init__(
        self, meter: Meter, *, by_collection: bool = True, everything: bool = True
    ) -> None:
        self._by_collection = by_collection
        self._duration = _histogram(
            meter,
            semconv.OPERATION_DURATION,
            "Duration of a call of the public API, its retries included.",
        )
        self._retries = meter.create_counter(
            semconv.RETRIES,
            unit="{decision}",
            description="Failed attempts by decision: scheduled, or the rule that declined.",
        )
        self._hedged = meter.create_counter(
            semconv.HEDGED_READS,
            unit="{read}",
            description="Reads sent to a second server as well, by whose answer came first.",
        )
        self._attempts: Histogram | None = None
        if everything:
            self._attempts = _histogram(
                meter,
                semconv.ATTEMPTS,
                "Attempts that one call of the public API took.",
                "{attempt}",
                semconv.ATTEMPT_BOUNDARIES,
            )
        self._selection = _histogram(
            meter,
            semconv.SELECTION_DURATION,
            "Time that an attempt waited for a server, where it had to.",
        )
        self._backoff = _histogram(meter, semconv.BACKOFF, "Delay before an attempt is repeated.")

    def record_waits(self, call: Call) -> None:
        """Record how long a call waited for servers."""
        for wait in call.waits or ():
            if wait.what is For.SERVER:
                outcome = {semconv.OUTCOME: wait.outcome or ""}
                attributes = {semconv.DB_OPERATION_NAME: call.operation} | outcome
                self._selection.record(wait.seconds, attributes)

    def record(self, call: Call, error: BaseException | None, seconds: float) -> None:
        database, collection = call.target
        attributes = _duration_attributes(
            call.operation,
            database or "admin",
            collection if self._by_collection else None,
            call.server if call.selected is None else driver.selection.address(call.selected),
            None if error is None else error_type(error),
        )
        self._duration.record(seconds, attributes)
        if self._attempts is not None:
            attributes = {
                semconv.DB_OPERATION_NAME: call.operation,
                semconv.OUTCOME: outcome_of(call, error),
            }
            self._attempts.record(1 + len(call.reasons), attributes)

    def on_event(self, event: Event, /) -> None:
        if isinstance(event, BreakerEvent):
            return
        if isinstance(event, ReadHedged):
            winner = event.winner or semconv.NEITHER
            self._hedged.add(
                1, {semconv.DB_OPERATION_NAME: event.operation, semconv.HEDGE_WINNER: winner}
            )
            return
        if isinstance(event, RetryScheduled):
            decision = "scheduled"
            self._backoff.record(event.delay, {semconv.REASON: event.reason.value})
        else:
            decision = event.rule.value
        call = calls.current()
        self._retries.add(
            1,
            {
                semconv.DB_OPERATION_NAME: event.operation if call is None else call.operation,
                semconv.REASON: event.reason.value,
                semconv.DECISION: decision,
            },
        )


def error_type(error: BaseException) -> str:
    """The server's name of its code, else the exception's class; one name for missed deadlines."""
    if isinstance(error, OperationTimeoutError):
        return TIMED_OUT
    return code_name(error) or qualified_name(error)


class DriverMetrics:
    """What pools and monitors report. Thread- and task-safe. ``call`` is the one that something is
    measured in, which its exemplars lead to. Durations that make no sense are left out."""

    def __init__(self, meter: Meter, *, everything: bool = True) -> None:
        self._wait_time = self._use_time = None
        if everything:
            self._wait_time = _histogram(
                meter, semconv.CONNECTION_WAIT_TIME, "Time until the pool gave a connection."
            )
            self._use_time = _histogram(
                meter,
                semconv.CONNECTION_USE_TIME,
                "Time from taking a connection to giving it back.",
            )
        self._create_time = _histogram(
            meter,
            semconv.CONNECTION_CREATE_TIME,
            "Time to connect: TCP, TLS, hello and authentication.",
        )
        self._timeouts = meter.create_counter(
            semconv.CONNECTION_TIMEOUTS,
            unit="{timeout}",
            description="Waits for a connection of the pool that ended without one, out of time.",
        )
        self._heartbeat = _histogram(
            meter,
            semconv.HEARTBEAT_DURATION,
            "Duration of a monitor's hello; an awaited one lasts until the server has news.",
        )
        self._heartbeat_failures = meter.create_counter(
            semconv.HEARTBEAT_FAILURES,
            unit="{failure}",
            description="Hellos of a monitor that failed.",
        )
        self.times_uses = everything

    def waited(self, pool: Pool, seconds: float | None, call: Call | None) -> None:
        _record(self._wait_time, seconds, pool.attributes, call)

    def used(self, pool: Pool, seconds: float, call: Call | None) -> None:
        _record(self._use_time, seconds, pool.attributes, call)

    def connected(self, pool: Pool, seconds: float | None, call: Call | None) -> None:
        _record(self._create_time, seconds, pool.attributes, call)

    def refused(self, pool: Pool, reason: str, call: Call | None) -> None:
        """A check-out ended without a connection."""
        if reason == ConnectionCheckOutFailedReason.TIMEOUT:
            self._timeouts.add(1, pool.attributes, NO_CONTEXT if call is None else None)

    def heartbeat(
        self, server: Address, seconds: float | None, *, awaited: bool, failed: bool
    ) -> None:
        attributes = {**semconv.address_attributes(server), semconv.AWAITED: awaited}
        _record(self._heartbeat, seconds, attributes, None)
        if failed:
            self._heartbeat_failures.add(1, attributes, NO_CONTEXT)


def _record(
    histogram: Histogram | None,
    seconds: float | None,
    attributes: dict[str, Any],
    call: Call | None,
) -> None:
    if histogram is not None and seconds is not None and 0 <= seconds < math.inf:
        # None is the current context.
        histogram.record(seconds, attributes, NO_CONTEXT if call is None else None)
