"""The engine's clock, deadlines and counters over time.

The clock is passed in, so that tests can advance it. All times are seconds as float.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

SHORTEST = 0.001
"""Shortest usable time, in seconds. Timeouts are sent in whole milliseconds, and 0 would mean "no
limit".
"""
BUCKETS = 10
"""Number of buckets of a window. A count expires after nine to ten tenths of the window."""

Random = Callable[[], float]
"""Returns a float in [0, 1)."""


class Clock:
    """The process's monotonic clock, and two ways to wait. Stateless, so thread- and task-safe."""

    now: Callable[[], float] = staticmethod(time.monotonic)
    """Return the time in seconds. Only differences are meaningful."""

    def sleep(self, seconds: float, /) -> None:
        """Block the calling thread."""
        time.sleep(seconds)

    async def sleep_async(self, seconds: float, /) -> None:
        """Suspend the calling task; cancellation ends the wait at once."""
        await asyncio.sleep(seconds)


class Deadline(NamedTuple):
    """A point on a monotonic clock. Immutable, so thread- and task-safe.

    Source: Client Side Operations Timeout, "timeoutMS" and "Background: retries".
    """

    clock: Clock
    expires_at: float
    """Seconds on ``clock``."""
    timeout: float
    """The whole duration, in seconds."""

    @classmethod
    def after(cls, clock: Clock, timeout: float) -> Deadline:
        """Return a deadline ``timeout`` seconds from now."""
        return cls(clock, clock.now() + timeout, timeout)

    def remaining(self) -> float:
        """Return the seconds left; zero or negative once expired."""
        return self.expires_at - self.clock.now()

    def expired(self) -> bool:
        # pymongo accepts NaN as a timeout. Comparisons with NaN are false, so this form treats such
        # a deadline as expired; otherwise the operation would never end.
        return not self.clock.now() < self.expires_at

    def allows(self, delay: float) -> bool:
        """Return True if a wait of ``delay`` seconds ends before the deadline."""
        return delay < self.remaining()


class RollingCounts:
    """Several counts over the last ``seconds``.

    Not thread-safe: the owner holds a lock. If ``now`` is earlier than in a previous call, the
    previous time is used.
    """

    def __init__(self, counts: int, seconds: float, start: float) -> None:
        self._start = start
        self._width = seconds / BUCKETS
        self._number = 0
        self._rings = [[0] * BUCKETS for _ in range(counts)]

    def add(self, now: float, *counts: int) -> None:
        """Add one to each of the given counts, which are numbered from 0."""
        bucket = self._move_to(now)
        for count in counts:
            self._rings[count][bucket] += 1

    def sums(self, now: float) -> list[int]:
        self._move_to(now)
        return [sum(ring) for ring in self._rings]

    def _move_to(self, now: float) -> int:
        """Return the bucket of ``now``, and empty the buckets whose time has passed."""
        # A time before an earlier one must not bring back buckets that were already emptied.
        number = max(self._number, int((now - self._start) / self._width))
        # Empty the buckets between the last one used and the current one, at most all of them.
        for passed in range(max(self._number, number - BUCKETS) + 1, number + 1):
            for ring in self._rings:
                ring[passed % BUCKETS] = 0
        self._number = number
        return number % BUCKETS
