"""Waits for a server, a connection and a socket: cut to the time that is left, and measured.

Without a deadline none is cut: the driver's own timeouts hold. Under one (pymongo 4.17 to 4.20) its
selection has all the time that is left and looks at the clock every half second, a checkout has
all of it again, and connecting ignores connectTimeoutMS. What need not wait is not measured.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pymongo import lock
from pymongo.errors import NetworkTimeout, ServerSelectionTimeoutError, WaitQueueTimeoutError

from pymongo_resilience.enabled_flag import EnabledFlag
from pymongo_resilience.internal_errors import shielded
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.addresses import address_text
from pymongo_resilience_instrumentation.calls import NEVER, NO_DEADLINE, Call
from pymongo_resilience_instrumentation.failures.reasons import AttemptTimeoutError
from pymongo_resilience_instrumentation.interceptor import (
    Entered,
    Function,
    Interceptor,
    Row,
    Wrapper,
)

GRACE = 0.005
"""Seconds. Where the driver ends its connecting by itself, it closes the socket, too."""
RESOLUTION = 0.001
"""Seconds. The driver looks at its own clock after a wait, and it began a moment after ours."""
CONNECTING = 1.0
"""Seconds that ``attempt_timeout_ms`` leaves at least for making a connection: TCP, TLS, hello and
authentication are several round trips."""


def wrapped(enabled_flag: EnabledFlag) -> Iterator[Row]:
    for half, connecting in (
        (driver.selection.SYNC_HALF, Connect()),
        (driver.selection.ASYNC_HALF, ConnectAsync()),
    ):
        pool = half.module("pool")
        yield half.module("topology"), half.wait, ConditionWait(For.SERVER)
        yield pool, half.wait, ConditionWait(For.CONNECTION)
        yield pool, half.connect, connecting
        yield pool.Pool, driver.selection.HANDSHAKE, Handshake(For.CONNECTION)
    if sys.version_info < (3, 12):
        pool = driver.selection.ASYNC_HALF.module("pool")
        yield pool, driver.selection.ASYNC_SEND, _kept_while_sending(enabled_flag)
        yield lock, "wait_for", _kept_while_waiting(enabled_flag)


def time_to_wait() -> float | None:
    """Seconds that selection, checkout and connecting still have, under a timeout of 0 the
    selection's own limit; None where nothing limits them."""
    if driver.csot.TIMEOUT.get() is None:
        return None
    left, call = driver.csot.remaining(), calls.current()
    own = NEVER if call is None else call.waits_until - driver.csot.now()
    limit = own if left is None else min(left, own)
    return None if limit == NEVER else limit


def within_wait(seconds: float) -> AbstractContextManager[None]:
    """What is in it ends within so many seconds, also under a timeout of 0."""
    if driver.csot.TIMEOUT.get():
        return driver.csot.within(seconds)
    return driver.csot.Timeout.from_now(seconds if seconds > 0 else RESOLUTION).resume()


class For(Enum):
    """What is waited for. The value is the outcome of a wait that succeeded."""

    SERVER = "selected"
    CONNECTION = "checked_out"


@dataclass(slots=True, eq=False, repr=False)
class Wait:
    """One that had to be, once or again and again until a server or a connection was there."""

    what: For
    seconds: float = 0.0
    connecting: float | None = None
    """How many of the seconds the operation made a connection itself; None if it did not."""
    ended_ns: int = 0
    """Since the epoch."""
    outcome: str | None = None
    """None while it is not over."""

    def add(self, seconds: float, *, connecting: bool = False) -> None:
        if connecting:
            self.connecting = (self.connecting or 0.0) + seconds
        self.seconds += seconds
        self.ended_ns = time.time_ns()

    def end(self, error: BaseException | None) -> None:
        if isinstance(error, (ServerSelectionTimeoutError, WaitQueueTimeoutError)):
            self.outcome = "timed_out"
        elif error is None:
            self.outcome = self.what.value
        elif isinstance(error, Exception):
            # A selection fails in no other way; what comes after it may.
            self.outcome = "failed" if self.what is For.CONNECTION else self.what.value
        else:
            self.outcome = "interrupted"


def over(call: Call, error: BaseException | None) -> None:
    """Its attempt is over, so its waits are; ``error`` is None for one that sent something."""
    with shielded("after a wait"):
        if call.history.waits and call.history.waits[-1].outcome is None:
            call.history.waits[-1].end(error)


def _in_progress(call: Call, what: For) -> Wait:
    call.history.waits = call.history.waits or []
    last: Wait | None = call.history.waits[-1] if call.history.waits else None
    if last is not None and last.outcome is None:
        if last.what is what:
            return last
        last.end(None)  # one follows the other
    call.history.waits.append(wait := Wait(what))
    return wait


class _Limited(Entered):
    __slots__ = ("ends", "seconds")

    def __init__(
        self, place: Any, seconds: float | None, deadline: AbstractContextManager[None]
    ) -> None:
        super().__init__(place, deadline)
        self.seconds = seconds
        """None is without end."""
        self.ends = driver.csot.now() + (seconds or 0.0)


class _MeasuredWait(Interceptor):
    def __init__(self, what: For) -> None:
        self._what = what

    @contextmanager
    def _measured(self, call: Call) -> Iterator[None]:
        wait = None
        with shielded("before a wait"):
            wait = _in_progress(call, self._what)
        began = time.perf_counter()
        try:
            yield
        finally:
            if wait is not None:
                seconds = time.perf_counter() - began
                with shielded("after a wait"):
                    wait.add(seconds, connecting=isinstance(self, Handshake))


