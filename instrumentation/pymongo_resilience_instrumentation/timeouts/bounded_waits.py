"""What runs in place of pymongo's waits: each is cut to the time that is left.

Without a deadline nothing is: the driver's own timeouts hold, as ever. Under one (measured on 4.17
to 4.20), pymongo's selection has all the time that is left and looks at the clock every half
second, a checkout has all of it again, and connecting ignores connectTimeoutMS.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pymongo_resilience import internal_errors
from pymongo_resilience.internal_errors import logger
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.calls import NEVER, NO_DEADLINE
from pymongo_resilience_instrumentation.interception.interceptor import Entered, Interceptor
from pymongo_resilience_instrumentation.interception.method_in_context import Within
from pymongo_resilience_instrumentation.interception.methods import Method, Wrapped

from .wait_times import For, TimedWait

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from pymongo_resilience.enabled_flag import EnabledFlag
    from pymongo_resilience_instrumentation.interception.interceptor import Wrapped as Row
    from pymongo_resilience_instrumentation.interception.methods import Function

    from .wait_times import Waiting

GRACE = 0.005
"""Seconds. Where the driver ends its connecting by itself, it closes the socket, too."""


RESOLUTION = 0.001
"""Seconds. The driver looks at its own clock after a wait, and it began a moment after ours."""


def wrapped(enabled_flag: EnabledFlag, waiting: Waiting | None) -> Iterator[Row]:
    """``waiting``: where waits for a connection are noted; None times no wait."""

    for half, connecting in (
        (driver.waits.SYNC_HALF, Connect()),
        (driver.waits.ASYNC_HALF, ConnectAsync()),
    ):
        for module, what in (("topology", For.SERVER), ("pool", For.CONNECTION)):
            yield half.module(module), half.wait, wait(enabled_flag, of_pool=what is For.CONNECTION)
            if waiting is not None:
                yield half.module(module), half.wait, TimedWait(waiting, what)
        yield half.module("pool"), half.connect, connecting
        pool = half.module("pool").Pool
        yield pool, driver.waits.HANDSHAKE, Within(handshake)
        if waiting is not None:
            timed = TimedWait(waiting, For.CONNECTION, connects=True)
            yield pool, driver.waits.HANDSHAKE, timed


def time_to_wait() -> float | None:
    """Seconds that selection, checkout and connecting still have; None where nothing limits them.

    Under a timeout of 0 the selection's own limit is all there is.
    """
    if driver.csot.TIMEOUT.get() is None:
        return None
    left, call = driver.csot.remaining(), calls.current()
    if call is None:
        return left
    own = call.waits_until - driver.csot.now()
    if left is None:
        return None if own == NEVER else own
    return min(left, own)


def shortened(timeout: float | None, *, of_pool: bool) -> float | None:
    """``timeout``, or as much of it as is left. None is without end.

    ``of_pool``: under a timeout of 0 the driver gives the older waitQueueTimeoutMS, which any
    timeout sets aside.
    """
    left = time_to_wait()
    if left is None:
        return timeout
    left = max(left, RESOLUTION)
    aside = of_pool and not driver.csot.TIMEOUT.get()
    return left if timeout is None or aside else min(timeout, left)


def within_wait(seconds: float) -> AbstractContextManager[None]:
    """What is in it ends within so many seconds, also where a timeout of 0 is in force."""
    if driver.csot.TIMEOUT.get():
        return driver.csot.within(seconds)
    return driver.csot.Timeout.from_now(max(seconds, RESOLUTION)).resume()


def time_to_connect(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | None:
    """Seconds to establish a socket in, given the arguments; None leaves it to the driver."""
    left = time_to_wait()
    if left is None:
        return None
    own = driver.waits.own_connect_timeout(args, kwargs)
    return left if own is None else min(left, own)


def selections(enabled_flag: EnabledFlag) -> Iterator[Row]:
    """As ``wrapped``, of what each operation asks for."""
    for owner in driver.waits.selection_timeout_owners():
        yield owner, driver.waits.SELECTION_TIMEOUT, selection_timeout(enabled_flag)


def selection_timeout(enabled_flag: EnabledFlag) -> Wrapped:
    """``min(serverSelectionTimeoutMS, remaining)``, of which checkout and connecting have what the
    selection leaves."""
    timeout_in_force, found, own_timeout = (
        driver.csot.TIMEOUT.get,
        calls.found,
        driver.waits.own_selection_timeout,
    )

    def wrapper(original: Function, topology: Any, args: Any, kwargs: Any) -> Any:
        timeout = original(*args, **kwargs)
        if timeout_in_force() is None or not enabled_flag.on:
            return timeout
        try:
            own, call = own_timeout(topology), found()
            if call is not None and not call.ended:
                # With 0 the servers are looked at once. A connection takes some time.
                call.waits_until = driver.csot.now() + (own or NEVER)
            return min(timeout, own)
        except internal_errors.faults:
            logger.exception("internal error in pymongo-resilience before a selection")
            return timeout

    return Wrapped(wrapper)


def wait(enabled_flag: EnabledFlag, *, of_pool: bool) -> Method:
    """A wait for a condition: for a server, or for a place in the pool. The async one is called
    here and awaited by the caller."""

    def around(original: Function) -> Function:
        def waiting(condition: Any, timeout: Any, *args: Any, **kwargs: Any) -> Any:
            if enabled_flag.on:
                try:
                    timeout = shortened(timeout, of_pool=of_pool)
                except internal_errors.faults:
                    logger.exception("internal error in pymongo-resilience before a wait")
            return original(condition, timeout, *args, **kwargs)

        return waiting

    return Method(around)


def handshake(_pool: object) -> AbstractContextManager[None]:
    """A connection until it is ready, hello and authentication included: what selecting a server
    has left of ``min(serverSelectionTimeoutMS, remaining)``."""
    seconds = time_to_wait()
    return NO_DEADLINE if seconds is None else within_wait(seconds)


class _Connecting(Entered):
    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        super().__init__(None, within_wait(seconds))
        self.seconds = seconds


class Connect(Interceptor):
    """``min(connectTimeoutMS, remaining)`` until the socket is there."""

    def enter(self, given: tuple[Any, ...], kwargs: dict[str, Any]) -> _Connecting | None:
        seconds = time_to_connect(given, kwargs)
        return None if seconds is None else _Connecting(seconds)


class ConnectAsync(Connect):
    """The TLS handshake, which pymongo leaves to asyncio and its 60 s, ends in time as well."""

    async def send(
        self, connecting: _Connecting, original: Function, *given: Any, **kwargs: Any
    ) -> Any:
        if not driver.waits.connects_with_tls(given, kwargs):
            return await original(*given, **kwargs)
        try:
            async with asyncio.timeout(connecting.seconds + GRACE):
                return await original(*given, **kwargs)
        except TimeoutError as error:
            # asyncio's own has no text, and the driver's message would be without a reason.
            raise TimeoutError("timed out") from error
