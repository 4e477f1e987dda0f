"""What a client's pool does with its connections."""

from __future__ import annotations

import time
from typing import Any

from pymongo import monitoring
from support.clients import Side


class Closed(monitoring.ConnectionPoolListener):
    """How many were made and ready, why any was closed, and how long those took that failed."""

    def __init__(self) -> None:
        self.made = self.ready = 0
        self.reasons: list[str] = []
        self.failed_after: list[float] = []
        """Seconds."""
        self._created: dict[int, float] = {}

    def connection_created(self, event: Any) -> None:
        self.made += 1
        self._created[event.connection_id] = time.monotonic()

    def connection_ready(self, event: Any) -> None:
        self.ready += 1

    def connection_closed(self, event: Any) -> None:
        self.reasons.append(event.reason)
        if event.reason == "error":
            self.failed_after.append(time.monotonic() - self._created[event.connection_id])

    def __getattribute__(self, name: str) -> Any:
        ours = name.startswith("__") or name in vars(Closed)
        if ours or not name.startswith(("connection_", "pool_")):
            return object.__getattribute__(self, name)
        return lambda event: None


def pool_of(client: Any) -> Any:
    """The pool of a client with one server."""
    (server,) = client._topology._servers.values()
    return server.pool


def leave_idle(side: Side, client: Any) -> None:
    """Wait until the next operation makes a connection, with ``maxIdleTimeMS=1``."""
    conns = pool_of(client).conns
    side.wait_until(lambda: all(each.idle_time_seconds() > 0.001 for each in conns))
