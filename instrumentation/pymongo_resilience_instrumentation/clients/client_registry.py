"""The clients that are alive, and what their gauges show: it is read of pymongo's pools and servers
when metrics are collected, and nothing is counted meanwhile."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from pymongo.server_description import ServerDescription

from pymongo_resilience.internal_errors import shielded
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import Address, address_text

from .by_client import keep

POOL_NAME = "db.client.connection.pool.name"
"""An attribute by OpenTelemetry's semantic conventions."""
IDLE = "idle"
USED = "used"


class ClientState:
    """One client, which is not held alive. Thread-safe: it only reads."""

    number: int | None = None
    """The smallest that no other client has whose pools are open."""

    def __init__(self, client: Any, limits: Any) -> None:
        """``limits``: a ClientLimits (selection/)."""
        self.limits = limits
        self._client = weakref.ref(client)

    def pools(self) -> dict[Address, Any]:
        """The driver's, by server: none of a client that is closed, that was collected, or that
        has not been used yet in this process."""
        client = self._client()
        return {} if client is None else driver.connections.open_pools(client)

    def attributes(self, address: Address) -> dict[str, Any]:
        return {POOL_NAME: f"{address_text(address)}#{self.number}"}

    def servers(self) -> tuple[str, dict[Address, ServerDescription | None]]:
        """The topology's type, and each server as the client describes it now or None."""
        client = self._client()
        if client is None:
            return "Unknown", {}
        description = client.topology_description
        known = description.server_descriptions()
        return description.topology_type_name, {each: known.get(each) for each in self.pools()}

    def sizes(self, *, largest: bool) -> Iterator[tuple[dict[str, Any], int]]:
        """How many connections each pool may have, if limited, or keeps at least."""
        for address, pool in self.pools().items():
            size = pool.opts.max_pool_size if largest else pool.opts.min_pool_size
            if size or not largest:
                yield self.attributes(address), size

    def connections(self) -> Iterator[tuple[dict[str, Any], dict[str, int]]]:
        """How many connections each pool has by state. One that is being made is used."""
        for address, pool in self.pools().items():
            idle, used, _ = driver.connections.counts(pool)
            yield self.attributes(address), {IDLE: idle, USED: used}

    def waiting(self) -> Iterator[tuple[dict[str, Any], int]]:
        """How many operations wait for a connection of each pool."""
        for address, pool in self.pools().items():
            _, used, operations = driver.connections.counts(pool)
            yield self.attributes(address), max(0, operations - used)


class Clients:
    """Every client of the process. Thread-safe."""

    def __init__(self) -> None:
        self._states: dict[int, ClientState] = {}
        self._lock = threading.RLock()

    def reset_after_fork(self) -> None:
        """In a forked child: a thread that is no more may have held the lock."""
        self._lock = threading.RLock()

    def add(self, client: object, limits: Any) -> None:
        """A client that is being made, or the new limits of one that was made before."""
        keep(self._states, client, ClientState(client, limits)).limits = limits

    def has(self, client: object) -> bool:
        return id(client) in self._states

    def of(self, client: object) -> ClientState:
        """One that was added."""
        return self._states[id(client)]

    def alive(self) -> list[ClientState]:
        """Those that have pools, each with its number."""
        states = list(self._states.values())
        alive = []
        for each in states:
            with shielded("while looking for a client's pools"):
                alive += [each] if each.pools() else []
        with self._lock:
            for each in states:
                if each not in alive:
                    each.number = None
            for each in alive:
                if each.number is None:
                    taken = {other.number for other in alive}
                    each.number = next(n for n in itertools.count(1) if n not in taken)
        return alive

    def attributes(self, pool: Any) -> dict[str, Any] | None:
        """Those of one of the driver's pools; None for a monitor's."""
        for client in self.alive():
            for address, each in client.pools().items():
                if each is pool:
                    return client.attributes(address)
        return None
