"""What is known of the clients that are alive: their servers, round-trip times and pools.

Written by the driver's monitor and application threads, read when metrics are collected.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

from pymongo_resilience.rtt import RoundTripTime
from pymongo_resilience_instrumentation.addresses import address_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pymongo_resilience_instrumentation.addresses import Address

IDLE = "idle"
USED = "used"


class Server:
    """One server of one client."""

    def __init__(self) -> None:
        self.type = "Unknown"
        self.rtt = RoundTripTime()
        self.connections: dict[int, str] = {}
        """State by the driver's connection id; a connection being made counts as used."""


class ClientState:
    """One client. Thread-safe."""

    def __init__(self, client: Any) -> None:
        self.topology_type = "Unknown"
        self._client = weakref.ref(client)
        self._servers: dict[Address, Server] = {}
        self._lock = threading.Lock()

    def start_afresh(self) -> None:
        """In a forked child: pymongo opens the client anew, and tells which servers it has."""
        self._lock = threading.Lock()
        self._servers = {}

    def refresh(self) -> None:
        """Ask the client for the types of its servers: nothing tells when they change."""
        client = self._client()
        if client is None:
            return
        description = client.topology_description
        self.topology_type = description.topology_type_name
        current = description.server_descriptions()
        for address, server in self.servers().items():
            now = current.get(address)
            server.type = "Unknown" if now is None else now.server_type_name
            if server.type == "Unknown":
                server.rtt.reset()

    def server(self, address: Address) -> Server:
        """The server at ``address``, known from now on."""
        with self._lock:
            return self._servers.setdefault(address, Server())

    def forget(self, address: Address) -> None:
        with self._lock:
            self._servers.pop(address, None)

    def servers(self) -> dict[Address, Server]:
        """A copy: the dictionary may change while it is walked."""
        with self._lock:
            return dict(self._servers)

    def round_trip(self, address: Address, seconds: float | None) -> None:
        """One measured round trip; None after a failed one."""
        with self._lock:
            server = self._servers.get(address)
        if server is None:
            return
        if seconds is None:
            server.rtt.reset()
        else:
            server.rtt.add(seconds)

    def connection(self, address: Address, connection_id: int, state: str | None) -> None:
        """A connection's new state; None once it is closed."""
        with self._lock:
            server = self._servers.get(address)
            if server is None:
                return
            if state is None:
                server.connections.pop(connection_id, None)
            else:
                server.connections[connection_id] = state

    def pools(self) -> dict[str, Counter[str]]:
        """Connections by pool and state."""
        with self._lock:
            return {
                address_text(address): Counter(server.connections.values())
                for address, server in self._servers.items()
            }


class Clients:
    """Every client of the process that reports to us. Holds none of them alive. Thread-safe."""

    def __init__(self) -> None:
        self._clients: weakref.WeakSet[ClientState] = weakref.WeakSet()
        self._lock = threading.Lock()

    def start_afresh(self) -> None:
        """In a forked child: a thread that is no more may have held the lock."""
        self._lock = threading.Lock()
        for client in self.alive():
            client.start_afresh()

    def add(self, client: Any) -> ClientState:
        state = ClientState(client)
        with self._lock:
            self._clients.add(state)
        return state

    def alive(self) -> list[ClientState]:
        with self._lock:
            return list(self._clients)


def pools_of(clients: Iterable[ClientState]) -> dict[str, dict[str, int]]:
    """Connections by pool and state, summed over the clients."""
    total: dict[str, dict[str, int]] = {}
    for client in clients:
        for name, states in client.pools().items():
            pool = total.setdefault(name, {IDLE: 0, USED: 0})
            for state in pool:
                pool[state] += states[state]
    return total
