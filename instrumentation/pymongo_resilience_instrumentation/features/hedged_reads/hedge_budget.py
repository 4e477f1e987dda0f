"""When a read is hedged, and how many reads may be. Pure.

Source: Dean and Barroso, "The Tail at Scale", "Hedged requests".
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from pymongo_resilience.clock import Clock

READS_PER_HEDGE = 20
"""One hedge for this many reads, so at most 5 %."""
MAX_HEDGES = 10
"""Maximum number of hedges in a row, if earlier reads have saved up as many."""
RESERVED_HEDGES = 3
"""Hedges that are reserved for reads that ask for the second time. Most reads that exceed the 95th
percentile are about to be answered, so they can wait a little longer.
"""
OVERLOAD_PAUSE_S = 3.0
"""Seconds without hedges after a server rejected an attempt because of overload."""
PERCENTILE = 0.95
MIN_READS = 20
"""Fewer reads are not enough for a 95th percentile."""
READS_PER_PERCENTILE = 20
"""The percentile is computed again after this many reads."""
REMEMBERED_READS = 500


class HedgeBudget:
    """How many reads of one client may be hedged. Thread- and task-safe: uses a reentrant lock."""

    def __init__(self, clock: Clock, overloaded_at: Callable[[], float]) -> None:
        """``overloaded_at`` returns when an attempt was last rejected because of overload, on the
        clock.
        """
        self._clock = clock
        self._overloaded_at = overloaded_at
        self._lock = threading.RLock()
        self._left = 0
        """Saved-up budget, counted in reads to avoid rounding."""
        self.reads = 0
        """Number of reads that could have been hedged."""
        self.sent = 0

    def read(self) -> None:
        """Count a read that could be hedged."""
        with self._lock:
            self.reads += 1
            self._left = min(self._left + 1, READS_PER_HEDGE * MAX_HEDGES)

    def take(self, *, again: bool) -> bool:
        """Return True and pay for one hedge if it is allowed now.

        Args:
            again: Whether the same read has asked before.
        """
        reserved = 0 if again else READS_PER_HEDGE * RESERVED_HEDGES
        if self._clock.now() < self._overloaded_at() + OVERLOAD_PAUSE_S:
            return False
        with self._lock:
            if self._left - reserved < READS_PER_HEDGE:
                return False
            self._left -= READS_PER_HEDGE
            self.sent += 1
            return True

    def give_back(self) -> None:
        """Return the payment for a hedge that was not sent."""
        with self._lock:
            self._left += READS_PER_HEDGE
            self.sent -= 1

    def reset_after_fork(self) -> None:
        """Replace the lock in a forked child, because a thread of the parent may hold it."""
        self._lock = threading.RLock()


class Latencies:
    """How long the most recent reads of one namespace took.

    Thread- and task-safe: if two are added at the same moment, one may be lost.
    """

    def __init__(self) -> None:
        self._last: list[float] = []
        self._total = 0
        self.percentile: float | None = None
        """The 95th percentile in seconds; None until enough reads are known."""

    def add(self, seconds: float) -> None:
        if self._total < REMEMBERED_READS:
            self._last.append(seconds)
        else:
            self._last[self._total % REMEMBERED_READS] = seconds
        self._total += 1
        if self._total >= MIN_READS and self._total % READS_PER_PERCENTILE == 0:
            last = sorted(self._last)
            self.percentile = last[math.ceil(len(last) * PERCENTILE) - 1]
