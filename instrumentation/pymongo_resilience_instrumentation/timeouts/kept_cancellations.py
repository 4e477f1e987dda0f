"""Cancellations that CPython drops before 3.12: its ``wait_for`` returns the result where both
arrive together. pymongo sends, waits and connects by it; under a deadline, every command.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.interception.methods import Method

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from pymongo_resilience.enabled_flag import EnabledFlag
    from pymongo_resilience_instrumentation.interception.interceptor import Wrapped
    from pymongo_resilience_instrumentation.interception.methods import Function


def wrapped(enabled_flag: EnabledFlag) -> Iterator[Wrapped]:
    if sys.version_info >= (3, 12):
        return

    def send(original: Function) -> Function:
        async def async_sendall(conn: Any, buf: bytes) -> None:
            if not enabled_flag.on:
                await original(conn, buf)
                return
            try:
                await wait_for(conn.write(buf), conn.gettimeout)
            except TimeoutError as error:
                # asyncio's own has no text.
                raise TimeoutError("timed out") from error

        return async_sendall

    def wait(original: Function) -> Function:
        def waiting(fut: Any, timeout: float | None) -> Any:
            return (wait_for if enabled_flag.on else original)(fut, timeout)

        return waiting

    def connect(original: Function) -> Function:
        async def connecting(*args: Any, **kwargs: Any) -> Any:
            task = asyncio.current_task()
            before = 0 if task is None else task.cancelling()
            interface = await original(*args, **kwargs)
            if enabled_flag.on and task is not None and task.cancelling() > before:
                await interface.close()
                raise asyncio.CancelledError
            return interface

        return connecting

    pool = driver.waits.ASYNC_HALF.module("pool")
    yield pool, driver.waits.ASYNC_SEND, Method(send)
    yield pool, driver.waits.ASYNC_HALF.connect, Method(connect)
    yield driver.waits.lock_module(), "wait_for", Method(wait)


async def wait_for(awaitable: Coroutine[Any, Any, Any], seconds: float | None) -> Any:
    """``asyncio.wait_for`` as it is from 3.12 on, and without a task for each call."""
    if seconds is not None and seconds <= 0:
        awaitable.close()
        raise TimeoutError
    async with asyncio.timeout(seconds):
        return await awaitable
