"""Pools and retry budgets of the clients that are alive, read when the SDK collects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.metrics import Observation

from pymongo_resilience_instrumentation.telemetry import semconv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from opentelemetry.metrics import CallbackOptions

    from pymongo_resilience_instrumentation.clients.registry import ClientState

    Callback = Callable[[CallbackOptions], Iterable[Observation]]
    Make = Callable[[str, Callback, str, str], None]


class PoolGauges:
    """What ``clients`` answers with is shown; each has a number of its own in its pools' names."""

    def __init__(self, gauge: Make, level: Make, clients: Callable[[], list[ClientState]]) -> None:
        """``gauge`` and ``level`` make an instrument of a name, callback, unit and description."""
        self._clients = clients
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
        gauge(
            semconv.BUDGET_TOKENS,
            self._tokens,
            "{token}",
            "What the retries of a client may still spend.",
        )

    def _count(self, _: CallbackOptions) -> Iterator[Observation]:
        for client in self._clients():
            for pool, states in client.connections():
                for state, count in states.items():
                    yield Observation(count, pool.attributes | {semconv.CONNECTION_STATE: state})

    def _pending(self, _: CallbackOptions) -> Iterator[Observation]:
        for client in self._clients():
            for pool, count in client.waiting():
                yield Observation(count, pool.attributes)

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
