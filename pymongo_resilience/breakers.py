"""Circuit breakers: a server that keeps failing is left alone for a time, then tried with care.

One for each server, with three states (Nygard, "Release It!", "Circuit Breaker"). Closed, it
counts calls. Once enough of them have failed it is open, and lets none through for a time; then
half-open, it lets a few probes through. When all of them succeed it is closed; when one fails it is
open again.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from pymongo_resilience.clock import Clock, RollingCounts
from pymongo_resilience.config import Config
from pymongo_resilience.rules.failure import Evidence

PROBES = 3
"""How many may be under way at once, and how many must succeed."""
RECHECK = 0.1
"""Seconds after which it is worth asking again while all probes are under way: they may end at any
time, without an event."""
CALLS, FAILURES = range(2)


class State(enum.Enum):
    """The value is what telemetry shows."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Snapshot(NamedTuple):
    """A breaker at one instant."""

    state: State
    calls: int
    """In the window; of one that is not closed, those that have opened it."""
    failures: int
    """Among those calls."""
    next_probe_in: float
    """Seconds; zero where a call may be sent now."""


@dataclass(eq=False, repr=False)
class _Period:
    """A breaker from one change of its state to the next."""

    state: State
    since: float
    counts: RollingCounts
    opened_by: tuple[int, int]
    """The calls and failures that have opened it, when it was closed last."""
    under_way: dict[Permit, float] = field(default_factory=dict)
    """The probes, and when each is replaced."""
    succeeded: int = 0
    """How many probes have."""


@dataclass(slots=True, eq=False, repr=False)
class Permit:
    """Leave to send one call, whose owner reports the outcome once, from any thread.

    Calls from before a change of state do not count.
    """

    _breaker: CircuitBreaker
    period: _Period

    def report(self, outcome: Evidence) -> None:
        """What came of it, as ``evidence()`` has it."""
        self._breaker.ended(self, outcome)


class CircuitBreaker:
    """Thread- and task-safe: a reentrant lock, held for an addition. ``changed`` is called without
    it when the breaker opens or closes, by the thread that reported the decisive call."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        changed: Callable[[Snapshot], object] = lambda _: None,
    ) -> None:
        self.config = config
        self._changed = changed
        self.now = clock.now
        """Called with the lock held, so that it does not run backwards."""
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Closed, with nothing counted, and a new lock; no permit given before counts any more."""
        self.lock = threading.RLock()
        with self.lock:
            self._become(State.CLOSED, self.now())

    def try_acquire(self) -> Permit | float:
        """Leave to send one call, or the seconds after which it is worth asking again.

        A probe that does not report, because it hangs or its task is gone, is replaced after the
        time that the breaker was open. Its report still counts if it comes later.
        """
        with self.lock:
            now = self.now()
            wait = self._wait(now)
            if wait > 0:
                return wait
            permit = Permit(self, self._period)
            if self._period.state is State.HALF_OPEN:
                self._period.under_way[permit] = now + self.config.circuit_breaker_open_s
            return permit

    def next_probe_in(self) -> float:
        """Seconds after which it is worth asking for a permit; zero where there is one now."""
        if self._period.state is State.CLOSED:
            return 0.0
        return self.snapshot().next_probe_in

    def snapshot(self) -> Snapshot:
        """Half-open as soon as the time is over, whether there are calls or not."""
        with self.lock:
            now = self.now()
            wait, period = self._wait(now), self._period
            closed = period.state is State.CLOSED
            calls, failures = period.counts.sums(now) if closed else period.opened_by
            return Snapshot(period.state, calls, failures, wait)

    def ended(self, permit: Permit, outcome: Evidence) -> None:
        """What became of a call; permits call this."""
        with self.lock:
            period = permit.period
            if period is not self._period:
                return
            now = self.now()
            if period.state is State.CLOSED:
                self._count(outcome, now)
            else:
                self._count_probe(permit, outcome, now)
            change = None if self._period is period else self.snapshot()
        if change is not None:
            self._changed(change)

    def _count(self, outcome: Evidence, now: float) -> None:
        counts, config = self._period.counts, self.config
        if outcome is Evidence.HEALTHY:
            # It opens nothing, not even as the last call of the minimum.
            counts.add(now, CALLS)
        elif outcome is Evidence.UNHEALTHY:
            counts.add(now, CALLS, FAILURES)
            calls, failures = counts.sums(now)
            rate = failures / calls
            enough = calls >= config.circuit_breaker_minimum_calls
            if enough and rate >= config.circuit_breaker_failure_rate:
                self._become(State.OPEN, now, (calls, failures))

    def _count_probe(self, permit: Permit, outcome: Evidence, now: float) -> None:
        period = self._period
        period.under_way.pop(permit, None)
        if outcome is Evidence.UNHEALTHY:
            self._become(State.OPEN, now, period.opened_by)
        elif outcome is Evidence.HEALTHY:
            period.succeeded += 1
            if period.succeeded >= PROBES:
                self._become(State.CLOSED, now)

    def _wait(self, now: float) -> float:
        """Seconds, like ``next_probe_in``. An open breaker whose time is over becomes half-open."""
        period = self._period
        if period.state is State.OPEN:
            left = period.since + self.config.circuit_breaker_open_s - now
            if left > 0:
                return left
            period = self._become(State.HALF_OPEN, now, period.opened_by)
        if period.state is State.CLOSED:
            return 0.0
        # A copy: the same thread may come in between, in a finalizer or a signal handler.
        under_way = period.under_way.copy()
        period.under_way = {each: due for each, due in under_way.items() if due > now}
        if len(period.under_way) + period.succeeded < PROBES:
            return 0.0
        return min(RECHECK, min(period.under_way.values()) - now)

    def _become(self, state: State, now: float, opened_by: tuple[int, int] = (0, 0)) -> _Period:
        counts = RollingCounts(2, self.config.circuit_breaker_window_s, now)
        self._period = _Period(state, now, counts, opened_by)
        return self._period
