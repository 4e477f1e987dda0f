"""pymongo's timeouts: the active one, and the time left until it ends."""

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

# If one of these is missing in the installed pymongo, the self-check leaves only telemetry on.
TIMEOUT: ContextVar[float | None] = getattr(_csot, "TIMEOUT", ContextVar("TIMEOUT", default=None))
"""The duration of the active timeout; see ``active_timeout``."""
DEADLINE: ContextVar[float] = getattr(_csot, "DEADLINE", ContextVar("DEADLINE", default=math.inf))
"""When the active timeout ends, on the clock of ``now``; infinite without one."""
RTT: ContextVar[float] = getattr(_csot, "RTT", ContextVar("RTT", default=0.0))
"""Minimum round-trip time in seconds of the selected server. pymongo sets it with each selection
under a timeout.
"""


def now() -> float:
    """Return the time in seconds on the clock of pymongo's deadlines."""
    return time.monotonic()


MODULE = _csot
WRITE_CONCERN = "apply_write_concern"
"""pymongo's function that adds the write concern to a command, without ``wtimeout`` under a
timeout.
"""


active_timeout = TIMEOUT.get
"""The seconds that ``pymongo.timeout`` or a client's timeoutMS allows; 0 disables the timeout."""
min_rtt = RTT.get
"""The minimum round-trip time of the selected server under a deadline; otherwise 0."""


def remaining() -> float | None:
    """Return the seconds until pymongo's deadline, or None without one."""
    return DEADLINE.get() - time.monotonic() if TIMEOUT.get() else None


class Timeout(NamedTuple):
    """A timeout that has begun: its duration and its end. Immutable, so thread- and task-safe."""

    seconds: float | None
    """The whole duration. 0 disables the timeout; None means no timeout."""
    ends: float
    """On pymongo's clock, ``now``."""

    @classmethod
    def begin(cls, seconds: float) -> Timeout:
        """Return a timeout that begins now and ends with the active one at the latest."""
        return cls.from_now(seconds).until(DEADLINE.get())

    @classmethod
    def from_now(cls, seconds: float) -> Timeout:
        """Return a timeout that begins now and ignores the active one."""
        return cls(seconds, now() + seconds if seconds else math.inf)

    @classmethod
    def active(cls) -> Timeout:
        return cls(TIMEOUT.get(), DEADLINE.get())

    def until(self, end: float) -> Timeout:
        """Return this timeout, ending at ``end`` at the latest."""
        return Timeout(self.seconds, min(self.ends, end))

    def within_others(self) -> Timeout:
        """Return this timeout, or the active one if that ends sooner."""
        outer = Timeout.active()
        return self if self.ends <= outer.ends else outer

    def resume(self, source: TimeoutSource = TimeoutSource.NONE) -> ActiveTimeout:
        """Return a context manager that activates the rest of this timeout, in place of the active
        one.
        """
        return ActiveTimeout(self.seconds, self.ends, source)


class ActiveTimeout(AbstractContextManager[None]):
    """A timeout that the library activates in one thread or task. Exiting it twice is harmless."""

    __slots__ = ("_seconds", "before", "ends", "source")

    def __init__(
        self,
        seconds: float | None,
        ends: float | None = None,
        source: TimeoutSource = TimeoutSource.NONE,
    ) -> None:
        """Without ``ends``, the timeout begins now and ends with the active one at the latest."""
        if ends is None:
            ends = DEADLINE.get()
            if seconds:
                ends = min(ends, time.monotonic() + seconds)
        # Adding 0.0 creates a new object, even if the application's timeout has the same duration.
        # ``is_ours`` compares identities.
        self._seconds = None if seconds is None else seconds + 0.0
        self.ends = ends
        """On pymongo's clock."""
        self.source = source
        """Who set the timeout; NONE if that does not matter inside."""
        self.before: tuple[float | None, float, float, ActiveTimeout | None] | None = None
        """The values that this timeout replaced; None while it is not active."""

    def __enter__(self) -> None:
        # Keep the values instead of tokens: a token may only be used in the context that created
        # it, but a coroutine may be closed in another one.
        self.before = TIMEOUT.get(), DEADLINE.get(), RTT.get(), _INNERMOST.get()
        # Set this first, and reset it last in ``__exit__``, because a signal handler may raise in
        # between.
        _INNERMOST.set(self)
        TIMEOUT.set(self._seconds)
        DEADLINE.set(self.ends)

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        before = self.before
        # A coroutine that is closed from another context must not change the variables there.
        if before is None or not (_INNERMOST.get() is self or _is_active(self)):
            return
        if kind is GeneratorExit:
            # The garbage collector may close the coroutine while this thread sets a context
            # variable.
            keep_variables()
        TIMEOUT.set(before[0])
        DEADLINE.set(before[1])
        RTT.set(before[2])
        _INNERMOST.set(before[3])
        # Makes a second call of ``__exit__`` harmless.
        self.before = None

    def is_pymongos(self) -> bool:
        """Return True if pymongo uses this timeout now, and not one that the application set inside
        of it.
        """
        return self._seconds is not None and TIMEOUT.get() is self._seconds


