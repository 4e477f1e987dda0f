"""Circuit breakers: a server that keeps failing is left alone for a time, then tried with care.

One for each server. The states are in breaker_states.py; here is what makes them safe to share.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from pymongo_resilience.breaker_states import Closed, HalfOpen, Open, Permit, Refusal, State

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping

    from pymongo_resilience.clock import Clock
    from pymongo_resilience.health import Evidence

PROBES = 3


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """The same for all breakers. Immutable."""

    failure_rate: float = 0.5
    """The part of the calls, above 0 and up to 1, whose failure opens the breaker."""
    window: float = 10.0
    """Seconds over which they are counted; it moves on by a tenth of its length."""
    minimum_calls: int = 20
    """Fewer in the window say nothing."""
    open_for: float = 5.0
    """Seconds until the first probe, and until a probe of which nothing is heard is replaced."""
    probes: int = PROBES
    """How many may be under way at once, and how many must succeed."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A breaker at one instant."""

    state: State
    calls: int
    """In the window; zero unless it is closed."""
    failures: int
    """Among those calls."""
    next_probe_in: float
    """Seconds; zero where a call may be sent now."""


class CircuitBreaker:
    """Thread- and task-safe: a lock that is held for an addition, never across an ``await``."""

    __slots__ = ("_state", "lock", "now", "settings")

    def __init__(self, settings: BreakerSettings, clock: Clock) -> None:
        self.settings = settings
        self.now = clock.now
        """Asked with the lock held, so that it does not run backwards."""
        self.start_afresh()

    def start_afresh(self) -> None:
        """Closed, with nothing counted; no permit given before counts any more.

        For a forked child: the lock is a new one, that no thread of the parent's holds.
        """
        self.lock = threading.Lock()
        self._state: Closed | Open | HalfOpen = Closed(self, self.now())

    def try_acquire(self) -> Permit | Refusal:
        """Leave to send one call, or how long there is none. A permit must be ended."""
        state = self._state
        if isinstance(state, Closed):
            return state.permit
        with self.lock:
            now = self.now()
            return self._at(now).acquire(now)

    def allows(self) -> bool:
        """Whether there would be a permit. Takes none: any number may be told so at once."""
        return self.next_probe_in() <= 0

    def next_probe_in(self) -> float:
        """Seconds after which it is worth asking for a permit; zero where there is one now."""
        if isinstance(self._state, Closed):
            return 0.0
        return self.snapshot().next_probe_in

    @property
    def state(self) -> State:
        """Half-open as soon as the time is over, whether anybody calls or not."""
        return self.snapshot().state

    def snapshot(self) -> Snapshot:
        """For status and metrics."""
        with self.lock:
            now = self.now()
            state = self._at(now)
            calls, failures = state.counts(now) if isinstance(state, Closed) else (0, 0)
            return Snapshot(state.name, calls, failures, state.wait(now))

    def ended(self, permit: Permit, evidence: Evidence) -> None:
        """What became of a call; permits call this."""
        with self.lock:
            if permit.state is self._state:
                self._state = permit.state.after(permit, evidence, self.now())

    def _at(self, now: float) -> Closed | Open | HalfOpen:
        if isinstance(self._state, Open) and self._state.wait(now) <= 0:
            self._state = HalfOpen(self)
        return self._state


Server = TypeVar("Server", bound="Hashable")


class Breakers(Generic[Server]):
    """The breakers of one client, made as its servers are called. Thread- and task-safe.

    The mapping is replaced, never changed, so that looking a server up needs no lock.
    """

    def __init__(self, settings: BreakerSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._by_server: Mapping[Server, CircuitBreaker] = {}

    def of(self, server: Server) -> CircuitBreaker:
        known = self._by_server.get(server)
        return self._add(server) if known is None else known

    def keep(self, servers: Collection[Server]) -> None:
        """Forget the others: they have left. One that returns begins anew."""
        with self._lock:
            kept = {each: it for each, it in self._by_server.items() if each in servers}
            self._by_server = kept

    def snapshots(self) -> dict[Server, Snapshot]:
        return {server: breaker.snapshot() for server, breaker in self._by_server.items()}

    def start_afresh(self) -> None:
        """In a forked child: see CircuitBreaker."""
        self._lock = threading.Lock()
        for breaker in self._by_server.values():
            breaker.start_afresh()

    def _add(self, server: Server) -> CircuitBreaker:
        with self._lock:
            known = self._by_server.get(server)
            if known is None:
                known = CircuitBreaker(self._settings, self._clock)
                self._by_server = {**self._by_server, server: known}
            return known
