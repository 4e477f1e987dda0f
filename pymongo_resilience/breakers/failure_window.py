"""How many calls of the last seconds there were, and how many of them failed."""

from __future__ import annotations

BUCKETS = 10
"""The window moves on by a tenth of its length: a call counts for nine to ten tenths of it."""


class FailureWindow:
    """A ring of buckets, so its size depends on nothing. Not thread-safe: its owner locks.

    Seconds as float; what is given as ``now`` must not run backwards.
    """

    __slots__ = ("_calls", "_ends", "_failures", "_number", "_slot", "_start", "_width")

    def __init__(self, seconds: float, now: float) -> None:
        self._width = seconds / BUCKETS
        self._start = now
        self._calls = [0] * BUCKETS
        self._failures = [0] * BUCKETS
        self._begin(0)

    def succeeded(self, now: float) -> None:
        if now >= self._ends:
            self._move_to(now)
        self._calls[self._slot] += 1

    def failed(self, now: float) -> None:
        self.succeeded(now)
        self._failures[self._slot] += 1

    def counts(self, now: float) -> tuple[int, int]:
        """Calls, and failures among them."""
        if now >= self._ends:
            self._move_to(now)
        return sum(self._calls), sum(self._failures)

    def _move_to(self, now: float) -> None:
        number = int((now - self._start) / self._width)
        for passed in range(max(self._number, number - BUCKETS) + 1, number + 1):
            self._calls[passed % BUCKETS] = self._failures[passed % BUCKETS] = 0
        self._begin(number)

    def _begin(self, number: int) -> None:
        self._number = number
        self._slot = number % BUCKETS
        self._ends = self._start + (number + 1) * self._width
