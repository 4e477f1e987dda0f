"""A server's pool by its events: which connections there are, and for how long in use."""

from __future__ import annotations

import time
from typing import Any

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
