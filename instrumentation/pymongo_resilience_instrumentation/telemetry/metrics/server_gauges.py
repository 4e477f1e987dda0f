"""Servers, circuit breakers, pools and retry budgets of living clients, read on collection."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.metrics import Observation

from pymongo_resilience.internal_errors import shielded
from pymongo_resilience_instrumentation.deferred import pending, run_deferred
from pymongo_resilience_instrumentation.telemetry import semconv

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from opentelemetry.metrics import CallbackOptions, Meter

    from pymongo_resilience_instrumentation.clients.client_registry import Clients, ClientState
    from pymongo_resilience_instrumentation.selection.breaker_registry import (
        BreakerRegistry,
        ClientBreakers,
    )


class ServerGauges:
    """An SDK keeps the first callback of an instrument for good, so there is one of these for each
    provider, and each ``instrument()`` shows its own clients through it."""

    def __init__(self, meter: Meter, without: Collection[str] = ()) -> None:
        """``without``, here and below: the names of instruments that are left out."""
        self._meter = meter
        self._shown: Clients | None = None
        self.breakers: BreakerRegistry | None = None
        self._without = without
        self._to_make = list(ROWS)
        self._make()

    def show(
        self,
        clients: Clients | None,
        breakers: BreakerRegistry | None = None,
        without: Collection[str] = (),
    ) -> None:
        """From now on these; None shows nothing."""
        self._shown = clients
        self.breakers = breakers
        if clients is not None:
            self._without = without
            self._make()

    def _make(self) -> None:
        for row in [each for each in self._to_make if each.name not in self._without]:
            self._to_make.remove(row)
            make: Callable[..., object] = self._meter.create_observable_gauge
            if row.adds_up:
                make = self._meter.create_observable_up_down_counter
            observe = partial(self._observe, row)
            make(row.name, callbacks=[observe], unit=row.unit, description=row.description)

    def _observe(self, row: Row, _: CallbackOptions) -> Iterable[Observation]:
        # One that an earlier instrument() asked for cannot be taken back.
        if row.name in self._without:
            return
        if pending:
            run_deferred()
        for client in self._clients(row):
            observed: list[Observation] = []
            with shielded(f"while observing {row.name} of one client"):
                observed.extend(row.observe(client))
            yield from observed

    def _clients(self, row: Row) -> Iterable[Any]:
        if row.observe is _breaker_state:
            return () if self.breakers is None else self.breakers.all()
        return () if self._shown is None else self._shown.alive()


_of_global_provider: list[ServerGauges] = []
_by_provider: weakref.WeakKeyDictionary[Any, ServerGauges] = weakref.WeakKeyDictionary()


def server_gauges(meter: Meter, provider: object, without: Collection[str]) -> ServerGauges:
    """The gauges of a provider, made once; ``provider`` is None for the global one."""
    if provider is None:
        if not _of_global_provider:
            _of_global_provider.append(ServerGauges(meter, without))
        return _of_global_provider[0]
    if provider not in _by_provider:
        _by_provider[provider] = ServerGauges(meter, without)
    return _by_provider[provider]


def _rtt(client: ClientState, name: str) -> Iterator[Observation]:
    client.refresh()
    for address, server in client.servers().items():
        seconds = getattr(server, name)
        if seconds is not None:
            yield Observation(seconds, semconv.address_attributes(address))


def _state(client: ClientState) -> Iterator[Observation]:
    client.refresh()
    for address, server in client.servers().items():
        kinds = {semconv.SERVER_TYPE: server.type, semconv.TOPOLOGY_TYPE: client.topology_type}
        yield Observation(1, semconv.address_attributes(address) | kinds)


def _breaker_state(client: ClientBreakers) -> Iterator[Observation]:
    for address, breaker in client.snapshots().items():
        state = {semconv.STATE: breaker.state.value}
        yield Observation(1, semconv.address_attributes(address) | state)


def _connections(client: ClientState) -> Iterator[Observation]:
    for pool, states in client.connections():
        for state, count in states.items():
            yield Observation(count, pool.attributes | {semconv.CONNECTION_STATE: state})


def _pending(client: ClientState) -> Iterator[Observation]:
    for pool, count in client.waiting():
        yield Observation(count, pool.attributes)


def _size(client: ClientState, name: str) -> Iterator[Observation]:
    size = getattr(client.pool_sizes(), name)
    for pool in client.pools() if size is not None else ():
        yield Observation(size, pool.attributes)


def _tokens(client: ClientState) -> Iterator[Observation]:
    if client.budget is not None:
        yield Observation(client.budget.tokens, {semconv.CLIENT: str(client.number)})


class Row(NamedTuple):
    """One instrument; ``adds_up``: over pools. Immutable."""

    name: str
    observe: Callable[[Any], Iterator[Observation]]
    unit: str
    description: str
    adds_up: bool = False


ROWS = (
    Row(
        semconv.SERVER_RTT,
        partial(_rtt, name="average_rtt"),
        "s",
        "Weighted average of a server's round-trip time.",
    ),
    Row(
        semconv.SERVER_RTT_MIN,
        partial(_rtt, name="minimum_rtt"),
        "s",
        "Minimum of a server's last ten round-trip times.",
    ),
    # For the unit "1" exporters to Prometheus end the name in "_ratio".
    Row(
        semconv.SERVER_STATE,
        _state,
        "{server}",
        "1 for the current type of a server and of its topology.",
    ),
    Row(
        semconv.BREAKER_STATE,
        _breaker_state,
        "{server}",
        "1 for the current state of a server's circuit breaker.",
    ),
    Row(
        semconv.CONNECTION_COUNT,
        _connections,
        "{connection}",
        "Connections of a pool by state.",
        adds_up=True,
    ),
    Row(
        semconv.CONNECTION_PENDING_REQUESTS,
        _pending,
        "{request}",
        "Operations that wait for a connection of the pool.",
        adds_up=True,
    ),
    Row(
        semconv.CONNECTION_MAX,
        partial(_size, name="most"),
        "{connection}",
        "How many connections the pool may have (maxPoolSize).",
        adds_up=True,
    ),
    Row(
        semconv.CONNECTION_IDLE_MAX,
        partial(_size, name="most"),
        "{connection}",
        "How many of them may be idle: all, since the driver has no separate limit.",
        adds_up=True,
    ),
    Row(
        semconv.CONNECTION_IDLE_MIN,
        partial(_size, name="least"),
        "{connection}",
        "How many connections the pool keeps open (minPoolSize).",
        adds_up=True,
    ),
    Row(
        semconv.BUDGET_TOKENS,
        _tokens,
        "{token}",
        "Tokens left in a client's retry budget.",
    ),
)
