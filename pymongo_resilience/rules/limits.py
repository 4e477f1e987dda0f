"""What one client may send: its load shedders, by server, and its retry budget.

Load shedding is client-side throttling: a client refuses itself part of what a server would reject.
Source: Google, Site Reliability Engineering, chapter "Handling Overload", "Client-Side Throttling".
bench/overload.md has the simulation that the numbers are from.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pymongo_resilience.clock import Clock, Random, RollingCounts
from pymongo_resilience.option_types import LOW, NORMAL, PRIORITIES

from .failure import Failure, RetryReason, Stage

if TYPE_CHECKING:
    from .budget import RetryBudget

WINDOW_S = 3.0
"""Seconds whose requests count. Shorter forgets an overload before it is over, longer refuses what
the server could serve again."""
K = 2.0
"""The server is sent so many times what it accepts; a rejection costs it little."""
LOW_K = 1.2
LOW_LOSS = 5.0
"""What low priority's K loses with each rejection per accepted request, while higher ones are sent
as well: with a fifth of the requests rejected, nothing of low priority is."""
SENT, REJECTED = len(PRIORITIES), len(PRIORITIES) + 1
"""The counts after those of each priority's requests."""


class LoadShedder:
    """What one client sends to one server. Thread- and task-safe: a reentrant lock. Of the K
    requests for each accepted one, lower priorities have what higher ones leave. Each attempt that
    is not rejected counts as accepted from when it is sent."""

    def __init__(self, clock: Clock, random: Random) -> None:
        self._clock = clock
        self._random = random
        self._lock = threading.RLock()
        self._counts = RollingCounts(len(PRIORITIES) + 2, WINDOW_S, 0.0)

    def admits(self, priority: str = NORMAL) -> bool:
        """Whether an attempt may be sent; it counts as one from here on."""
        number = PRIORITIES.index(priority)
        with self._lock:
            now = self._clock.now()
            refused = self._refused(number, now)
            admitted = refused is None or self._random() >= refused
            # What is refused here is a request, too.
            self._counts.add(now, *((number, SENT) if admitted else (number,)))
            return admitted

    def rejected(self) -> None:
        """The server rejected an attempt as overloaded."""
        with self._lock:
            self._counts.add(self._clock.now(), REJECTED)

    def refused(self, priority: str = NORMAL) -> float:
        """The part of that priority that would be refused now."""
        with self._lock:
            return self._refused(PRIORITIES.index(priority), self._clock.now()) or 0.0

    def reset_after_fork(self) -> None:
        """In a forked child: a lock that no thread of the parent's holds."""
        self._lock = threading.RLock()

    def _refused(self, priority: int, now: float) -> float | None:
        """None where nothing was rejected."""
        *by_priority, sent, rejected = self._counts.sums(now)
        if not rejected:
            return None
        higher, requests = sum(by_priority[:priority]), by_priority[priority]
        accepted = max(0, sent - rejected)
        k = K
        if PRIORITIES[priority] == LOW:
            loss = LOW_LOSS * rejected / max(1, accepted) if higher else 0.0
            k = max(0.0, LOW_K - loss)
        # One request more, so that something is always sent, unless higher ones are.
        most = requests + 1 if higher == 0 else max(1, requests)
        return min(1.0, max(0.0, (requests + higher - k * accepted) / most))


class Limits:
    """The limits of one client; each may be missing. Thread- and task-safe, as they are.

    Asking whether something may be sent spends nothing; ``spend`` pays for one retry, once it is
    decided.
    """

    def __init__(
        self,
        budget: RetryBudget | None = None,
        shedders: Mapping[str, LoadShedder] | None = None,
    ) -> None:
        """``shedders``: by server, as ``"host:port"``."""
        self.budget = budget
        self.shedders = shedders

    def spend(self, failure: Failure) -> bool:
        """Pay for the retry that follows; False where another thread had the last token."""
        return self.budget is None or self.budget.spend(failure)

    def failed(self, failure: Failure, *, retried: bool) -> None:
        """An attempt failed; ``retried``: not the first one of its command."""
        if self.budget is not None and failure.reason is not RetryReason.LOAD_SHED:
            self.budget.failed(failure, retried=retried)
        rejected = failure.overloaded and failure.stage is not Stage.NOT_SENT
        if rejected and self.shedders is not None and failure.server is not None:
            self.shedders[failure.server].rejected()

    def succeeded(self, *, retried: bool) -> None:
        """A command was answered well, at its first attempt or at a later one."""
        if self.budget is not None and (retried or not self.budget.full):
            self.budget.succeeded(retried=retried)
