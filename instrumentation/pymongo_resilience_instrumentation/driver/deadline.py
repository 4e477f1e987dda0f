"""pymongo's own account of timeouts: the one in force, and what is left of it."""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from pymongo_resilience.deadline import SHORTEST
from pymongo_resilience.unfinished import closes_a_coroutine

if TYPE_CHECKING:
    from contextvars import Token

try:
    from pymongo import _csot
except ImportError:  # the self-check says so, and what needs it stays off
    _csot = None  # type: ignore[assignment]  # a module, or none


TIMEOUT: ContextVar[float | None] = getattr(_csot, "TIMEOUT", ContextVar("TIMEOUT", default=None))
"""As ``timeout_in_force``, for what is on the way of every operation."""
DEADLINE: ContextVar[float] = getattr(
    _csot, "DEADLINE", ContextVar("DEADLINE", default=float("inf"))
)
"""When it ends, on the clock of ``now``; infinite without one."""
RTT: ContextVar[float] = getattr(_csot, "RTT", ContextVar("RTT", default=0.0))
"""The minimum round-trip time of the server selected under it, in seconds."""


def now() -> float:
    """Seconds on the clock of the driver's deadlines."""
    return time.monotonic()


def timeout_in_force() -> float | None:
    """Seconds that ``pymongo.timeout`` or a client's timeoutMS gives; 0 disables the timeout."""
    timeout = _csot.get_timeout()
    return None if timeout is None else float(timeout)


def forget_timeout() -> None:
    """In this task or thread, no timeout is in force any more."""
    _csot.reset_all()


def remaining() -> float | None:
    """Seconds until the driver's deadline; None without one."""
    return _csot.remaining()


def min_rtt() -> float:
    """The minimum round-trip time of the selected server, under a deadline; else 0."""
    return _csot.get_rtt()


def has_max_time(batch: Any) -> bool:
    """Whether a cursor's first batch was given a ``maxTimeMS`` of its own."""
    # The driver makes a dict of what is more than a filter; a filter may be any mapping.
    spec = getattr(batch, "spec", None)
    return type(spec) is dict and "$maxTimeMS" in spec


def has_max_commit_time(session: Any) -> bool:
    """Whether the session's transaction has a ``maxCommitTimeMS``."""
    options = getattr(session._transaction, "opts", None)
    return bool(getattr(options, "max_commit_time_ms", None))


class InForce(AbstractContextManager[None]):
    """Something that puts a timeout in force, in the context of one thread or task.

    Wherever an exception of a signal handler strikes, all is as it was before: half-way in, it is
    put back at once; half-way out, ``__exit__`` may be called once more, and may be in any case.
    """

    __slots__ = ("_before", "_token")

    _before: tuple[float | None, float, float] | None
    _token: Token[float]

    def __init__(self) -> None:
        self._before = None

    def put(self, ends: float) -> float:
        """Set what else is to be in force, and answer with the deadline; before, it is ``ends``."""
        raise NotImplementedError

    def __enter__(self) -> None:
        before = (TIMEOUT.get(None), DEADLINE.get(), RTT.get())
        try:
            self._token = DEADLINE.set(self.put(before[1]))
            self._before = before
        except BaseException:
            TIMEOUT.set(before[0])
            DEADLINE.set(before[1])
            RTT.set(before[2])
            self._before = None
            raise

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        before = self._before
        if before is None or (error is not None and closes_a_coroutine(error)):
            return
        try:
            DEADLINE.reset(self._token)
        except ValueError:
            # It ends in another context than it began in.
            self._before = None
            return
        except RuntimeError:
            # Reset already: this was struck half-way.
            pass
        TIMEOUT.set(before[0])
        RTT.set(before[2])
        self._before = None


class Timeout(InForce):
    """As ``pymongo.timeout``, with a length in seconds."""

    __slots__ = ("_seconds",)

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def put(self, ends: float) -> float:
        seconds = self._seconds
        TIMEOUT.set(seconds)
        RTT.set(0.0)
        return min(ends, now() + seconds) if seconds else ends


class DeadlineWithin(InForce):
    """The deadline in force ends within so many seconds, for as long as the block lasts."""

    __slots__ = ("_seconds",)

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def put(self, ends: float) -> float:
        return min(ends, now() + self._seconds)


try:
    from pymongo import _csot
except ImportError:  # the self-check says so, and what needs it stays off
    _csot = None  # type: ignore[assignment]  # a module, or none


class _Ours(float):
    """The length of a ``RunningTimeout``: told from that of any ``pymongo.timeout`` by its type."""

    __slots__ = ()


class RunningTimeout(NamedTuple):
    """A timeout that has begun. Immutable, so thread- and task-safe."""

    seconds: float | None
    """The whole of it; 0 disables the timeout, None is no timeout."""
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
