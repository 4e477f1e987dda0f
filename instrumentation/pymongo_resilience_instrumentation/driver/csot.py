"""pymongo's own account of timeouts: the one in force, and what is left of it."""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, NamedTuple

from pymongo import _csot

from pymongo_resilience.clock import SHORTEST
from pymongo_resilience.internal_errors import is_closing

# Where the self-check misses one of these, what needs it stays off.
TIMEOUT: ContextVar[float | None] = getattr(_csot, "TIMEOUT", ContextVar("TIMEOUT", default=None))
"""Its length; see ``timeout_in_force``."""
DEADLINE: ContextVar[float] = getattr(_csot, "DEADLINE", ContextVar("DEADLINE", default=math.inf))
"""When it ends, on the clock of ``now``; infinite without one."""
RTT: ContextVar[float] = getattr(_csot, "RTT", ContextVar("RTT", default=0.0))
"""The minimum round-trip time of the server selected under it, in seconds: the driver sets it with
each selection under a timeout."""


def now() -> float:
    """Seconds on the clock of the driver's deadlines."""
    return time.monotonic()


timeout_in_force = TIMEOUT.get
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
    def in_force(cls) -> Timeout:
        return cls(TIMEOUT.get(), DEADLINE.get())

    def until(self, end: float) -> Timeout:
        """It, but no longer than to ``end``."""
        return Timeout(self.seconds, min(self.ends, end))

    def within_others(self) -> Timeout:
        """It, or the one in force where that ends sooner."""
        around = Timeout.in_force()
        return self if self.ends <= around.ends else around

    def resume(self) -> InForce:
        """Puts what is left of it in force, in place of what is, even if that ends sooner."""
        return InForce(self.seconds, self.ends)


_OURS: ContextVar[tuple[float | None, float]] = ContextVar(
    "pymongo_resilience_timeout", default=(None, math.inf)
)
"""The timeout that the library has put in force last; see ``is_ours``."""


class InForce(AbstractContextManager[None]):
    """A timeout of ours is in force in one thread or task; ``__exit__`` may be repeated."""

    __slots__ = ("_timeout", "before")

    def __init__(self, seconds: float | None, ends: float | None = None) -> None:
        """Without ``ends`` it begins now, and ends with the one in force at the latest."""
        if ends is None:
            ends = DEADLINE.get()
            if seconds:
                ends = min(ends, time.monotonic() + seconds)
        self._timeout = seconds, ends
        self.before: tuple[Any, ...] | None = None
        """What it is in place of; None while it is not in force."""

    def __enter__(self) -> None:
        self.before = TIMEOUT.get(), DEADLINE.get(), RTT.get(), _OURS.get()
        TIMEOUT.set(self._timeout[0])
        DEADLINE.set(self._timeout[1])
        _OURS.set(self._timeout)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # A coroutine that is closed unfinished may be so in another context.
        before = self.before
        if before is not None and (error is None or not is_closing(error)):
            TIMEOUT.set(before[0])
            DEADLINE.set(before[1])
            RTT.set(before[2])
            _OURS.set(before[3])
            self.before = None


def within(seconds: float) -> InForce:
    """The deadline in force ends within so many seconds from now; its length, if any, stays."""
    length = TIMEOUT.get() or max(seconds, SHORTEST)
    return InForce(length, min(DEADLINE.get(), time.monotonic() + seconds))


def forget_timeout() -> None:
    """In this task or thread, no timeout is in force any more."""
    InForce(None, math.inf).__enter__()


def is_ours() -> bool:
    """Whether the library has put the timeout in force, and no ``pymongo.timeout`` inside of that
    has changed it."""
    timeout = Timeout.in_force()
    return timeout.seconds is not None and timeout == _OURS.get()


def hidden_timeout() -> Timeout | None:
    """What is left of a ``pymongo.timeout`` around one of 0 or None, which lifts it in pymongo.

    Client Side Operations Timeout, "timeoutMS": once set, it cannot be unset further down.
    """
    ends = DEADLINE.get()
    if TIMEOUT.get() or ends == math.inf:
        return None
    return Timeout(max(ends - now(), SHORTEST), ends)
