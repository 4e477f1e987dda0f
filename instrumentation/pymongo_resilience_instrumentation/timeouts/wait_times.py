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

from pymongo_resilience.faults import logger
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.interception.methods import Method

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pymongo_resilience.enabled_flag import EnabledFlag
    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.interception.methods import Function

    Waiting = MutableMapping["Wait", weakref.ref[Any]]
    """Who waits for a connection, and the driver's place to wait in, or the pool that makes one."""

TIMED_OUT = "timed_out"
INTERRUPTED = "interrupted"
FAILED = "failed"


class For(Enum):
    """What is waited for. The value is the outcome of a wait that was not in vain."""

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
    try:
        if call.waits and call.waits[-1].outcome is None:
            call.waits[-1].end(error)
    except Exception:
        logger.exception("internal error in pymongo-resilience after a wait")


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


def timed(
    enabled_flag: EnabledFlag,
    waiting: Waiting,
    method: Method,
    what: For,
    asynchronous: bool,
    *,
    connects: bool = False,
) -> Method:
    """Around ``method``, which runs in place of the driver's wait for a server or for a place in
    the pool, or where it makes a connection (``connects``). The sync wait runs under the topology's
    or the pool's lock."""
    add = Wait.add_connecting if connects else Wait.add

    def begin(given: tuple[Any, ...], kwargs: dict[str, Any]) -> Wait | None:
        """``given``: at first whose method it is, or the condition that is waited for."""
        try:
            call = calls.current() if enabled_flag.acts() else None
            if call is None:
                return None
            if connects and not driver.waits.connects_for_an_operation(given[1:], kwargs):
                return None
            place = given[0] if given else kwargs["condition"]
            wait = _in_progress(call, what)
            if what is For.CONNECTION:
                waiting[wait] = weakref.ref(place)
        except Exception:
            logger.exception("internal error in pymongo-resilience before a wait")
            return None
        return wait

    def end(wait: Wait, began: float) -> None:
        try:
            waiting.pop(wait, None)
            add(wait, time.perf_counter() - began)
        except Exception:
            logger.exception("internal error in pymongo-resilience after a wait")

    def of_sync(original: Function) -> Function:
        run = method.around(original)

        def waits(*given: Any, **kwargs: Any) -> Any:
            wait = begin(given, kwargs)
            if wait is None:
                return run(*given, **kwargs)
            began = time.perf_counter()
            try:
                return run(*given, **kwargs)
            finally:
                end(wait, began)

        return waits

    def of_async(original: Function) -> Function:
        run = method.around(original)

        async def waits(*given: Any, **kwargs: Any) -> Any:
            wait = begin(given, kwargs)
            if wait is None:
                return await run(*given, **kwargs)
            began = time.perf_counter()
            try:
                return await run(*given, **kwargs)
            finally:
                end(wait, began)

        return waits

    return Method(of_async if asynchronous else of_sync)
