"""The three states of a circuit breaker (Nygard, "Release It!", "Circuit Breaker").

Closed, it counts. Once enough calls have failed it is open, and lets none through for a time; then
half-open, it lets a few probes through. When all of them succeed it is closed; when one fails it is
open again. A state returns the one that follows it; breaker.py locks.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from .failure_window import FailureWindow
from .health import Evidence

if TYPE_CHECKING:
    from .breaker import CircuitBreaker

RECHECK = 0.1
"""Seconds after which it is worth asking again while all probes are under way: they may end at any
time, without an event."""


class State(enum.Enum):
    """The value is what telemetry shows."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Refusal(NamedTuple):
    """Nothing may be sent now."""

    next_probe_in: float
    """Seconds after which it is worth asking again; more than zero."""


class Holder(Protocol):
    """The owner of a permit."""

    permit: Permit | None


class Permit:
    """Leave to send one call; its owner reports the outcome, from any thread.

    A probe counts once. Once the breaker has changed its state, earlier calls do not count.
    """

    __slots__ = ("_breaker", "spent", "state")

    def __init__(self, breaker: CircuitBreaker, state: Closed | HalfOpen) -> None:
        self._breaker = breaker
        self.state = state
        self.spent = False
        """Of a probe: its outcome was reported."""

    def success(self) -> None:
        self._breaker.ended(self, Evidence.HEALTHY)

    def report(self, evidence: Evidence) -> None:
        """What came of it, as ``health.evidence()`` has it."""
        self._breaker.ended(self, evidence)


class SharedPermit(Permit):
    """Of a closed breaker, for all calls: it makes no difference which of them reports.

    Its success is what a healthy server costs, so that takes the shortest way.
    """

    __slots__ = ("_window",)

    def __init__(self, breaker: CircuitBreaker, state: Closed, window: FailureWindow) -> None:
        super().__init__(breaker, state)
        self._window = window

    def success(self) -> None:
        # Where the breaker is no longer closed, this window is not used.
        with self._breaker.lock:
            self._window.succeeded(self._breaker.now())


class Closed:
    """Counts, and lets everything through."""

    __slots__ = ("_breaker", "_window", "permit")
    name = State.CLOSED

    def __init__(self, breaker: CircuitBreaker, now: float) -> None:
        self._breaker = breaker
        self._window = FailureWindow(breaker.settings.window, now)
        self.permit = SharedPermit(breaker, self, self._window)

    def acquire(self, now: float, holder: Holder | None) -> Permit:  # noqa: ARG002 - the states' common shape
        return self.permit

    def wait(self, now: float) -> float:  # noqa: ARG002 - the states' common shape
        return 0.0

    def counts(self, now: float) -> tuple[int, int]:
        """Calls in the window, and failures among them."""
        return self._window.counts(now)

    def after(self, permit: Permit, evidence: Evidence, now: float) -> Closed | Open:  # noqa: ARG002 - the states' common shape
        if evidence is Evidence.HEALTHY:
            # It opens nothing, not even as the last call of the minimum.
            self._window.succeeded(now)
        elif evidence is Evidence.UNHEALTHY:
            self._window.failed(now)
            settings = self._breaker.settings
            calls, failures = self._window.counts(now)
            if calls >= settings.minimum_calls and failures / calls >= settings.failure_rate:
                return Open(self._breaker, now, (calls, failures))
        return self


class Open:
    """Lets nothing through until its time is over."""

    __slots__ = ("_opened_by", "_until")
    name = State.OPEN

    def __init__(self, breaker: CircuitBreaker, now: float, opened_by: tuple[int, int]) -> None:
        self._until = now + breaker.settings.open_for
        self._opened_by = opened_by

    def counts(self, now: float) -> tuple[int, int]:  # noqa: ARG002 - the states' common shape
        """Calls and failures that have opened it, when it was closed last."""
        return self._opened_by

    def wait(self, now: float) -> float:
        return self._until - now

    def acquire(self, now: float, holder: Holder | None) -> Refusal:  # noqa: ARG002 - as above
        return Refusal(self.wait(now))


class HalfOpen:
    """Lets as many probes through as must succeed, and no more.

    A probe that does not report, because it hangs or its task is gone, is replaced after the time
    that the breaker was open. Its report still counts if it comes later.
    """

    __slots__ = ("_breaker", "_opened_by", "_succeeded", "_under_way")
    name = State.HALF_OPEN

    def __init__(self, breaker: CircuitBreaker, opened_by: tuple[int, int]) -> None:
        self._breaker = breaker
        self._opened_by = opened_by
        self._under_way: dict[Permit, float] = {}
        """And when each is replaced."""
        self._succeeded = 0

    def counts(self, now: float) -> tuple[int, int]:  # noqa: ARG002 - the states' common shape
        """As of the open one before it."""
        return self._opened_by

    def wait(self, now: float) -> float:
        # A copy: the same thread may come in between, in a finalizer or a signal handler.
        under_way = self._under_way.copy()
        self._under_way = {each: due for each, due in under_way.items() if due > now}
        if len(self._under_way) + self._succeeded < self._breaker.settings.probes:
            return 0.0
        return min(RECHECK, min(self._under_way.values()) - now)

    def acquire(self, now: float, holder: Holder | None) -> Permit | Refusal:
        wait = self.wait(now)
        if wait > 0:
            return Refusal(wait)
        permit = Permit(self._breaker, self)
        if holder is not None:
            holder.permit = permit
        self._under_way[permit] = now + self._breaker.settings.open_for
        return permit

    def after(self, permit: Permit, evidence: Evidence, now: float) -> Closed | Open | HalfOpen:
        self._under_way.pop(permit, None)
        if permit.spent:
            return self
        permit.spent = True
        if evidence is Evidence.UNHEALTHY:
            return Open(self._breaker, now, self._opened_by)
        if evidence is Evidence.HEALTHY:
            self._succeeded += 1
            if self._succeeded >= self._breaker.settings.probes:
                return Closed(self._breaker, now)
        return self
