"""After how long a read is sent to a second server as well, and how many may be. Pure.

Source: Dean and Barroso, "The Tail at Scale", "Hedged requests".
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from pymongo_resilience.clock import Clock

READS_PER_HEDGE = 20
"""One hedge for so many reads: at most 5 %."""
MAX_HEDGES = 10
"""The most that are sent in a row, where earlier reads have left as many."""
RESERVED_HEDGES = 3
"""So many of them are left to the reads that ask again: of those that a percentile of 95 makes ask,
most are about to be answered."""
OVERLOAD_PAUSE_S = 3.0
"""Seconds without a hedge after a server has rejected an attempt as overloaded."""
PERCENTILE = 0.95
MIN_READS = 20
"""Fewer tell nothing of a percentile of 95."""
READS_PER_PERCENTILE = 20
"""Computed again after so many."""
REMEMBERED_READS = 500


class HedgeBudget:
    """How many reads of one client may be hedged. Thread- and task-safe: a reentrant lock."""

    def __init__(self, clock: Clock, overloaded_at: Callable[[], float]) -> None:
        """``overloaded_at``: when an attempt was last rejected as overloaded, on the clock."""
        self._clock = clock
        self._overloaded_at = overloaded_at
        self._lock = threading.RLock()
        self._left = 0
        """In reads, so that nothing is rounded."""
        self.reads = 0
        """Those that might be hedged."""
        self.sent = 0

    def read(self) -> None:
        """A read begins that might be hedged."""
        with self._lock:
            self.reads += 1
            self._left = min(self._left + 1, READS_PER_HEDGE * MAX_HEDGES)

    def take(self, *, again: bool) -> bool:
        """Whether one of them may be hedged now, and counts as that; ``again``: it asked before."""
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
        """What was taken was not sent."""
        with self._lock:
            self._left += READS_PER_HEDGE
            self.sent -= 1

    def reset_after_fork(self) -> None:
        """In a forked child: a lock that no thread of the parent's holds."""
        self._lock = threading.RLock()


class Latencies:
    """How long the last reads of one namespace took. Thread- and task-safe: of two that are noted
    at the same moment one may be lost."""

    def __init__(self) -> None:
        self._last: list[float] = []
        self._total = 0
        self.percentile: float | None = None
        """The seconds that at most 5 % took longer than; None while too few are known."""

    def add(self, seconds: float) -> None:
        if self._total < REMEMBERED_READS:
            self._last.append(seconds)
        else:
            self._last[self._total % REMEMBERED_READS] = seconds
        self._total += 1
        if self._total >= MIN_READS and self._total % READS_PER_PERCENTILE == 0:
            last = sorted(self._last)
            self.percentile = last[math.ceil(len(last) * PERCENTILE) - 1]
