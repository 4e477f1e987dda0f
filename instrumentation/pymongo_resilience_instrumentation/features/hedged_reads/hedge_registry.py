"""What each client keeps for its hedged reads, and where a hedge can go."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pymongo_resilience.clock import Clock
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import address_text

from .hedge_budget import HedgeBudget, Latencies
from .workers import TaskWorkers, ThreadWorkers

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.driver.attempts import DriverAttempts

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.selection.client_limits import ClientLimits


REMEMBERED_NAMESPACES = 256


class ClientHedges:
    """Belongs to one client. Thread- and task-safe."""

    def __init__(self, clock: Clock, limits: ClientLimits) -> None:
        self.budget = HedgeBudget(clock, lambda: limits.overloaded_at)
        self.won = 0
        """How many hedges have answered first."""
        self._latencies: dict[str, Latencies] = {}
        self.threads = ThreadWorkers()
        self.tasks: set[asyncio.Task[object]] = set()
        self._limits = limits

    def delay(self, wanted: int, namespace: str) -> float | None:
        """Seconds before an unanswered read is hedged; None while that is not known. ``wanted``: as
        a Policy's ``hedge``, milliseconds or True."""
        if wanted is not True:
            return wanted / 1000
        known = self._latencies.get(namespace)
        return None if known is None else known.percentile

    def observe(self, namespace: str, seconds: float) -> None:
        """Note the seconds to the answer of a read's first try; forgets the namespace used longest
        ago."""
        known = self._latencies.pop(namespace, None) or Latencies()
        self._latencies[namespace] = known
        known.add(seconds)
        while len(self._latencies) > REMEMBERED_NAMESPACES:
            self._latencies.pop(next(iter(self._latencies.copy()), ""), None)

    def workers(self, *, asynchronous: bool) -> ThreadWorkers | TaskWorkers:
        return TaskWorkers(self.tasks) if asynchronous else self.threads

    def may_go_elsewhere(self, attempts: DriverAttempts, server: str) -> bool:
        """Whether the read could be sent to another server than this ``"host:port"``: by its
        read preference, in the latency window, with no breaker open."""
        breakers = self._limits.breakers
        narrowed = None if breakers is None else breakers.without_open
        found = driver.selection.choices(attempts, narrowed or (lambda servers: servers))
        return any(address_text(each) != server for each in found)

    def reset_after_fork(self) -> None:
        """In a forked child, which has neither their threads nor their tasks."""
        self.budget.reset_after_fork()
        self.threads.reset_after_fork()
        self.tasks.clear()
