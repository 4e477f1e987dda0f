"""The retry budget of one client: a bucket of tokens that retries after overload errors spend.

Source: Client Backpressure, "Adaptive retry policy" and "Token Bucket".
"""

from __future__ import annotations

import threading

CAPACITY = 1000.0
RETURN_RATE = 0.1
"""Tokens that a success at the first attempt gives back."""
RETRY = 1.0
"""Tokens that one retry takes; one that shows a healthy server gives them back."""


class TokenBucket:
    """Full at first. Thread- and task-safe: a lock that is held for an addition, reentrant for what
    a signal handler or a finalizer of the application's does meanwhile.

    Counts in whole tenths of a token: ten times 0.1 as floats is less than 1.
    """

    __slots__ = ("_capacity", "_lock", "_tenths")

    def __init__(self, capacity: float = CAPACITY) -> None:
        self._capacity = self._tenths = _tenths(capacity)
        self._lock = threading.RLock()

    @property
    def tokens(self) -> float:
        """How many there are right now."""
        return self._tenths / 10

    def consume(self, tokens: float = RETRY) -> bool:
        """Take them if they are all there; whether they were."""
        tenths = _tenths(tokens)
        with self._lock:
            if self._tenths < tenths:
                return False
            self._tenths -= tenths
            return True

    def deposit(self, tokens: float) -> None:
        """Put them in; what exceeds the capacity is lost."""
        tenths = _tenths(tokens)
        with self._lock:
            self._tenths = min(self._capacity, self._tenths + tenths)

    def start_afresh(self) -> None:
        """In a forked child: full again, and a lock that no thread of the parent's holds."""
        self._lock = threading.RLock()
        self._tenths = self._capacity

    def succeeded(self, *, retried: bool) -> None:
        """A command was answered well, at its first attempt or at a later one."""
        self.deposit(RETURN_RATE + RETRY if retried else RETURN_RATE)


def _tenths(tokens: float) -> int:
    return round(tokens * 10)
