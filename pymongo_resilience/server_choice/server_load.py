"""Which of several servers an operation goes to: of two, the less loaded one.

A load is the number of operations in progress, or what their latencies make of it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from pymongo_resilience.clock import Clock, Random

DECAY = 5.0
"""After so many seconds without an answer a latency counts 1/e of what it was."""


class PeakEwma:
    """The latencies of one client's servers, by address, in seconds: each rises at once, and falls
    by decay. Thread- and task-safe: each is replaced as a whole, and of two that are noted at the
    same moment one may be lost. Source: Finagle, "Peak EWMA".
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._latencies: dict[str, tuple[float, float]] = {}

    def begin(self) -> float:
        """The time at which an attempt begins, for ``end``."""
        return self._clock.now()

    def end(self, address: str, began: float, *, succeeded: bool) -> None:
        """Note how long an attempt took. One that failed, maybe at once, never lowers it."""
        now = self._clock.now()
        seconds = now - began
        known, weight = self._decayed(address, now)
        if seconds < known or not known:
            if not succeeded:
                return
            seconds = known + (1 - weight) * seconds
        self._latencies[address] = seconds, now

    def loads(self, addresses: Collection[str], operations: Mapping[str, int]) -> dict[str, float]:
        """The square of the latency times what would be in progress with one operation more. With
        the latency alone, as the source has it, a hundred tasks sent a member that answers in 500
        ms up to 4 % of their reads. A server that never answered has no load while idle, else an
        infinite one."""
        now = self._clock.now()
        return {each: self._load(each, operations.get(each, 0), now) for each in addresses}

    def keep(self, addresses: Iterable[str]) -> None:
        """Forget all other servers."""
        for each in self._latencies.copy().keys() - set(addresses):
            self._latencies.pop(each, None)

    def _load(self, address: str, operations: int, now: float) -> float:
        if address not in self._latencies:
            return math.inf if operations else 0.0
        return self._decayed(address, now)[0] ** 2 * (operations + 1)

    def _decayed(self, address: str, now: float) -> tuple[float, float]:
        latency, noted = self._latencies.get(address, (0.0, -math.inf))
        weight = math.exp((noted - now) / DECAY)
        return latency * weight, weight


def choose(addresses: Sequence[str], loads: Mapping[str, float], random: Random) -> str:
    """The less loaded one of two servers that are picked at random from one or more, by their
    addresses. ``loads``: 0 where it has none. Source: Server Selection, "operationCount-based
    selection within the latency window"."""
    if len(addresses) == 1:
        return addresses[0]
    one = int(random() * len(addresses))
    other = int(random() * (len(addresses) - 1))
    first, second = addresses[one], addresses[other + (other >= one)]
    return second if loads.get(second, 0) < loads.get(first, 0) else first
