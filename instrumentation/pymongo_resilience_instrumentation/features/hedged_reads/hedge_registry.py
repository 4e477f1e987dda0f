"""What each client keeps for its hedged reads, and where a hedge can go."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pymongo_resilience.clock import Clock
from pymongo_resilience.hedging import Hedging
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import address_text
from pymongo_resilience_instrumentation.clients.by_client import ByClient

from .workers import TaskWorkers, ThreadWorkers

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.selection.client_limits import ClientLimits


class ClientHedges(Hedging):
    """Belongs to one client. Thread- and task-safe."""

    def __init__(self, clock: Clock, limits: ByClient[ClientLimits]) -> None:
        super().__init__(clock)
        self.threads = ThreadWorkers()
        self.tasks: set[asyncio.Task[object]] = set()
        self._limits = limits

    def workers(self, *, asynchronous: bool) -> ThreadWorkers | TaskWorkers:
        return TaskWorkers(self.tasks) if asynchronous else self.threads

    def may_go_elsewhere(self, loop: Any, server: str) -> bool:
        """Whether the loop's read could be sent to another server than this ``"host:port"``: by its
        read preference, in the latency window, with no breaker open."""
        breakers = self._limits.of(driver.retry_loop.client(loop)).breakers
        narrowed = None if breakers is None else breakers.without_open
        found = driver.selection.choices(loop, narrowed or (lambda servers: servers))
        return any(address_text(each) != server for each in found)

    def reset_after_fork(self) -> None:
        """In a forked child, which has neither their threads nor their tasks."""
        self.budget.reset_after_fork()
        self.threads.reset_after_fork()
        self.tasks.clear()
