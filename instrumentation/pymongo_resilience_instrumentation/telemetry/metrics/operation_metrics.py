"""Durations, retries and attempts, recorded as they happen."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pymongo_resilience.errors import OperationTimeoutError
from pymongo_resilience.rules.events import BreakerEvent, ReadHedged, RetryScheduled
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.failures.outcomes import outcome_of
from pymongo_resilience_instrumentation.failures.safe_texts import code_name, qualified_name
from pymongo_resilience_instrumentation.telemetry import semconv
from pymongo_resilience_instrumentation.timeouts.wait_times import For

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from opentelemetry.metrics import Counter, Histogram, Meter

    from pymongo_resilience.rules.events import Event
    from pymongo_resilience_instrumentation.addresses import Address
    from pymongo_resilience_instrumentation.calls import Call

TIMED_OUT = "pymongo_resilience.OperationTimeoutError"


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


@lru_cache(semconv.KNOWN_NAMES)
def _attempts_attributes(operation: str, outcome: str) -> Mapping[str, Any]:
    return {semconv.DB_OPERATION_NAME: operation, semconv.OUTCOME: outcome}


class Instruments:
    """Makes them; immutable, so thread- and task-safe."""

    def __init__(self, meter: Meter, without: Collection[str]) -> None:
        self._meter = meter
        self._without = without

    def histogram(
        self,
        name: str,
        description: str,
        unit: str = "s",
        boundaries: Sequence[float] = semconv.DURATION_BOUNDARIES,
    ) -> Histogram | None:
        if name in self._without:
            return None
        return self._meter.create_histogram(
            name,
            unit=unit,
            description=description,
            explicit_bucket_boundaries_advisory=boundaries,
        )

    def counter(self, name: str, description: str, unit: str) -> Counter | None:
        if name in self._without:
            return None
        return self._meter.create_counter(name, unit=unit, description=description)


class OperationMetrics:
    """Records what one call did; as a listener, counts the decisions. Thread- and task-safe."""

    def __init__(
        self, meter: Meter, *, by_collection: bool = True, without: Collection[str] = ()
    ) -> None:
        """``without``: the names of instruments that are left out, here and below."""
        self._by_collection = by_collection
        made = Instruments(meter, without)
        self._duration = made.histogram(
            semconv.OPERATION_DURATION,
            "Duration of a call of the public API, its retries included.",
        )
        self._retries = made.counter(
            semconv.RETRIES,
            "Failed attempts by decision: scheduled, or the rule that declined.",
            "{decision}",
        )
        self._hedged = made.counter(
            semconv.HEDGED_READS,
            "Reads sent to a second server as well, by whose answer came first.",
            "{read}",
        )
        self._attempts = made.histogram(
            semconv.ATTEMPTS,
            "Attempts that one call of the public API took.",
            "{attempt}",
            semconv.ATTEMPT_BOUNDARIES,
        )
        self._selection = made.histogram(
            semconv.SELECTION_DURATION,
            "Time that an attempt waited for a server, where it had to.",
        )
        self._backoff = made.histogram(semconv.BACKOFF, "Delay before an attempt is repeated.")

    def record_waits(self, call: Call) -> None:
        """Of a call that had to wait for a server."""
        for wait in call.waits or ():
            if wait.what is For.SERVER and self._selection is not None:
                outcome = {semconv.OUTCOME: wait.outcome or ""}
                attributes = {semconv.DB_OPERATION_NAME: call.operation} | outcome
                self._selection.record(wait.seconds, attributes)

    def record(self, call: Call, error: BaseException | None, seconds: float) -> None:
        if self._duration is not None:
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
            outcome = outcome_of(call, error)
            self._attempts.record(
                1 + len(call.reasons), _attempts_attributes(call.operation, outcome)
            )

    def on_event(self, event: Event, /) -> None:
        if isinstance(event, BreakerEvent):
            return
        call = calls.current()
        if isinstance(event, ReadHedged):
            if self._hedged is not None:
                winner = event.winner or semconv.NEITHER
                self._hedged.add(
                    1,
                    {semconv.DB_OPERATION_NAME: event.operation, semconv.HEDGE_WINNER: winner},
                )
            return
        if isinstance(event, RetryScheduled):
            decision = "scheduled"
            if self._backoff is not None:
                self._backoff.record(event.delay, {semconv.REASON: event.reason.value})
        else:
            decision = event.rule.value
        if self._retries is None:
            return
        self._retries.add(
            1,
            {
                semconv.DB_OPERATION_NAME: event.operation if call is None else call.operation,
                semconv.REASON: event.reason.value,
                semconv.DECISION: decision,
            },
        )


def error_type(error: BaseException) -> str:
    """The server's name of its code where there is one, else the exception's class; one name for
    every missed deadline."""
    if isinstance(error, OperationTimeoutError):
        return TIMED_OUT
    return code_name(error) or qualified_name(error)
