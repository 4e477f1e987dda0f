"""pymongo's own account of timeouts: the one in force, and what is left of it."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from pymongo_resilience.unfinished import closes_a_coroutine

try:
    from pymongo import _csot
except ImportError:  # the self-check says so, and what needs it stays off
    _csot = None  # type: ignore[assignment]  # a module, or none

if TYPE_CHECKING:
    from contextvars import Token


TIMEOUT: ContextVar[float | None] = getattr(_csot, "TIMEOUT", ContextVar("TIMEOUT", default=None))
"""As ``timeout_in_force``, for what is on the way of every operation."""
DEADLINE: ContextVar[float] = getattr(
    _csot, "DEADLINE", ContextVar("DEADLINE", default=float("inf"))
)
"""When it ends, on the clock of ``now``; infinite without one."""


def now() -> float:
    """Seconds on the clock of the driver's deadlines."""
    return time.monotonic()


def timeout_in_force() -> float | None:
    """Seconds that ``pymongo.timeout`` or a client's timeoutMS gives; 0 is without end."""
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


class DeadlineWithin(AbstractContextManager[None]):
    """The deadline in force ends within so many seconds, for as long as the block lasts."""

    __slots__ = ("_before", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._before: Token[float] | None = None

    def __enter__(self) -> None:
        end = min(_csot.get_deadline(), now() + self._seconds)
        self._before = _csot.DEADLINE.set(end)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._before is None or (error is not None and closes_a_coroutine(error)):
            return
        with suppress(ValueError):
            _csot.DEADLINE.reset(self._before)
