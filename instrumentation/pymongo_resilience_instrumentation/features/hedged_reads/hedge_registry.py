"""The state that each client keeps for hedged reads."""

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
    """The hedged reads of one client. Thread- and task-safe."""

    def __init__(self, clock: Clock, limits: ClientLimits) -> None:
        self.budget = HedgeBudget(clock, lambda: limits.overloaded_at)
        self.won = 0
        """Number of hedges that were answered first."""
        self._latencies: dict[str, Latencies] = {}
        self.threads = ThreadWorkers()
        self.tasks: set[asyncio.Task[object]] = set()
        self._limits = limits

    def delay(self, wanted: int, namespace: str) -> float | None:
        """Return the seconds before an unanswered read is hedged, or None if that is not known yet.

        ``wanted`` is a Policy's ``hedge``: milliseconds, or True.
        """
        if wanted is not True:
            return wanted / 1000
        known = self._latencies.get(namespace)
        return None if known is None else known.percentile

    def observe(self, namespace: str, seconds: float) -> None:
        """Record how long the first try of a read took. Forgets the least recently used
        namespace.
        """
        latencies = self._latencies.pop(namespace, None) or Latencies()
        self._latencies[namespace] = latencies
        latencies.add(seconds)
        while len(self._latencies) > REMEMBERED_NAMESPACES:
            self._latencies.pop(next(iter(self._latencies.copy()), ""), None)

    def workers(self, *, asynchronous: bool) -> ThreadWorkers | TaskWorkers:
        return TaskWorkers(self.tasks) if asynchronous else self.threads

    def may_go_elsewhere(self, attempts: DriverAttempts, server: str) -> bool:
        """Return True if the read could be sent to another server than ``server``
        (``"host:port"``).

        Considers the read preference, the latency window and open circuit breakers.
        """
        breakers = self._limits.breakers
        narrowed = None if breakers is None else breakers.without_open
        candidates = driver.selection.choices(attempts, narrowed or (lambda servers: servers))
        return any(address_text(candidate) != server for candidate in candidates)

    def reset_after_fork(self) -> None:
        """Forget the threads and tasks in a forked child, which has neither."""
        self.budget.reset_after_fork()
        self.threads.reset_after_fork()
        self.tasks.clear()
