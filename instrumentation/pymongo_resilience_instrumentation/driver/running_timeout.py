"""Timeouts that began earlier, or that begin anew: put in force in place of what is around them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from pymongo_resilience.deadline import SHORTEST

from .deadline import RTT, TIMEOUT, InForce, now

try:
    from pymongo import _csot
except ImportError:  # the self-check says so, and what needs it stays off
    _csot = None  # type: ignore[assignment]  # a module, or none

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class _Ours(float):
    """The length of a ``RunningTimeout``: told from that of any ``pymongo.timeout`` by its type."""

    __slots__ = ()


class RunningTimeout(NamedTuple):
    """A timeout that has begun. Immutable, so thread- and task-safe."""

    seconds: float | None
    """The whole of it; 0 is without end, None is no timeout."""
    ends: float
    """On the driver's clock, ``now``."""

    @classmethod
    def begin(cls, seconds: float) -> RunningTimeout:
        """From now on, but no longer than the one in force."""
        return cls(seconds, min(cls.anew(seconds).ends, _csot.DEADLINE.get()))

    @classmethod
    def anew(cls, seconds: float) -> RunningTimeout:
        """From now on, whatever is in force."""
        return cls(seconds, now() + seconds if seconds else float("inf"))

    @classmethod
    def in_force(cls) -> RunningTimeout:
        return cls(_csot.TIMEOUT.get(), _csot.DEADLINE.get())

    def until(self, end: float) -> RunningTimeout:
        """It, but no longer than to ``end``."""
        return RunningTimeout(self.seconds, min(self.ends, end))

    def within_others(self) -> RunningTimeout:
        """It, or the one in force where that ends sooner."""
        ends = _csot.DEADLINE.get()
        return self if self.ends <= ends else RunningTimeout(_csot.TIMEOUT.get(), ends)

    def resume(self) -> AbstractContextManager[None]:
        """Puts what is left of it in force, in the context of one thread or task."""
        return _Resumed(self)


def runs_already() -> bool:
    """Whether the timeout in force is one that a ``RunningTimeout`` has put there."""
    return isinstance(_csot.get_timeout(), _Ours)


def hidden_timeout() -> RunningTimeout | None:
    """What is left of a ``pymongo.timeout`` around one of 0 or None, which lifts it in pymongo.

    Client Side Operations Timeout, "timeoutMS": once set, it cannot be unset further down.
    """
    ends = _csot.DEADLINE.get()
    if ends == math.inf:
        return None
    return RunningTimeout(max(ends - now(), SHORTEST), ends)


class _Resumed(InForce):
    """In place of what is in force: neither is the sooner end kept, nor the shorter length."""

    __slots__ = ("_timeout",)

    def __init__(self, timeout: RunningTimeout) -> None:
        super().__init__()
        self._timeout = timeout

    def put(self, ends: float) -> float:  # noqa: ARG002 - neither end is kept
        seconds = self._timeout.seconds
        TIMEOUT.set(None if seconds is None else _Ours(seconds))
        RTT.set(0.0)
        return self._timeout.ends
