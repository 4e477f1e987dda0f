"""What is known of the clients that are alive: their servers and pools.

Written by the driver's monitor and application threads, read when metrics are collected.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import address_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pymongo_resilience.rules.budget import RetryBudget
    from pymongo_resilience_instrumentation.addresses import Address


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
        """By the driver's connection id; when each check-out that has not come back was, where
        anybody asks. They are two for a moment where the next one has the connection before the
        driver reports that the last one gave it back."""

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

    def states(self, idle: int, in_use: int) -> dict[str, int]:
        """``idle``: as many as the driver could give away; ``in_use``: as many as it knows of at
        most. One that is being made is used, one that is being closed is neither."""
        return {IDLE: idle, USED: max(min(len(self.connections) - idle, in_use), 0)}


class PoolSizes(NamedTuple):
    """How many connections each pool of a client may have."""

    least: int
    most: int | None
    """None for no limit."""


class Server:
    """One server of one client."""

    def __init__(self, pool_name: str) -> None:
        self.type = "Unknown"
        self.average_rtt: float | None = None
        """Here and below: in seconds, as the driver measures it; None while the server is
        unknown."""
        self.minimum_rtt: float | None = None
        self.pool = Pool(pool_name)


class ClientState:
    """One client. Thread-safe."""

    def __init__(self, client: Any, clients: Clients, budget: RetryBudget | None) -> None:
        self.topology_type = "Unknown"
        self.budget = budget
        self.number: int | None = None
        """Which of the process's clients it is: the smallest number that none had when its first
        pool was opened, so that numbers stay few. None before, and once its pools are closed."""
        self._client = weakref.ref(client)
        self._clients = clients
        self._servers: dict[Address, Server] = {}
        self.pools_by_address: dict[Address, Pool] = {}
        """Those of ``_servers``; read without the lock, on the way of every operation where anybody
        times its connections."""
        self._lock = threading.RLock()

    def reset_after_fork(self) -> None:
        """In a forked child: pymongo opens the client again, and publishes which servers it has."""
        self._lock = threading.RLock()
        self._servers = {}
        self.pools_by_address.clear()
        self.number = None

    @property
    def open(self) -> bool:
        """Whether it has pools: neither closed nor collected, nor inherited and not used yet."""
        return self.number is not None and self._client() is not None

    def refresh(self) -> None:
        """Read the state of its servers from the client: no event reports changes."""
        client = self._client()
        if client is None:
            return
        description = client.topology_description
        self.topology_type = description.topology_type_name
        current = description.server_descriptions()
        for address, server in self.servers().items():
            now = current.get(address)
            server.type = "Unknown" if now is None else now.server_type_name
            known = now is not None and now.is_server_type_known
            server.average_rtt = now.round_trip_time if known else None
            server.minimum_rtt = (now.min_round_trip_time or None) if known else None

    def pool_sizes(self) -> PoolSizes:
        client = self._client()
        if client is None:
            return PoolSizes(0, None)
        options = client.options.pool_options
        return PoolSizes(options.min_pool_size, options.max_pool_size or None)

    def server(self, address: Address) -> Server:
        """The server at ``address``, known from now on."""
        with self._lock:
            known = self._servers.get(address)
            if known is None:
                if self.number is None:
                    self._clients.give_number(self)
                made = Server(f"{address_text(address)}#{self.number}")
                # A finalizer or signal handler of the application's may have come in between.
                known = self._servers.setdefault(address, made)
                self.pools_by_address[address] = known.pool
            return known

    def forget(self, address: Address) -> None:
        with self._lock:
            self._servers.pop(address, None)
            self.pools_by_address.pop(address, None)
            if not self._servers:
                self.number = None

    def servers(self) -> dict[Address, Server]:
        """A copy: the dictionary may change while it is walked."""
        with self._lock:
            return dict(self._servers)

    def pools(self) -> list[Pool]:
        return [server.pool for server in self.servers().values()]

    def connections(self) -> Iterator[tuple[Pool, dict[str, int]]]:
        """Each pool, and how many it has by state."""
        client = self._client()
        for address, server in self.servers().items() if client is not None else ():
            yield (
                server.pool,
                server.pool.states(*driver.connections.connection_counts(client, address)),
            )

    def waiting(self) -> Iterator[tuple[Pool, int]]:
        """Each pool, and how many calls wait for one of its connections."""
        client = self._client()
        waiting = Counter(id(place()) for place in list(self._clients.waiting.values()))
        for address, server in self.servers().items() if client is not None else ():
            places = driver.connections.places_to_wait(client, address)
            yield server.pool, sum(waiting[id(each)] for each in places)


class Clients:
    """Every client of the process that reports to us. Holds none of them alive. Thread-safe."""

    def __init__(self) -> None:
        self._clients: weakref.WeakSet[ClientState] = weakref.WeakSet()
        self._lock = threading.RLock()
        self.waiting: dict[Any, weakref.ref[Any]] = {}
        """Who waits for a connection, and the driver's place to wait in, or the pool that makes
        one. Each change is one step of the dictionary."""

    def reset_after_fork(self) -> None:
        """In a forked child: a thread that is no more may have held the lock."""
        self._lock = threading.RLock()
        self.waiting.clear()
        for client in self._all():
            client.reset_after_fork()

    def add(self, client: object, budget: RetryBudget | None = None) -> ClientState:
        """A client that is being made, with its retry budget where it has one."""
        state = ClientState(client, self, budget)
        with self._lock:
            self._clients.add(state)
        return state

    def has(self, client: ClientState) -> bool:
        with self._lock:
            return client in self._clients

    def alive(self) -> list[ClientState]:
        """Those that have pools; what was closed or collected is gone."""
        return [client for client in self._all() if client.open]

    def give_number(self, client: ClientState) -> None:
        """The smallest that no other client has."""
        with self._lock:
            taken = {each.number for each in self._clients if each.open}
            client.number = next(n for n in itertools.count(1) if n not in taken)

    def _all(self) -> list[ClientState]:
        with self._lock:
            return list(self._clients)