class ConditionWait(_MeasuredWait):
    """A wait for a server, or for a place in the pool. The sync one runs under their lock."""

    def enter(self, given: tuple[Any, ...], _kwargs: dict[str, Any]) -> _Limited:
        condition, timeout = given
        left, call = time_to_wait(), calls.current()
        if left is not None:
            left = max(left, RESOLUTION)
            # Under a timeout of 0 the driver gives the older waitQueueTimeoutMS, which any timeout
            # sets aside.
            aside = self._what is For.CONNECTION and not driver.csot.TIMEOUT.get()
            timeout = left if timeout is None or aside else min(timeout, left)
        measured = NO_DEADLINE if call is None else self._measured(call)
        return _Limited(condition, timeout, measured)

    def send(self, limited: _Limited, original: Function, *_given: Any, **_kwargs: Any) -> Any:
        return original(limited.instance, limited.seconds)


class Handshake(_MeasuredWait):
    """A connection until it is ready, hello and authentication included: it has what selecting a
    server has left of ``min(serverSelectionTimeoutMS, remaining)``, and what an attempt has."""

    def enter(self, given: tuple[Any, ...], kwargs: dict[str, Any]) -> _Limited | None:
        if calls.reporting():
            return None
        # Monitors, and what keeps minPoolSize, have no handler.
        handler = given[1] if len(given) > 1 else kwargs.get("handler")
        pool, call, left = given[0], calls.current(), time_to_wait()
        attempt: float | None = None
        if call is not None and handler is not None and call.attempt_timeout is not None:
            attempt = max(call.attempt_timeout, CONNECTING)
            left = attempt if left is None else min(left, attempt)
            if left < attempt:
                attempt = None
        return _Limited(pool, attempt, self._limit(None if handler is None else call, left))

    @contextmanager
    def _limit(self, call: Call | None, seconds: float | None) -> Iterator[None]:
        limit = NO_DEADLINE if seconds is None else within_wait(seconds)
        with NO_DEADLINE if call is None else self._measured(call), limit:
            yield

    def failed(self, limited: _Limited | None, error: BaseException, *_: Any) -> BaseException:
        if (
            isinstance(error, NetworkTimeout)
            and limited is not None
            and limited.seconds is not None
            and driver.csot.now() >= limited.ends
        ):
            error.__cause__ = AttemptTimeoutError(limited.seconds)
            # The driver's text names a timeoutMS that was not set.
            error.args = (f"{address_text(limited.instance.address)}: {error.__cause__}",)
        return error


class Connect(Interceptor):
    """``min(connectTimeoutMS, remaining)`` until the socket is there."""

    def enter(self, given: tuple[Any, ...], _kwargs: dict[str, Any]) -> _Limited:
        options = given[1]
        seconds = driver.csot.remaining()
        if seconds is None:
            return _Limited(None, None, NO_DEADLINE)
        seconds = min(seconds, options.connect_timeout or seconds)
        return _Limited(None, seconds, driver.csot.within(seconds))


class ConnectAsync(Connect):
    """The TLS handshake, which pymongo leaves to asyncio and its 60 s, and the resolver's thread
    end in time as well; a cancellation that arrives with the socket is kept."""

    async def send(
        self, connecting: _Limited, original: Function, *given: Any, **kwargs: Any
    ) -> Any:
        task, seconds = asyncio.current_task(), connecting.seconds
        before = 0 if task is None else task.cancelling()
        try:
            async with asyncio.timeout(None if seconds is None else seconds + GRACE):
                interface = await original(*given, **kwargs)
        except TimeoutError as error:
            # asyncio's own has no text, and the driver's message would be without a reason.
            raise TimeoutError("timed out") from error
        if task is not None and task.cancelling() > before:
            await interface.close()
            raise asyncio.CancelledError
        return interface


def _kept_while_sending(enabled_flag: EnabledFlag) -> Wrapper:
    """Before CPython 3.12 ``asyncio.wait_for`` drops a cancellation that arrives together with the
    result. pymongo sends and waits by it; under a deadline, every command."""

    async def wrapper(original: Function, _pool: Any, args: Any, kwargs: Any) -> None:
        if not enabled_flag.on:
            await original(*args, **kwargs)
            return
        conn, buf = args
        seconds = conn.gettimeout
        try:
            if seconds is not None and seconds <= 0:
                raise TimeoutError
            async with asyncio.timeout(seconds):
                await conn.write(buf)
        except TimeoutError as error:
            # asyncio's own has no text.
            raise TimeoutError("timed out") from error

    return wrapper


def _kept_while_waiting(enabled_flag: EnabledFlag) -> Wrapper:
    def wrapper(original: Function, _lock: Any, args: Any, kwargs: Any) -> Any:
        return (wait_for if enabled_flag.on else original)(*args, **kwargs)

    return wrapper


async def wait_for(fut: Coroutine[Any, Any, Any], timeout: float | None) -> Any:  # noqa: ASYNC109 - asyncio's names
    """``asyncio.wait_for`` as it is from 3.12 on, and without a task for each call."""
    if timeout is not None and timeout <= 0:
        fut.close()
        raise TimeoutError
    async with asyncio.timeout(timeout):
        return await fut
