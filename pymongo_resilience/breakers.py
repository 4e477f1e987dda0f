"""Circuit breakers: stop sending to a server that keeps failing, then try it again carefully.

Each server has its own breaker with three states (Nygard, "Release It!", "Circuit Breaker"). While
closed, it counts calls. When enough of them have failed it opens, and refuses calls for a time.
Then it is half-open and allows a few probes. If all of them succeed it closes; if one fails it
opens again.
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

# A single success may be luck, and many probes at once could overload a server that is only just
# recovering.
PROBES = 3
"""How many probes may be in progress at once, and how many must succeed."""
RECHECK = 0.1
"""Seconds after which to ask again while all probes are in progress. They may end at any time, and
nothing signals that.
"""
CALLS, FAILURES = range(2)
"""Indexes of the counts."""


class State(enum.Enum):
    """The state of a breaker. Telemetry exports the value."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Snapshot(NamedTuple):
    """The state of a breaker at one instant."""

    state: State
    calls: int
    """Calls in the window; if the breaker is not closed, those that opened it."""
    failures: int
    """How many of these calls failed."""
    next_probe_in: float
    """Seconds; 0 if a call may be sent now."""


@dataclass(eq=False, repr=False)
class _Period:
    """The time from one change of a breaker's state to the next."""

    state: State
    since: float
    counts: RollingCounts
    opened_by: tuple[int, int]
    """The calls and failures that opened the breaker most recently."""
    # Permits are compared and hashed by identity (``eq=False``), so they can be keys.
    under_way: dict[Permit, float] = field(default_factory=dict)
    """The probes in progress, and when each may be replaced."""
    succeeded: int = 0
    """Number of probes that succeeded."""


@dataclass(slots=True, eq=False, repr=False)
class Permit:
    """Permission to send one call. Its owner reports the outcome once, from any thread.

    Reports of calls that began before the last change of state are ignored.
    """

    _breaker: CircuitBreaker
    period: _Period

    def report(self, outcome: Evidence) -> None:
        """Report the outcome of the call, as ``evidence()`` returns it."""
        self._breaker.ended(self, outcome)


class CircuitBreaker:
    """The circuit breaker of one server.

    Thread- and task-safe: a reentrant lock is held for short computations. ``changed`` is called
    without the lock when the breaker opens or closes, in the thread that reported the decisive
    call.
    """

    def __init__(
        self,
        config: Config,
        clock: Clock,
        changed: Callable[[Snapshot], object] = lambda _: None,
    ) -> None:
        self.config = config
        self._changed = changed
        self.now = clock.now
        """The clock. Called with the lock held, so that times do not run backwards."""
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Close the breaker, reset the counts, invalidate earlier permits, and replace the lock."""
        # Reentrant, because a finalizer or a signal handler that runs an operation may interrupt
        # the thread that holds the lock.
        self.lock = threading.RLock()
        with self.lock:
            self._become(State.CLOSED, self.now())

    def try_acquire(self) -> Permit | float:
        """Return a permit for one call, or the seconds after which to ask again."""
        with self.lock:
            now = self.now()
            wait = self._wait(now)
            if wait > 0:
                return wait
            permit = Permit(self, self._period)
            if self._period.state is State.HALF_OPEN:
                # A probe may never report, for example if its task is gone. It is replaced after
                # this time, but a later report still counts.
                self._period.under_way[permit] = now + self.config.circuit_breaker_open_s
            return permit

    def next_probe_in(self) -> float:
        """Return the seconds after which to ask for a permit; 0 if one is available now."""
        # The common case, without the lock.
        if self._period.state is State.CLOSED:
            return 0.0
        return self.snapshot().next_probe_in

    def snapshot(self) -> Snapshot:
        """Return the current state. An open breaker becomes half-open when its time is over, even
        without calls.
        """
        with self.lock:
            now = self.now()
            wait, period = self._wait(now), self._period
            closed = period.state is State.CLOSED
            # While the breaker is not closed, there are no new calls, so show those that opened it.
            calls, failures = period.counts.sums(now) if closed else period.opened_by
            return Snapshot(period.state, calls, failures, wait)

    def ended(self, permit: Permit, outcome: Evidence) -> None:
        """Record the outcome of a call. Called by permits."""
        with self.lock:
            period = permit.period
            # The state has changed since the permit was given, so the report says nothing about the
            # current period.
            if period is not self._period:
                return
            now = self.now()
            if period.state is State.CLOSED:
                self._count(outcome, now)
            else:
                self._count_probe(permit, outcome, now)
            change = None if self._period is period else self.snapshot()
        # Call listeners after the lock was released, because they may take their time or use the
        # breaker.
        if change is not None:
            self._changed(change)

    def _count(self, outcome: Evidence, now: float) -> None:
        counts, config = self._period.counts, self.config
        if outcome is Evidence.HEALTHY:
            # A success never opens the breaker, even if it is the call that reaches the minimum.
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
        # Another probe may have replaced this one by now. Its report still counts.
        period.under_way.pop(permit, None)
        if outcome is Evidence.UNHEALTHY:
            # Keep showing the calls that opened the breaker: the probe alone would show 1 failure
            # of 1 call.
            self._become(State.OPEN, now, period.opened_by)
        elif outcome is Evidence.HEALTHY:
            period.succeeded += 1
            if period.succeeded >= PROBES:
                self._become(State.CLOSED, now)

    def _wait(self, now: float) -> float:
        """Return seconds, as ``next_probe_in``. Makes an open breaker half-open when its time is
        over.
        """
        period = self._period
        if period.state is State.OPEN:
            remaining = period.since + self.config.circuit_breaker_open_s - now
            if remaining > 0:
                return remaining
            period = self._become(State.HALF_OPEN, now, period.opened_by)
        if period.state is State.CLOSED:
            return 0.0
        # Copy the dictionary, because a finalizer or signal handler of the same thread may change
        # it during the loop. (The lock is reentrant.)
        under_way = period.under_way.copy()
        period.under_way = {probe: due for probe, due in under_way.items() if due > now}
        if len(period.under_way) + period.succeeded < PROBES:
            return 0.0
        return min(RECHECK, min(period.under_way.values()) - now)

    def _become(self, state: State, now: float, opened_by: tuple[int, int] = (0, 0)) -> _Period:
        counts = RollingCounts(2, self.config.circuit_breaker_window_s, now)
        self._period = _Period(state, now, counts, opened_by)
        return self._period
