"""Client-side throttling: a client refuses itself part of what a server would reject.

Source: Google, Site Reliability Engineering, chapter "Handling Overload", "Client-Side Throttling".
docs/overload.md has the simulation that the numbers are from.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pymongo_resilience.option_types import LOW, NORMAL, PRIORITIES

if TYPE_CHECKING:
    from pymongo_resilience.clock import Clock

    from .backoff import Random

WINDOW_S = 3.0
"""Seconds whose requests count. Shorter forgets an overload before it is over, longer refuses what
the server could serve again."""
BUCKETS = 10
K = 2.0
"""The server is sent so many times what it accepts: of twice its capacity nothing is refused here,
since a rejection costs it little."""
LOW_K = 1.2
LOW_LOSS = 5.0
"""What low priority's K loses with each rejection per accepted request, while higher ones are sent
as well: with a fifth of the requests rejected, nothing of low priority is."""


class LoadShedder:
    """What one client sends to one server. Thread- and task-safe: a lock that is held for some
    additions, reentrant for what a signal handler or a finalizer does meanwhile.

    Higher priorities come first: of the K requests for each accepted one, lower ones have what is
    left. Each attempt that is not rejected counts as accepted from when it is sent.
    """

    __slots__ = ("_clock", "_lock", "_number", "_random", "_rejected", "_requests", "_sent")

    def __init__(self, clock: Clock, random: Random) -> None:
        self._clock = clock
        self._random = random
        self._lock = threading.RLock()
        self._number = 0
        self._requests = {priority: [0] * BUCKETS for priority in PRIORITIES}
        """Those that were refused here included."""
        self._sent = [0] * BUCKETS
        self._rejected = [0] * BUCKETS

    def admits(self, priority: str = NORMAL) -> bool:
        """Whether an attempt may be sent; it counts as one from here on."""
        with self._lock:
            slot = self._slot()
            # Where nothing was rejected, nothing is computed.
            admitted = not any(self._rejected) or self._random() >= self._refused(priority)
            self._requests[priority][slot] += 1
            self._sent[slot] += admitted
            return admitted

    def rejected(self) -> None:
        """The server rejected an attempt as overloaded."""
        with self._lock:
            self._rejected[self._slot()] += 1

    def refused(self, priority: str = NORMAL) -> float:
        """The part of that priority that would be refused now."""
        with self._lock:
            self._slot()
            return self._refused(priority) if any(self._rejected) else 0.0

    def reset_after_fork(self) -> None:
        """In a forked child: a lock that no thread of the parent's holds."""
        self._lock = threading.RLock()

    def _refused(self, priority: str) -> float:
        higher = sum(sum(self._requests[each]) for each in PRIORITIES[: PRIORITIES.index(priority)])
        requests, rejected = sum(self._requests[priority]), sum(self._rejected)
        accepted = max(0, sum(self._sent) - rejected)
        k = LOW_K if priority == LOW else K
        if priority == LOW and higher:
            k = max(0.0, LOW_K - LOW_LOSS * rejected / max(1, accepted))
        # One request more, so that something is always sent, unless higher ones are.
        most = requests + 1 if higher == 0 else max(1, requests)
        return min(1.0, max(0.0, (requests + higher - k * accepted) / most))

    def _slot(self) -> int:
        """That of the present, with nothing in it of an earlier time."""
        number = int(self._clock.now() / WINDOW_S * BUCKETS)
        for passed in range(max(self._number, number - BUCKETS) + 1, number + 1):
            slot = passed % BUCKETS
            for counts in (self._sent, self._rejected, *self._requests.values()):
                counts[slot] = 0
        self._number = max(self._number, number)
        return self._number % BUCKETS


class LoadShedders:
    """Those of one client, by server as ``"host:port"``. Thread- and task-safe."""

    def __init__(self, clock: Clock, random: Random) -> None:
        self._clock = clock
        self._random = random
        self._by_server: dict[str, LoadShedder] = {}

    def of(self, server: str) -> LoadShedder:
        try:
            return self._by_server[server]
        except KeyError:
            return self._by_server.setdefault(server, LoadShedder(self._clock, self._random))

    def rejected(self, server: str) -> None:
        """It rejected an attempt as overloaded."""
        self.of(server).rejected()

    def reset_after_fork(self) -> None:
        for each in list(self._by_server.values()):
            each.reset_after_fork()
