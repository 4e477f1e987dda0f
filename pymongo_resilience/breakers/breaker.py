"""Circuit breakers: a server that keeps failing is left alone for a time, then tried with care.

One for each server. The states are in breaker_states.py; here is what makes them safe to share.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from .breaker_states import Closed, HalfOpen, Open, Permit, Refusal, State

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Mapping

    from pymongo_resilience.clock import Clock

    from .breaker_states import Holder
    from .health import Evidence

PROBES = 3


class BreakerSettings(NamedTuple):
    """The same for all breakers. Immutable."""

    failure_rate: float = 0.5
    """The part of the calls, above 0 and up to 1, whose failure opens the breaker."""
    window: float = 10.0
    """Seconds over which they are counted; it moves on by a tenth of its length."""
    minimum_calls: int = 20
    """With fewer in the window it does not open."""
    open_for: float = 5.0
    """Seconds until the first probe, and until a probe without a report is replaced."""
    probes: int = PROBES
    """How many may be under way at once, and how many must succeed."""


class Snapshot(NamedTuple):
    """A breaker at one instant."""

    state: State
    calls: int
    """In the window; of one that is not closed, those that have opened it."""
    failures: int
    """Among those calls."""
    next_probe_in: float
    """Seconds; zero where a call may be sent now."""


class CircuitBreaker:
    """Thread- and task-safe: a lock that is held for an addition, never across an ``await``.
    Reentrant, for what a signal handler or a finalizer of the application's does meanwhile.

    ``changed`` is called when it opens and when it closes, without the lock, by the thread that
    reported the decisive call; it becomes half-open as time passes.
    """

    __slots__ = ("_changed", "_state", "lock", "now", "settings")

    def __init__(
        self,
        settings: BreakerSettings,
        clock: Clock,
        changed: Callable[[Snapshot], object] = lambda _: None,
    ) -> None:
        self.settings = settings
        self._changed = changed
        self.now = clock.now
        """Asked with the lock held, so that it does not run backwards."""
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Closed, with nothing counted; no permit given before counts any more.

        For a forked child: the lock is a new one, that no thread of the parent's holds.
        """
        self.lock = threading.RLock()
        self._state: Closed | Open | HalfOpen = Closed(self, self.now())

    def try_acquire(self, holder: Holder | None = None) -> Permit | Refusal:
        """Leave to send one call, or how long there is none. A permit must be ended.

        A probe's is given to ``holder`` before it counts: then it can be ended even where an
        exception of a signal handler strikes on the way back.
        """
        state = self._state
        if isinstance(state, Closed):
            return state.permit
        with self.lock:
            now = self.now()
            return self._at(now).acquire(now, holder)

    def next_probe_in(self) -> float:
        """Seconds after which it is worth asking for a permit; zero where there is one now."""
        if isinstance(self._state, Closed):
            return 0.0
        return self.snapshot().next_probe_in

    def snapshot(self) -> Snapshot:
        """For status and metrics: half-open as soon as the time is over, whether there are calls or
        not."""
        with self.lock:
            now = self.now()
            return _snapshot(self._at(now), now)

    def ended(self, permit: Permit, evidence: Evidence) -> None:
        """What became of a call; permits call this."""
        with self.lock:
            before = self._state
            if permit.state is not before:
                return
            now = self.now()
            after = self._state = permit.state.after(permit, evidence, now)
            change = None if after is before else _snapshot(after, now)
        if change is not None:
            self._changed(change)

    def _at(self, now: float) -> Closed | Open | HalfOpen:
        if isinstance(self._state, Open) and self._state.wait(now) <= 0:
            self._state = HalfOpen(self, self._state.counts(now))
        return self._state


def _snapshot(state: Closed | Open | HalfOpen, now: float) -> Snapshot:
    return Snapshot(state.name, *state.counts(now), state.wait(now))


Server = TypeVar("Server", bound="Hashable")


class Breakers(Generic[Server]):
    """The breakers of one client, made as its servers are called. Thread- and task-safe.

    The mapping is replaced, never changed, so that looking a server up needs no lock.
    ``changed`` is called as a breaker's own, with the server.
    """

    def __init__(
        self,
        settings: BreakerSettings,
        clock: Clock,
        changed: Callable[[Server, Snapshot], object] = lambda *_: None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._changed = changed
        self._lock = threading.RLock()
        self._by_server: Mapping[Server, CircuitBreaker] = {}

    def known(self, server: Server) -> CircuitBreaker | None:
        """None for one that no call was meant for yet."""
        return self._by_server.get(server)

    def of(self, server: Server) -> CircuitBreaker:
        return self._by_server.get(server) or self._add(server)

    def keep(self, servers: Collection[Server]) -> None:
        """Forget the others: they have left. One that returns begins again."""
        with self._lock:
            kept = {each: it for each, it in self._by_server.items() if each in servers}
            self._by_server = kept

    def refusing(self) -> dict[Server, float]:
        """The servers to which nothing may be sent now, with the seconds after which it is worth
        asking again; empty where all is well."""
        found = {}
        # On the way of every selection: a comprehension takes half as long again.
        for server, breaker in self._by_server.items():
            wait = breaker.next_probe_in()
            if wait > 0:
                found[server] = wait
        return found

    def snapshots(self) -> dict[Server, Snapshot]:
        return {server: breaker.snapshot() for server, breaker in self._by_server.items()}

    def reset_after_fork(self) -> None:
        """In a forked child: see CircuitBreaker."""
        self._lock = threading.RLock()
        for breaker in self._by_server.values():
            breaker.reset_after_fork()

    def _add(self, server: Server) -> CircuitBreaker:
        with self._lock:
            known = self._by_server.get(server)
            if known is None:
                changed = partial(self._changed, server)
                known = CircuitBreaker(self._settings, self._clock, changed)
                self._by_server = {**self._by_server, server: known}
            return known
