"""A server's pool as its events tell it: which connections there are, and who waits for one."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from pymongo_resilience_instrumentation import semconv

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.calls import Call

IDLE = "idle"
USED = "used"


class Connection:
    """One socket. While it is being made it counts as used."""

    __slots__ = ("borrowed", "ready")

    def __init__(self) -> None:
        self.ready = False
        self.borrowed: list[float] = []
        """When each check-out that has not come back was. They are two for a moment where the next
        one has it before the driver tells that the last one gave it back."""

    @property
    def state(self) -> str:
        return IDLE if self.ready and not self.borrowed else USED


class Pool:
    """The connections of one client to one server.

    Thread- and task-safe without a lock, which every operation would take four times: each change
    is one step of a dictionary, a list or a set.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.attributes: dict[str, Any] = {semconv.POOL_NAME: name}
        self.connections: dict[int, Connection] = {}
        """By the driver's connection id."""
        self.waiting: set[Call] = set()
        """Calls that have asked for a connection: one that is interrupted is gone with its call."""

    def created(self, connection_id: int) -> None:
        self.connections[connection_id] = Connection()

    def ready(self, connection_id: int) -> None:
        connection = self.connections.get(connection_id)
        if connection is not None:
            connection.ready = True

    def checked_out(self, connection_id: int) -> None:
        connection = self.connections.get(connection_id)
        if connection is not None:
            connection.borrowed.append(time.perf_counter())

    def checked_in(self, connection_id: int) -> float | None:
        """For how many seconds it was used; None for one that is not known, as after a fork."""
        connection = self.connections.get(connection_id)
        if connection is None or not connection.borrowed:
            return None
        return time.perf_counter() - connection.borrowed.pop(0)

    def closed(self, connection_id: int) -> None:
        self.connections.pop(connection_id, None)

    def states(self) -> Counter[str]:
        return Counter(connection.state for connection in [*self.connections.values()])
