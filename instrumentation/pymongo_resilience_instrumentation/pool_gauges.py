"""Pools and retry budgets of the clients that are alive, read when the SDK collects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.metrics import Observation

from pymongo_resilience_instrumentation import semconv
from pymongo_resilience_instrumentation.pools import IDLE, USED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.metrics import CallbackOptions, CallbackT, Meter

    from pymongo_resilience_instrumentation.clients import ClientState


class PoolGauges:
    """What ``clients`` answers with is shown; each has a number of its own in its pools' names."""

    def __init__(self, meter: Meter, clients: Callable[[], list[ClientState]]) -> None:
        self._clients = clients

        def level(name: str, callback: CallbackT, unit: str, description: str) -> None:
            meter.create_observable_up_down_counter(
                name, callbacks=[callback], unit=unit, description=description
            )

        level(
            semconv.CONNECTION_COUNT,
            self._count,
            "{connection}",
            "Connections of a pool by state.",
        )
        level(
            semconv.CONNECTION_PENDING_REQUESTS,
            self._pending,
            "{request}",
            "Operations that wait for a connection of the pool.",
        )
        level(
            semconv.CONNECTION_MAX,
            self._most,
            "{connection}",
            "How many connections the pool may have (maxPoolSize).",
        )
        level(
            semconv.CONNECTION_IDLE_MAX,
            self._most,
            "{connection}",
            "How many of them may be idle: all, the driver has no limit for these alone.",
        )
        level(
            semconv.CONNECTION_IDLE_MIN,
            self._least,
            "{connection}",
            "How many connections the pool keeps open (minPoolSize).",
        )
        meter.create_observable_gauge(
            semconv.BUDGET_TOKENS,
            callbacks=[self._tokens],
            unit="{token}",
            description="What a client with adaptive retries may still spend on them.",
        )

    def _count(self, _: CallbackOptions) -> Iterator[Observation]:
        for client in self._clients():
            for pool in client.pools():
                states = pool.states()
                for state in (IDLE, USED):
                    yield Observation(
                        states[state], pool.attributes | {semconv.CONNECTION_STATE: state}
                    )

    def _pending(self, _: CallbackOptions) -> Iterator[Observation]:
        for client in self._clients():
            for pool in client.pools():
                yield Observation(len(pool.waiting), pool.attributes)

    def _most(self, _: CallbackOptions) -> Iterator[Observation]:
        for client in self._clients():
            most = client.pool_sizes().most
            if most is not None:
                for pool in client.pools():
                    yield Observation(most, pool.attributes)

    def _least(self, _: CallbackOptions) -> Iterator[Observation]:
        for client in self._clients():
            least = client.pool_sizes().least
            for pool in client.pools():
                yield Observation(least, pool.attributes)

    def _tokens(self, _: CallbackOptions) -> Iterator[Observation]:
        for client in self._clients():
            if client.budget is not None:
                yield Observation(client.budget.tokens, {semconv.CLIENT: str(client.number)})
