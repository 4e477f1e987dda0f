"""pymongo's own account of timeouts: the one in force, and what is left of it."""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import NamedTuple

from pymongo import _csot

from pymongo_resilience.clock import SHORTEST
from pymongo_resilience.closing import keep_variables
from pymongo_resilience.timeout_source import TimeoutSource

# Where the self-check misses one of these, what needs it stays off.
TIMEOUT: ContextVar[float | None] = getattr(_csot, "TIMEOUT", ContextVar("TIMEOUT", default=None))
"""Its length; see ``active_timeout``."""
DEADLINE: ContextVar[float] = getattr(_csot, "DEADLINE", ContextVar("DEADLINE", default=math.inf))
"""When it ends, on the clock of ``now``; infinite without one."""
RTT: ContextVar[float] = getattr(_csot, "RTT", ContextVar("RTT", default=0.0))
"""The minimum round-trip time of the server selected under it, in seconds: the driver sets it with
each selection under a timeout."""


def now() -> float:
    """Seconds on the clock of the driver's deadlines."""
    return time.monotonic()


MODULE = _csot
WRITE_CONCERN = "apply_write_concern"
"""The driver's function that gives a command its write concern, without ``wtimeout`` under a
timeout."""


active_timeout = TIMEOUT.get
"""Seconds that ``pymongo.timeout`` or a client's timeoutMS gives; 0 disables the timeout."""
min_rtt = RTT.get
"""The minimum round-trip time of the selected server, under a deadline; else 0."""


def remaining() -> float | None:
    """Seconds until the driver's deadline; None without one."""
    return DEADLINE.get() - time.monotonic() if TIMEOUT.get() else None


class Timeout(NamedTuple):
    """A length and an end: a timeout that has begun. Immutable, so thread- and task-safe."""

    seconds: float | None
    """The whole of it; 0 disables the timeout, None is no timeout."""
    ends: float
    """On the driver's clock, ``now``."""

    @classmethod
    def begin(cls, seconds: float) -> Timeout:
        """From now on, but no longer than the one in force."""
        return cls.from_now(seconds).until(DEADLINE.get())

    @classmethod
    def from_now(cls, seconds: float) -> Timeout:
        """From now on, whatever is in force."""
        return cls(seconds, now() + seconds if seconds else math.inf)

    @classmethod
    def active(cls) -> Timeout:
        return cls(TIMEOUT.get(), DEADLINE.get())

    def until(self, end: float) -> Timeout:
        """It, but no longer than to ``end``."""
        return Timeout(self.seconds, min(self.ends, end))

    def within_others(self) -> Timeout:
        """It, or the one in force where that ends sooner."""
        outer = Timeout.active()
        return self if self.ends <= outer.ends else outer

    def resume(self, source: TimeoutSource = TimeoutSource.NONE) -> ActiveTimeout:
        """Return what activates the rest of it, in place of the active one, even if that ends
        sooner."""
        return ActiveTimeout(self.seconds, self.ends, source)


class ActiveTimeout(AbstractContextManager[None]):
    """A timeout that the library activates in one thread or task; ``__exit__`` may be repeated."""

    __slots__ = ("_seconds", "before", "ends", "source")

    def __init__(
        self,
        seconds: float | None,
        ends: float | None = None,
        source: TimeoutSource = TimeoutSource.NONE,
    ) -> None:
        """Without ``ends`` it begins now, and ends with the active one at the latest."""
        if ends is None:
            ends = DEADLINE.get()
            if seconds:
                ends = min(ends, time.monotonic() + seconds)
        # A new object, even if the application's own timeout has the same length: see ``is_ours``.
        self._seconds = None if seconds is None else seconds + 0.0
        self.ends = ends
        """On the driver's clock."""
        self.source = source
        """Who set it; NONE if that is of no consequence inside."""
        self.before: tuple[float | None, float, float, ActiveTimeout | None] | None = None
        """The values that it replaced; None while it is not active."""

    def __enter__(self) -> None:
        self.before = TIMEOUT.get(), DEADLINE.get(), RTT.get(), _INNERMOST.get()
        # First here and last in __exit__: a signal handler may raise in between.
        _INNERMOST.set(self)
        TIMEOUT.set(self._seconds)
        DEADLINE.set(self.ends)

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        before = self.before
        # A coroutine that is closed from another context has left nothing there.
        if before is None or not (_INNERMOST.get() is self or _is_active(self)):
            return
        if kind is GeneratorExit:
            keep_variables()
        TIMEOUT.set(before[0])
        DEADLINE.set(before[1])
        RTT.set(before[2])
        _INNERMOST.set(before[3])
        self.before = None

    def is_pymongos(self) -> bool:
        """Return True if this is the timeout that pymongo uses now: the application has put none of
        its own inside."""
        return self._seconds is not None and TIMEOUT.get() is self._seconds


_INNERMOST: ContextVar[ActiveTimeout | None] = ContextVar(
    "pymongo_resilience_timeout", default=None
)
"""The timeout that the library has activated last in this context."""


def _is_active(timeout: ActiveTimeout) -> bool:
    """Return True if the current context holds ``timeout``, or one that was activated inside of it
    and never ended because a signal handler raised."""
    inner = _INNERMOST.get()
    while inner is not None and inner is not timeout:
        inner = None if inner.before is None else inner.before[3]
    return inner is not None


def restore(timeout: ActiveTimeout) -> None:
    """Put back what ``timeout`` has replaced, after an internal error kept it from ending."""
    if timeout.before is not None:
        TIMEOUT.set(timeout.before[0])
        DEADLINE.set(timeout.before[1])
        RTT.set(timeout.before[2])
        _INNERMOST.set(timeout.before[3])
        timeout.before = None


def within(seconds: float) -> ActiveTimeout:
    """The deadline in force ends within so many seconds from now; its length, if any, stays."""
    length = TIMEOUT.get() or max(seconds, SHORTEST)
    return ActiveTimeout(length, min(DEADLINE.get(), time.monotonic() + seconds), active_source())


def forget_timeout() -> None:
    """In this task or thread, no timeout is in force any more."""
    ActiveTimeout(None, math.inf).__enter__()


def is_ours() -> bool:
    """Whether the library has put the timeout in force, and no ``pymongo.timeout`` inside of that
    has changed it."""
    innermost = _INNERMOST.get()
    return innermost is not None and innermost.is_pymongos()


def active_source() -> TimeoutSource:
    """Return who set the timeout that pymongo uses now."""
    innermost = _INNERMOST.get()
    if innermost is not None and innermost.is_pymongos():
        return innermost.source
    return TimeoutSource.NONE if TIMEOUT.get() is None else TimeoutSource.PYMONGO_TIMEOUT


def hidden_timeout() -> Timeout | None:
    """What is left of a ``pymongo.timeout`` around one of 0 or None, which lifts it in pymongo.

    Client Side Operations Timeout, "timeoutMS": once set, it cannot be unset further down.
    """
    ends = DEADLINE.get()
    if TIMEOUT.get() or ends == math.inf:
        return None
    return Timeout(max(ends - now(), SHORTEST), ends)
