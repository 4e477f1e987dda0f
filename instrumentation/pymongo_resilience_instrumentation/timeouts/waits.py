"""What runs in place of pymongo's waits: each is cut to the time that is left.

Without a deadline nothing is: the driver's own timeouts hold, as ever.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pymongo_resilience.faults import logger
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.calls import NO_DEADLINE
from pymongo_resilience_instrumentation.interception.methods import Method
from pymongo_resilience_instrumentation.interception.within import Within

from .wait_times import For, seen, seen_connecting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from pymongo_resilience_instrumentation.interception.methods import Function, Wrapper
    from pymongo_resilience_instrumentation.runtime import Runtime

GRACE = 0.005
"""Seconds. Where the driver ends its connecting by itself, it closes the socket, too."""


def wrapped(runtime: Runtime) -> Iterator[tuple[Any, str, Wrapper | Method]]:
    """A class or module, the name of one of its attributes, and what runs in its place."""
    for owner in driver.waits.selection_timeout_owners():
        yield owner, driver.waits.SELECTION_TIMEOUT, selection_timeout(runtime)
    for half, connecting in (
        (driver.waits.SYNC_HALF, connect(runtime)),
        (driver.waits.ASYNC_HALF, connect_async(runtime)),
    ):
        asynchronous = half is driver.waits.ASYNC_HALF
        for module, what in (("topology", For.SERVER), ("pool", For.CONNECTION)):
            waiting = wait(runtime, of_pool=what is For.CONNECTION)
            if runtime.shows_calls:
                waiting = seen(runtime, waiting, what, asynchronous=asynchronous)
            yield half.module(module), half.wait, waiting
        yield half.module("pool"), half.connect, connecting
        making = handshake(runtime, asynchronous=asynchronous)
        if runtime.shows_calls:
            making = seen_connecting(runtime, making, asynchronous=asynchronous)
        yield half.module("pool").Pool, driver.waits.HANDSHAKE, making


def selection_timeout(runtime: Runtime) -> Method:
    """``min(serverSelectionTimeoutMS, remaining)``; the attempt's waits begin here."""
    timeout_in_force = driver.deadline.TIMEOUT.get

    def around(original: Function) -> Function:
        def method(topology: Any) -> Any:
            timeout = original(topology)
            try:
                if timeout_in_force() is not None and runtime.enabled_flag.on:
                    return driver.waits.begin_selection(topology, timeout)
            except Exception:
                logger.exception(
                    "internal error in pymongo-resilience before a server was selected"
                )
            return timeout

        return method

    return Method(around)


def wait(runtime: Runtime, *, of_pool: bool) -> Method:
    """A wait for a condition: for a server, or for a place in the pool. The async one is called
    here and awaited by the caller."""

    def around(original: Function) -> Function:
        def waiting(condition: Any, timeout: Any, *args: Any, **kwargs: Any) -> Any:
            if runtime.enabled_flag.on:
                try:
                    timeout = driver.waits.shortened(timeout, of_pool=of_pool)
                except Exception:
                    logger.exception("internal error in pymongo-resilience before a wait")
            return original(condition, timeout, *args, **kwargs)

        return waiting

    return Method(around)


def _within(seconds: Callable[..., float | None], runtime: Runtime, *args: Any) -> float | None:
    if not runtime.enabled_flag.on:
        return None
    try:
        return seconds(*args)
    except Exception:
        logger.exception("internal error in pymongo-resilience before a connection was made")
        return None


def handshake(runtime: Runtime, *, asynchronous: bool) -> Method:
    """A connection until it is ready, hello and authentication included: what selecting a server
    has left of ``min(serverSelectionTimeoutMS, remaining)``."""

    def begin(_pool: Any) -> AbstractContextManager[None]:
        seconds = driver.waits.time_to_wait()
        return NO_DEADLINE if seconds is None else driver.waits.within_wait(seconds)

    return Within(begin).method(runtime.enabled_flag, asynchronous)


def connect(runtime: Runtime) -> Wrapper:
    """``min(connectTimeoutMS, remaining)`` until the socket is there."""

    def wrapper(
        wrapped: Callable[..., Any], _module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        seconds = _within(driver.waits.time_to_connect, runtime, args, kwargs)
        if seconds is None:
            return wrapped(*args, **kwargs)
        within = driver.waits.within_wait(seconds)
        try:
            with within:
                return wrapped(*args, **kwargs)
        except BaseException as error:
            # Once more: an exception of a signal handler may have struck while it was left.
            within.__exit__(None, error, None)
            raise

    return wrapper


def connect_async(runtime: Runtime) -> Wrapper:
    """As ``connect``. The TLS handshake, which pymongo leaves to asyncio and its 60 s, ends in time
    as well."""

    async def wrapper(
        wrapped: Callable[..., Any], _module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        seconds = _within(driver.waits.time_to_connect, runtime, args, kwargs)
        if seconds is None:
            return await wrapped(*args, **kwargs)
        within = driver.waits.within_wait(seconds)
        try:
            with within:
                if not driver.waits.connects_with_tls(args, kwargs):
                    return await wrapped(*args, **kwargs)
                try:
                    async with asyncio.timeout(seconds + GRACE):
                        return await wrapped(*args, **kwargs)
                except TimeoutError as error:
                    # asyncio's own has no text, and the driver's message would be without a reason.
                    raise TimeoutError("timed out") from error
        except BaseException as error:
            within.__exit__(None, error, None)
            raise

    return wrapper
