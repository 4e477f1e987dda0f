"""What is known of the clients that are alive: their servers and pools.

Written by the driver's monitor and application threads, read when metrics are collected.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pymongo.server_description import ServerDescription

from pymongo_resilience.rules.budget import RetryBudget
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import Address, address_text

POOL_NAME = "db.client.connection.pool.name"
"""An attribute by OpenTelemetry's semantic conventions."""
IDLE = "idle"
USED = "used"


class Pool:
    """The connections of one client to one server.

    Thread- and task-safe without a lock, which every operation would take: each change is one step
    of a dictionary or a list.
    """

    def __init__(self, name: str) -> None:
        self.attributes: dict[str, Any] = {POOL_NAME: name}
        self.connections: dict[int, list[float]] = {}
        """By the driver's connection id; when each check-out that has not come back was: for a
        moment two, where the driver reports the next one before the last one's return."""

    def created(self, connection_id: int) -> None:
        self.connections[connection_id] = []

    def checked_out(self, connection_id: int) -> None:
        borrowed = self.connections.get(connection_id)
        if borrowed is not None:
            borrowed.append(time.perf_counter())

    def checked_in(self, connection_id: int) -> float | None:
        """For how many seconds it was used; None for one that is not known, as after a fork."""
        borrowed = self.connections.get(connection_id)
        return time.perf_counter() - borrowed.pop(0) if borrowed else None

    def closed(self, connection_id: int) -> None:
        self.connections.pop(connection_id, None)


class ClientState:
    """One client. Thread-safe: each change of ``pools`` is one step."""

    def __init__(self, client: Any, clients: Clients, budget: RetryBudget | None) -> None:
        self.budget = budget
        self.number: int | None = None
        """The smallest that no client had when its first pool was opened; None before, and once
        its pools are closed."""
        self.pools: dict[Address, Pool] = {}
        self._client = weakref.ref(client)
        self._clients = clients

    def reset_after_fork(self) -> None:
        """In a forked child: pymongo opens the client again, and publishes which servers it has."""
        self.pools.clear()
        self.number = None

    @property
    def open(self) -> bool:
        """Whether it has pools: neither closed nor collected, nor inherited and not used yet."""
        return self.number is not None and self._client() is not None

    def open_pool(self, address: Address) -> None:
        with self._clients.lock:
            if self.number is None:
                self.number = self._clients.free_number()
            # A finalizer or signal handler of the application's may have come in between.
            self.pools.setdefault(address, Pool(f"{address_text(address)}#{self.number}"))

    def close_pool(self, address: Address) -> None:
        with self._clients.lock:
            self.pools.pop(address, None)
            if not self.pools:
                self.number = None

    def servers(self) -> tuple[str, dict[Address, ServerDescription | None]]:
        """The topology's type, and each server as the client describes it now or None."""
        client = self._client()
        if client is None:
            return "Unknown", {}
        description = client.topology_description
        known = description.server_descriptions()
        return description.topology_type_name, {each: known.get(each) for each in [*self.pools]}

    def sizes(self, *, largest: bool) -> Iterator[tuple[Pool, int]]:
        """Each pool, and how many connections it may have, if limited, or keeps at least."""
        client = self._client()
        options = None if client is None else client.options.pool_options
        if options is not None and (options.max_pool_size or not largest):
            size = options.max_pool_size if largest else options.min_pool_size
            for pool in [*self.pools.values()]:
                yield pool, size

    def connections(self) -> Iterator[tuple[Pool, dict[str, int]]]:
        """Each pool, and how many it has by state."""
        client = self._client()
        for address, pool in [*self.pools.items()] if client is not None else ():
            idle, in_use = driver.connections.connection_counts(client, address)
            # One that is being made is used, one that is being closed is neither.
            used = max(min(len(pool.connections) - idle, in_use), 0)
            yield pool, {IDLE: idle, USED: used}

    def waiting(self) -> Iterator[tuple[Pool, int]]:
        """Each pool, and how many calls wait for one of its connections."""
        client = self._client()
        waiting = Counter(id(place()) for place in list(self._clients.waiting.values()))
        for address, pool in [*self.pools.items()] if client is not None else ():
            places = driver.connections.places_to_wait(client, address)
            yield pool, sum(waiting[id(each)] for each in places)


class Clients:
    """Every client of the process that reports to us. Holds none of them alive. Thread-safe."""

    def __init__(self) -> None:
        self._clients: weakref.WeakSet[ClientState] = weakref.WeakSet()
        self.lock = threading.RLock()
        self.waiting: dict[Any, weakref.ref[Any]] = {}
        """Who waits for a connection, and the driver's place to wait in, or the pool."""

    def reset_after_fork(self) -> None:
        """In a forked child: a thread that is no more may have held the lock."""
        self.lock = threading.RLock()
        self.waiting.clear()
        for client in self._all():
            client.reset_after_fork()

    def add(self, client: object, budget: RetryBudget | None = None) -> ClientState:
        """A client that is being made, with its retry budget where it has one."""
        state = ClientState(client, self, budget)
        with self.lock:
            self._clients.add(state)
        return state

    def has(self, client: ClientState) -> bool:
        with self.lock:
            return client in self._clients

    def alive(self) -> list[ClientState]:
        """Those that have pools; what was closed or collected is gone."""
        return [client for client in self._all() if client.open]

    def free_number(self) -> int:
        """The smallest that no client has."""
        taken = {each.number for each in self._all() if each.open}
        return next(n for n in itertools.count(1) if n not in taken)

    def _all(self) -> list[ClientState]:
        with self.lock:
            return list(self._clients)
