"""Time as the engine sees it: given from outside, so that tests can advance it manually.

Seconds as float throughout.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

SHORTEST = 0.001
"""Seconds. A timeout is a whole number of milliseconds, and 0 is none: less is no time at all."""
BUCKETS = 10
"""A window moves on by a tenth of its length: a count stays for nine to ten tenths of it."""

Random = Callable[[], float]
"""Returns a float in [0, 1)."""


class Clock:
    """The process's monotonic clock, and two ways to wait. Stateless, so thread- and task-safe."""

    now: Callable[[], float] = staticmethod(time.monotonic)
    """The time in seconds; only differences mean anything."""

    def sleep(self, seconds: float, /) -> None:
        """Block the calling thread."""
        time.sleep(seconds)

    async def sleep_async(self, seconds: float, /) -> None:
        """Suspend the calling task; cancellation ends the wait at once."""
        await asyncio.sleep(seconds)


class Deadline(NamedTuple):
    """A point on a monotonic clock. Immutable, so thread- and task-safe. Source: Client Side
    Operations Timeout, "timeoutMS" and "Background: retries"."""

    clock: Clock
    expires_at: float
    """On ``clock``, in seconds."""
    timeout: float
    """The whole time the operation was given, in seconds."""

    @classmethod
    def after(cls, clock: Clock, timeout: float) -> Deadline:
        """A deadline ``timeout`` seconds from now."""
        return cls(clock, clock.now() + timeout, timeout)

    def remaining(self) -> float:
        """Seconds left; zero or negative once expired."""
        return self.expires_at - self.clock.now()

    def expired(self) -> bool:
        # As written: a timeout of NaN, which the driver accepts, has expired, or nothing would end.
        return not self.remaining() > 0

    def allows(self, delay: float) -> bool:
        """Whether a wait of ``delay`` seconds ends before the deadline."""
        return delay < self.remaining()


class RollingCounts:
    """Several counts over the last ``seconds``. Not thread-safe: the owner locks. A ``now`` before
    an earlier one counts as that one."""

    def __init__(self, counts: int, seconds: float, start: float) -> None:
        self._start = start
        self._width = seconds / BUCKETS
        self._number = 0
        self._rings = [[0] * BUCKETS for _ in range(counts)]

    def add(self, now: float, *counts: int) -> None:
        """Add one to each of the counts, which are numbered from 0."""
        bucket = self._move_to(now)
        for count in counts:
            self._rings[count][bucket] += 1

    def sums(self, now: float) -> list[int]:
        self._move_to(now)
        return [sum(ring) for ring in self._rings]

    def _move_to(self, now: float) -> int:
        """The bucket of ``now``; those that time has passed are emptied."""
        number = max(self._number, int((now - self._start) / self._width))
        for passed in range(max(self._number, number - BUCKETS) + 1, number + 1):
            for ring in self._rings:
                ring[passed % BUCKETS] = 0
        self._number = number
        return number % BUCKETS
