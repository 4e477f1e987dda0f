"""How many attempts are in progress on each server of a client, counted from its selection on.

Source: Server Selection, "operationCount-based selection within the latency window".
"""

from __future__ import annotations

import threading


class OperationCounts:
    """Of one client. Thread- and task-safe: a lock that is held for two additions, reentrant as
    that of a circuit breaker."""

    __slots__ = ("_lock", "by_address")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.by_address: dict[str, int] = {}
        """Only servers that have some."""

    def start_afresh(self) -> None:
        """In a forked child: the attempts in progress are the parent's, and so may be the lock."""
        self._lock = threading.RLock()
        self.by_address.clear()

    def of_attempt(self) -> AttemptCount:
        return AttemptCount(self)

    def move(self, left: str | None, entered: str | None) -> None:
        """One attempt leaves a server, or enters one, or goes from one to another."""
        with self._lock:
            if left is not None:
                rest = self.by_address.pop(left, 0) - 1
                if rest > 0:
                    self.by_address[left] = rest
            if entered is not None:
                self.by_address[entered] = self.by_address.get(entered, 0) + 1


class AttemptCount:
    """Where one attempt is counted: on one server at most, so that nothing can be counted for good.

    Belongs to the thread or task of the attempt.
    """

    __slots__ = ("_address", "_counts")

    def __init__(self, counts: OperationCounts) -> None:
        self._counts = counts
        self._address: str | None = None

    def take(self, address: str) -> None:
        """The attempt goes to this server, wherever it was counted before."""
        if address != self._address:
            self._counts.move(self._address, address)
            self._address = address

    def release(self) -> None:
        """The attempt is over."""
        if self._address is not None:
            self._counts.move(self._address, None)
            self._address = None
