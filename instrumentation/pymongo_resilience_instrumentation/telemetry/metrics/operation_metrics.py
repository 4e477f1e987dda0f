"""Metrics: durations, retries and attempts as they happen; servers and pools when asked."""

from __future__ import annotations

import weakref
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import Observation

from pymongo_resilience.errors import OperationTimeoutError
from pymongo_resilience.events import BreakerEvent, RetryScheduled
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.deferred import pending, run_deferred
from pymongo_resilience_instrumentation.failures.outcomes import outcome_of
from pymongo_resilience_instrumentation.failures.safe_texts import code_name, qualified_name
from pymongo_resilience_instrumentation.telemetry import semconv
from pymongo_resilience_instrumentation.telemetry.sdk.histograms import Series
from pymongo_resilience_instrumentation.timeouts.wait_times import For

from .instruments import Instruments
from .pool_gauges import PoolGauges

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from opentelemetry.metrics import CallbackOptions, Meter

    from pymongo_resilience.events import Event
    from pymongo_resilience_instrumentation.addresses import Address
    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.clients.registry import Clients, ClientState, Server
    from pymongo_resilience_instrumentation.selection.breaker_registry import BreakerRegistry

    from .pool_gauges import Callback

TIMED_OUT = "pymongo_resilience.OperationTimeoutError"


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


class OperationMetrics:
    """Records what one call did; as a listener, counts the decisions. Thread- and task-safe."""

    def __init__(
        self, meter: Meter, *, by_collection: bool = True, without: Collection[str] = ()
    ) -> None:
        """``without``: the names of instruments that are left out, here and below."""
        self._by_collection = by_collection
        self._series: dict[tuple[Any, ...], Series] = {}
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
            database, collection = call.known_target or call.target
            key = (
                call.operation,
                database or "admin",
                collection if self._by_collection else None,
                call.server if call.selected is None else driver.selection.address(call.selected),
                None if error is None else error_type(error),
            )
            series = self._series.get(key)
            if series is None:
                series = Series(self._duration, _duration_attributes(*key))
                if len(self._series) < semconv.KNOWN_NAMES:
                    self._series[key] = series
            series.record(seconds)
        if self._attempts is not None:
            outcome = outcome_of(call, error)
            self._attempts.record(
                1 + len(call.reasons), _attempts_attributes(call.operation, outcome)
            )

    def on_event(self, event: Event, /) -> None:
        if isinstance(event, BreakerEvent):
            return
        call = calls.current()
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


class ServerMetrics:
    """Gauges over the clients that are alive, read when the SDK collects.

    An SDK keeps the first callback of an instrument for good, so there is one of these for each
    provider, and each ``instrument()`` shows its own clients through it.
    """

    def __init__(self, meter: Meter, without: Collection[str] = ()) -> None:
        self._shown: Clients | None = None
        self._breakers: BreakerRegistry | None = None
        self._without = without
        self._to_make: dict[str, Callable[[], object]] = {}

        def gauge(name: str, callback: Callback, unit: str, description: str) -> None:
            self._to_make[name] = lambda: meter.create_observable_gauge(
                name,
                callbacks=[self._unless_left_out(name, callback)],
                unit=unit,
                description=description,
            )

        def level(name: str, callback: Callback, unit: str, description: str) -> None:
            self._to_make[name] = lambda: meter.create_observable_up_down_counter(
                name,
                callbacks=[self._unless_left_out(name, callback)],
                unit=unit,
                description=description,
            )

        gauge(semconv.SERVER_RTT, self._rtt, "s", "Weighted average of a server's round-trip time.")
        gauge(
            semconv.SERVER_RTT_MIN,
            self._rtt_min,
            "s",
            "Minimum of a server's last ten round-trip times.",
        )
        gauge(
            semconv.SERVER_STATE,
            self._state,
            "{server}",  # for "1" exporters to Prometheus end the name in "_ratio"
            "1 for the current type of a server and of its topology.",
        )
        gauge(
            semconv.BREAKER_STATE,
            self._breaker_state,
            "{server}",  # as above
            "1 for the current state of a server's circuit breaker.",
        )
        PoolGauges(gauge, level, self._alive)
        self._make()

    def _make(self) -> None:
        for name in [each for each in self._to_make if each not in self._without]:
            self._to_make.pop(name)()

    def _unless_left_out(self, name: str, callback: Callback) -> Callback:
        # One that an earlier instrument() asked for cannot be taken back.
        def observe(options: CallbackOptions) -> Iterable[Observation]:
            return () if name in self._without else callback(options)

        return observe

    def _rtt(self, _: CallbackOptions) -> Iterable[Observation]:
        return self._of_each_server(lambda server: server.average_rtt)

    def _rtt_min(self, _: CallbackOptions) -> Iterable[Observation]:
        return self._of_each_server(lambda server: server.minimum_rtt)

    def _state(self, _: CallbackOptions) -> Iterable[Observation]:
        for client in self._clients():
            for address, server in client.servers().items():
                yield Observation(
                    1,
                    semconv.address_attributes(address)
                    | {
                        semconv.SERVER_TYPE: server.type,
                        semconv.TOPOLOGY_TYPE: client.topology_type,
                    },
                )

    def _breaker_state(self, _: CallbackOptions) -> Iterable[Observation]:
        for client in () if self._breakers is None else self._breakers.all():
            for address, breaker in client.snapshots().items():
                yield Observation(
                    1, semconv.address_attributes(address) | {semconv.STATE: breaker.state.value}
                )

    def _of_each_server(self, value: Callable[[Server], float | None]) -> Iterator[Observation]:
        for client in self._clients():
            for address, server in client.servers().items():
                seconds = value(server)
                if seconds is not None:
                    yield Observation(seconds, semconv.address_attributes(address))

    def show(
        self,
        clients: Clients | None,
        breakers: BreakerRegistry | None = None,
        without: Collection[str] = (),
    ) -> None:
        """From now on these; None shows nothing."""
        self._shown = clients
        self._breakers = breakers
        if clients is not None:
            self._without = without
            self._make()

    def _alive(self) -> list[ClientState]:
        if pending:
            run_deferred()
        return [] if self._shown is None else self._shown.alive()

    def _clients(self) -> list[ClientState]:
        clients = self._alive()
        for client in clients:
            client.refresh()
        return clients


_of_global_provider: list[ServerMetrics] = []
_by_provider: weakref.WeakKeyDictionary[Any, ServerMetrics] = weakref.WeakKeyDictionary()


def server_metrics(meter: Meter, provider: Any, without: Collection[str]) -> ServerMetrics:
    """The gauges of a provider, made once; ``provider`` is None for the global one."""
    if provider is None:
        if not _of_global_provider:
            _of_global_provider.append(ServerMetrics(meter, without))
        return _of_global_provider[0]
    if provider not in _by_provider:
        _by_provider[provider] = ServerMetrics(meter, without)
    return _by_provider[provider]
