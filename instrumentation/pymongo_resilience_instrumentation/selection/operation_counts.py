"""How many attempts are in progress on each server of a client, counted from its selection on.

Source: Server Selection, "operationCount-based selection within the latency window".
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pymongo_resilience.server_choice.server_load import PeakEwma


class OperationCounts:
    """Of one client. Thread- and task-safe: a lock that is held for two changes of a set, reentrant
    as that of a circuit breaker."""

    __slots__ = ("_attempts", "_lock", "latencies")

    def __init__(self, latencies: PeakEwma | None = None) -> None:
        """``latencies``: None where they do not matter."""
        self.latencies = latencies
        self._lock = threading.RLock()
        self._attempts: dict[str, set[AttemptCount]] = {}

    @property
    def by_address(self) -> dict[str, int]:
        """Of the servers that have some."""
        # A copy, made in one step: others may change it meanwhile.
        return {address: len(each) for address, each in self._attempts.copy().items() if each}

    def reset_after_fork(self) -> None:
        """In a forked child: the attempts in progress are the parent's, and so may be the lock."""
        self._lock = threading.RLock()
        self._attempts.clear()

    def of_attempt(self) -> AttemptCount:
        return AttemptCount(self)

    def enter(self, address: str, attempt: AttemptCount) -> None:
        with self._lock:
            self._attempts.setdefault(address, set()).add(attempt)

    def leave(self, address: str, attempt: AttemptCount) -> None:
        """Once more, it changes nothing."""
        with self._lock:
            self._attempts.get(address, set()).discard(attempt)


class AttemptCount:
    """Where one attempt is counted: on one server at most.

    Belongs to the thread or task of the attempt. The server is set before it is counted there, and
    until it no longer is: ``release`` takes it back, whatever was raised in between.
    """

    __slots__ = ("_address", "_began", "_counts")

    def __init__(self, counts: OperationCounts) -> None:
        self._counts = counts
        self._address: str | None = None
        self._began: float | None = None

    def take(self, address: str) -> None:
        """The attempt goes to this server, wherever it was counted before."""
        if address != self._address:
            self.release()
            self._address = address
            self._counts.enter(address, self)

    def measure(self) -> None:
        """The attempt's server was chosen among several: its duration is a sample of latency."""
        if self._counts.latencies is not None:
            self._began = self._counts.latencies.begin()

    def release(self, *, succeeded: bool = False) -> None:
        """The attempt is over."""
        if self._address is not None:
            began, self._began = self._began, None
            if began is not None and self._counts.latencies is not None:
                self._counts.latencies.end(self._address, began, succeeded=succeeded)
            self._counts.leave(self._address, self)
            self._address = None
