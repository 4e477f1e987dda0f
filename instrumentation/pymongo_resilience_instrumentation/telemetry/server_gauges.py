"""Gauges of servers, circuit breakers, pools and retry budgets of living clients, read on
collection.

If a client cannot be read, for example because it is only partly created, that is logged, and the
other clients are still shown.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

from pymongo_resilience.internal_errors import contain_internal_errors
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.clients.client_registry import Clients, ClientState
from pymongo_resilience_instrumentation.deferred import pending, run_deferred

from . import semconv

Observe = Callable[[Any], Iterator[Observation]]


class ServerGauges:
    """The gauges of one provider.

    An SDK keeps the first callback of an instrument forever. So there is one object for each
    provider, and each ``instrument()`` shows its clients through it.
    """

    def __init__(self, meter: Meter) -> None:
        self.show(None)
        for name, unit, description, observe in ROWS:
            callbacks = [partial(self._observe, name, observe)]
            if unit in ADDED_UP:
                meter.create_observable_up_down_counter(name, callbacks, unit, description)
            else:
                meter.create_observable_gauge(name, callbacks, unit, description)

    def show(self, clients: Clients | None, *, pools: bool = True) -> None:
        """Show these clients from now on.

        Args:
            clients: The clients; None shows none.
            pools: Also show the gauges that need private names of pymongo's pools.
        """
        self._clients, self._pools = clients, pools

    def _observe(self, name: str, observe: Observe, _: CallbackOptions) -> Iterable[Observation]:
        if pending:
            run_deferred()
        shown: Iterable[Any] = ()
        if self._clients is not None and (self._pools or observe not in OF_POOLS):
            shown = self._clients.alive()
        for client in shown:
            observed: list[Observation] = []
            with contain_internal_errors(f"while observing {name} of one client"):
                observed.extend(observe(client))
            yield from observed


_by_provider: weakref.WeakKeyDictionary[Any, ServerGauges] = weakref.WeakKeyDictionary()


def server_gauges(meter: Meter, provider: MeterProvider | None) -> ServerGauges:
    """Return the gauges of a provider, created once. ``provider`` is None for the global one."""
    key = ServerGauges if provider is None else provider
    if key not in _by_provider:
        _by_provider[key] = ServerGauges(meter)
    return _by_provider[key]


def _rtt(client: ClientState, name: str = "round_trip_time") -> Iterator[Observation]:
    for address, server in client.servers()[1].items():
        known = server is not None and server.is_server_type_known
        # Before the second check the driver's minimum is 0.
        if known and getattr(server, name):
            yield Observation(getattr(server, name), semconv.address_attributes(address))


def _state(client: ClientState) -> Iterator[Observation]:
    topology, servers = client.servers()
    for address, server in servers.items():
        kind = "Unknown" if server is None else server.server_type_name
        kinds = {
            "pymongo_resilience.server.type": kind,
            "pymongo_resilience.topology.type": topology,
        }
        yield Observation(1, semconv.address_attributes(address) | kinds)


def _breaker_state(client: ClientState) -> Iterator[Observation]:
    breakers = client.limits.breakers
    for address, breaker in ({} if breakers is None else breakers.snapshots()).items():
        state = {"pymongo_resilience.state": breaker.state.value}
        yield Observation(1, semconv.address_attributes(address) | state)


def _connections(client: ClientState) -> Iterator[Observation]:
    for address, pool in client.pools().items():
        # A connection that is being created counts as used.
        idle, used, _ = driver.connections.counts(pool)
        for state, count in (("idle", idle), ("used", used)):
            attributes = client.attributes(address) | {"db.client.connection.state": state}
            yield Observation(count, attributes)


def _pending(client: ClientState) -> Iterator[Observation]:
    for address, pool in client.pools().items():
        _, used, operations = driver.connections.counts(pool)
        yield Observation(max(0, operations - used), client.attributes(address))


def _size(client: ClientState, *, largest: bool = True) -> Iterator[Observation]:
    for address, pool in client.pools().items():
        size = pool.opts.max_pool_size if largest else pool.opts.min_pool_size
        # A maximum of 0 or None means that there is no limit.
        if size or not largest:
            yield Observation(size, client.attributes(address))


def _tokens(client: ClientState) -> Iterator[Observation]:
    tokens = client.limits.budget.tokens
    if tokens is not None:
        yield Observation(tokens, {"pymongo_resilience.client": str(client.number)})


def _readiness(client: ClientState) -> Iterator[Observation]:
    latest = None if client.readiness is None else client.readiness.latest
    if latest is None:
        return
    attributes = {"pymongo_resilience.client": str(client.number)}
    for kind, ready in (("write", latest.ready_to_write), ("read", latest.ready_to_read)):
        yield Observation(int(ready), attributes | {semconv.READY_TO: kind})


ADDED_UP = ("{connection}", "{request}")
"""Units of values that are summed over pools."""
OF_POOLS = (_connections, _pending)
ROWS: tuple[tuple[str, str, str, Observe], ...] = (
    ("pymongo_resilience.server.rtt", "s", "Average round-trip time of a server.", _rtt),
    (
        "pymongo_resilience.server.rtt.min", "s", "Minimum of the last ten round-trip times.",
        partial(_rtt, name="min_round_trip_time"),
    ),
    # For the unit "1" exporters to Prometheus end the name in "_ratio".
    ("pymongo_resilience.server.state", "{server}", "1 for the current type of a server.", _state),
    (
        "pymongo_resilience.circuit_breaker.state", "{server}",
        "1 for the current state of a circuit breaker.",
        _breaker_state,
    ),
    ("db.client.connection.count", "{connection}", "Connections of a pool by state.", _connections),
    (
        "db.client.connection.pending_requests", "{request}",
        "Operations waiting for a connection.", _pending,
    ),
    ("db.client.connection.max", "{connection}", "Maximum size of a pool.", _size),
    ("db.client.connection.idle.max", "{connection}", "Maximum of idle connections.", _size),
    (
        "db.client.connection.idle.min", "{connection}", "Connections that a pool keeps open.",
        partial(_size, largest=False),
    ),
    ("pymongo_resilience.ready", "{client}", "1 for a client that is ready.", _readiness),
    (
        "pymongo_resilience.retry_budget.tokens", "{token}",
        "Tokens left in a client's retry budget.", _tokens,
    ),
)  # fmt: skip
