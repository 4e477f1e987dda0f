"""What is kept for a client that cannot carry it: found by its identity, gone with it. Its retry
budget, for one.

Source of a client's own ``adaptiveRetries``: Client Backpressure, "Token Bucket".
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, MutableMapping
from typing import Any, Generic, TypeVar

from pymongo_resilience.clock import Clock
from pymongo_resilience.config import OFF, TOKENS
from pymongo_resilience.rules.budget import RatioBudget, RetryBudget, TokenBucket

T = TypeVar("T")


def keep(values: MutableMapping[int, T], client: object, made: T) -> T:
    """What ``values`` has for the client; ``made`` where it has nothing yet. Clients of the same
    servers are equal, so no weak mapping would do."""
    key = id(client)
    kept = values.setdefault(key, made)
    if kept is made:
        weakref.finalize(client, values.pop, key, None).atexit = False
    return kept


class ByClient(Generic[T]):
    """A value for each client, made when it is first asked for. Thread- and task-safe. Each has a
    ``reset_after_fork``."""

    def __init__(self, make: Callable[[object], T]) -> None:
        self._make = make
        self._values: dict[int, T] = {}

    def of(self, client: object) -> T:
        """The client's; one that was made before ``instrument()`` gets its own here."""
        found = self._values.get(id(client))
        return keep(self._values, client, self._make(client)) if found is None else found

    def known(self, client: object) -> T | None:
        """None where nobody has asked for the client's yet."""
        return self._values.get(id(client))

    def all(self) -> list[T]:
        return list(self._values.values())

    def reset_after_fork(self) -> None:
        each: Any
        for each in self.all():
            each.reset_after_fork()


class Budgets:
    """One for each client, or None; holds no client alive. Thread- and task-safe.

    ``kind``: of clients that do not choose; ``chosen``: what clients chose, by their identity.
    """

    def __init__(self, kind: str, clock: Clock, chosen: dict[int, bool] | None = None) -> None:
        self._kind = kind
        self._clock = clock
        self.chosen: dict[int, bool] = {} if chosen is None else chosen
        self.incomplete: set[RetryBudget] = set()
        """Those that are not full: of the others, successes need not be reported."""
        self._budgets: dict[int, RetryBudget | None] = {}

    def of(self, client: object) -> RetryBudget | None:
        """The client's budget; one that was made before ``instrument()`` gets its own here."""
        try:
            return self._budgets[id(client)]
        except KeyError:
            return self.open(client, self.chosen.get(id(client)))

    def open(self, client: object, adaptive: bool | None) -> RetryBudget | None:
        """For a client that is being made, with what it says itself."""
        kind = self._kind
        if adaptive is not None:
            keep(self.chosen, client, adaptive)
            kind = TOKENS if adaptive else OFF
        made: RetryBudget | None = None
        if kind == TOKENS:
            made = TokenBucket(incomplete=self.incomplete)
        elif kind != OFF:
            made = RatioBudget(incomplete=self.incomplete, clock=self._clock)
        kept = keep(self._budgets, client, made)
        if kept is not None and kept is made:
            weakref.finalize(client, self.incomplete.discard, kept).atexit = False
        return kept

    def succeeded(self, client: object) -> None:
        """At its first attempt; to be asked where ``incomplete`` has any."""
        budget = self._budgets.get(id(client))
        if budget is not None and budget in self.incomplete:
            budget.succeeded(retried=False)

    def reset_after_fork(self) -> None:
        """In a forked child: a thread that is no more may have held a lock."""
        for budget in list(self._budgets.values()):
            if budget is not None:
                budget.reset_after_fork()