_INNERMOST: ContextVar[ActiveTimeout | None] = ContextVar(
    "pymongo_resilience_timeout", default=None
)
"""The timeout that the library activated last in this context."""


def _is_active(timeout: ActiveTimeout) -> bool:
    """Return True if the current context has ``timeout``, possibly with an inner one that was never
    ended because a signal handler raised.
    """
    # Follow the chain of timeouts that were activated inside of this one.
    inner = _INNERMOST.get()
    while inner is not None and inner is not timeout:
        inner = None if inner.before is None else inner.before[3]
    return inner is not None


def restore(timeout: ActiveTimeout) -> None:
    """Restore what ``timeout`` has replaced, after an internal error prevented its end."""
    if timeout.before is not None:
        TIMEOUT.set(timeout.before[0])
        DEADLINE.set(timeout.before[1])
        RTT.set(timeout.before[2])
        _INNERMOST.set(timeout.before[3])
        timeout.before = None


def within(seconds: float) -> ActiveTimeout:
    """Return a context manager that ends the active deadline within ``seconds``. Its duration is
    kept.
    """
    # A duration of 0 would disable the timeout.
    length = TIMEOUT.get() or max(seconds, SHORTEST)
    return ActiveTimeout(length, min(DEADLINE.get(), time.monotonic() + seconds), active_source())


def forget_timeout() -> None:
    """Deactivate any timeout in this task or thread."""
    # Never left: it applies until the task or thread ends.
    ActiveTimeout(None, math.inf).__enter__()


def forget_ended() -> bool:
    """Deactivate a timeout of an operation that has ended, in a task or thread that inherited it.

    Returns:
        False if the application has begun a ``pymongo.timeout`` inside of it. That one is kept, and
        the inherited timeout becomes active again when it ends.
    """
    inherited = _INNERMOST.get()
    if inherited is None or inherited._seconds is None:
        return True
    if inherited.is_pymongos():
        forget_timeout()
        return True
    if DEADLINE.get() == inherited.ends:
        # pymongo has shortened the application's timeout to the end of the inherited one. It does
        # not record when the application's began, so let that one begin now.
        DEADLINE.set(Timeout.from_now(TIMEOUT.get() or 0.0).ends)
    return False


def is_ours() -> bool:
    """Return True if the library activated the active timeout, and no ``pymongo.timeout`` inside
    has replaced it.
    """
    innermost = _INNERMOST.get()
    return innermost is not None and innermost.is_pymongos()


def active_source() -> TimeoutSource:
    """Return who set the timeout that pymongo uses now."""
    innermost = _INNERMOST.get()
    if innermost is not None and innermost.is_pymongos():
        return innermost.source
    return TimeoutSource.NONE if TIMEOUT.get() is None else TimeoutSource.PYMONGO_TIMEOUT


def hidden_timeout() -> Timeout | None:
    """Return the rest of a ``pymongo.timeout`` around an inner one of 0 or None, which disables it
    in pymongo.

    Client Side Operations Timeout, "timeoutMS", forbids disabling a timeout further down.
    """
    ends = DEADLINE.get()
    if TIMEOUT.get() or ends == math.inf:
        return None
    # A timeout of 0 would mean no timeout, so use at least a millisecond.
    return Timeout(max(ends - now(), SHORTEST), ends)
