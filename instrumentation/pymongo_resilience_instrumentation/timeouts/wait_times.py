"""How long an operation waits for a server and for a connection, where it has to wait.

A selection that finds its server at once, and a check-out that finds a connection, are not
measured: that would cost every operation as much as all the rest of its metrics.
"""

from __future__ import annotations

import time
import weakref
from enum import Enum
from typing import TYPE_CHECKING, Any

from pymongo.errors import ServerSelectionTimeoutError, WaitQueueTimeoutError

from pymongo_resilience.internal_errors import shielded
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.interception.interceptor import Entered, Interceptor

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pymongo_resilience_instrumentation.calls import Call

    Waiting = MutableMapping["Wait", weakref.ref[Any]]
    """Who waits for a connection, and the driver's place to wait in, or the pool that makes one."""

TIMED_OUT = "timed_out"
INTERRUPTED = "interrupted"
FAILED = "failed"


class For(Enum):
    """What is waited for. The value is the outcome of a wait that succeeded."""

    SERVER = "selected"
    CONNECTION = "checked_out"


class Wait:
    """One that had to be, once or again and again until a server or a connection was there."""

    __slots__ = ("connecting", "ended_ns", "outcome", "seconds", "what")

    def __init__(self, what: For) -> None:
        self.what = what
        self.seconds = 0.0
        self.connecting: float | None = None
        """How many of the seconds the operation made a connection itself; None if it did not."""
        self.ended_ns = 0
        """Since the epoch."""
        self.outcome: str | None = None
        """None while it is not over."""

    def add(self, seconds: float) -> None:
        self.seconds += seconds
        self.ended_ns = time.time_ns()

    def add_connecting(self, seconds: float) -> None:
        self.connecting = (self.connecting or 0.0) + seconds
        self.add(seconds)

    def end(self, error: BaseException | None) -> None:
        if isinstance(error, (ServerSelectionTimeoutError, WaitQueueTimeoutError)):
            self.outcome = TIMED_OUT
        elif error is None:
            self.outcome = self.what.value
        elif isinstance(error, Exception):
            # A selection fails in no other way; what comes after it may.
            self.outcome = FAILED if self.what is For.CONNECTION else self.what.value
        else:
            self.outcome = INTERRUPTED


def over(call: Call, error: BaseException | None) -> None:
    """Its attempt is over, so its waits are; ``error`` is None for one that came to send
    something."""
    with shielded("after a wait"):
        if call.waits and call.waits[-1].outcome is None:
            call.waits[-1].end(error)


def _in_progress(call: Call, what: For) -> Wait:
    last = call.waits[-1] if call.waits else None
    if last is not None and last.outcome is None:
        if last.what is what:
            return last  # type: ignore[no-any-return]  # what this module put there
        last.end(None)  # one follows the other
    wait = Wait(what)
    if call.waits is None:
        call.waits = []
    call.waits.append(wait)
    return wait


class _Timed(Entered):
    __slots__ = ("began", "wait")

    def __init__(self, place: object, wait: Wait) -> None:
        super().__init__(place)
        self.wait = wait
        self.began = time.perf_counter()


class TimedWait(Interceptor):
    """Around the driver's wait for a server or for a place in the pool, or where it makes
    a connection (``connects``). The sync wait runs under the topology's or the pool's lock."""

    def __init__(self, waiting: Waiting, what: For, *, connects: bool = False) -> None:
        self._waiting = waiting
        self._what = what
        self._connects = connects
        self._add = Wait.add_connecting if connects else Wait.add

    def enter(self, given: tuple[Any, ...], kwargs: dict[str, Any]) -> _Timed | None:
        """``given``: at first whose method it is, or the condition that is waited for."""
        call = calls.current()  # none where it may begin late: no telemetry shows it
        if call is None:
            return None
        if self._connects and not driver.waits.connects_for_an_operation(given[1:], kwargs):
            return None
        place = given[0] if given else kwargs["condition"]
        wait = _in_progress(call, self._what)
        if self._what is For.CONNECTION:
            self._waiting[wait] = weakref.ref(place)
        return _Timed(place, wait)

    def succeeded(self, timed: _Timed, result: object) -> Any:
        self._end(timed)
        return result

    def failed(self, timed: _Timed | None, error: BaseException, *_: Any) -> BaseException:
        if timed is not None:
            self._end(timed)
        return error

    def _end(self, timed: _Timed) -> None:
        with shielded("after a wait"):
            self._waiting.pop(timed.wait, None)
            self._add(timed.wait, time.perf_counter() - timed.began)
