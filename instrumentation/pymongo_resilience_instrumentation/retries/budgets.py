"""The retry budget of each client that has adaptive retries.

Source: Client Backpressure, "Token Bucket".
"""

from __future__ import annotations

from typing import Any

from pymongo_resilience.budget import TokenBucket
from pymongo_resilience_instrumentation.clients.by_client import keep


class Budgets:
    """One bucket for each client, found by the client's identity: two clients of the same servers
    count as equal. Holds no client alive. Thread- and task-safe."""

    def __init__(
        self, capacity: float, *, everywhere: bool, wishes: dict[int, bool] | None = None
    ) -> None:
        """``everywhere``: also for clients that do not say whether they want one; ``wishes``: what
        clients that exist have said."""
        self._capacity = capacity
        self._everywhere = everywhere
        self.wishes: dict[int, bool] = {} if wishes is None else wishes
        """What clients say themselves, by their identity."""
        self.any = everywhere or any(self.wishes.values())
        """Whether any client has one."""
        self._buckets: dict[int, TokenBucket | None] = {}

    def of(self, client: Any) -> TokenBucket | None:
        """The client's bucket; one that was made before ``instrument()`` gets its own here."""
        if not self.any:
            return None
        try:
            return self._buckets[id(client)]
        except KeyError:
            return self.open(client, self.wishes.get(id(client)))

    def open(self, client: Any, adaptive: bool | None) -> TokenBucket | None:
        """For a client that is being made, with what it says itself."""
        if adaptive is not None:
            keep(self.wishes, client, adaptive)
        wanted = self._everywhere if adaptive is None else adaptive
        self.any = self.any or wanted
        return keep(self._buckets, client, TokenBucket(self._capacity) if wanted else None)

    def reset_after_fork(self) -> None:
        """In a forked child: a thread that is no more may have held a lock."""
        for bucket in list(self._buckets.values()):
            if bucket is not None:
                bucket.reset_after_fork()
