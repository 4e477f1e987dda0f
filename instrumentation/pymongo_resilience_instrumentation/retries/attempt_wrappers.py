"""What runs in place of the retry loop's ``_read`` and ``_write``: one attempt each, which the
executor repeats.

The first attempt of most operations is the driver's own. What it takes to repeat one is made once
it has failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience.faults import logger
from pymongo_resilience.unfinished import closes_a_coroutine
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.interception.methods import Method

from .attempts import Attempts, refuse_lost_txn_number
from .loop_calls import after_failure
from .selected_servers import counted

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.interception.methods import Function
    from pymongo_resilience_instrumentation.runtime import Runtime


class _FirstWrite:
    """Stands in for the function that the loop calls once it has a connection: that it was called
    is how we know that a write may have been sent."""

    __slots__ = ("_func", "_loop", "reached_connection", "was_retryable")

    def __init__(self, loop: Any, func: Any) -> None:
        self._loop = loop
        self._func = func
        self.was_retryable = driver.retry_loop.is_retryable(loop)
        self.reached_connection = False
        driver.retry_loop.replace_func(loop, self)

    def __call__(self, session: Any, connection: Any, retryable: bool) -> Any:
        if self.was_retryable and not retryable:
            refuse_lost_txn_number(self._loop, connection)
        self.reached_connection = True
        return self._func(session, connection, retryable)

    @property
    def wanted_txn_number(self) -> bool:
        """To be asked after a failure; the end of a transaction has the transaction's number."""
        return self.was_retryable and not driver.retry_loop.in_transaction(self._loop)

    def release(self) -> None:
        """As with Attempts: nothing may keep the two alive together."""
        driver.retry_loop.replace_func(self._loop, self._func)


def read(runtime: Runtime, asynchronous: bool) -> Method:
    executor, async_executor = runtime.executor, runtime.async_executor

    def of_sync(original: Function) -> Function:
        def method(loop: Any) -> Any:
            work = driver.retry_loop.func(loop)
            if type(work) is Attempts and work.runtime is runtime:
                return executor.run(_prepared(work, original, asynchronous))
            try:
                return original(loop)
            except Exception as error:
                if not _is_light(runtime, loop):
                    raise
                failed = error
            try:
                reached = driver.retry_loop.reached_connection(failed)
                with _after(runtime, loop, failed, reached, original) as work:
                    return executor.recover(work, failed)
            finally:
                del failed

        return method

    def of_async(original: Function) -> Function:
        async def method(loop: Any) -> Any:
            work = driver.retry_loop.func(loop)
            if type(work) is Attempts and work.runtime is runtime:
                return await async_executor.run(_prepared(work, original, asynchronous))
            try:
                return await original(loop)
            except Exception as error:
                if closes_a_coroutine(error) or not _is_light(runtime, loop):
                    raise
                failed = error
            try:
                reached = driver.retry_loop.reached_connection(failed)
                with _after(runtime, loop, failed, reached, original) as work:
                    return await async_executor.recover(work, failed)
            finally:
                del failed

        return method

    return Method(of_async if asynchronous else of_sync)


def write(runtime: Runtime, asynchronous: bool) -> Method:
    executor, async_executor = runtime.executor, runtime.async_executor

    def of_sync(original: Function) -> Function:
        def method(loop: Any) -> Any:
            work = driver.retry_loop.func(loop)
            if type(work) is Attempts and work.runtime is runtime:
                return executor.run(_prepared(work, original, asynchronous))
            if not _is_light(runtime, loop):
                return original(loop)
            first = _FirstWrite(loop, work)
            try:
                return original(loop)
            except Exception as error:  # noqa: BLE001 - every failure is judged
                failed = error
            finally:
                first.release()
            try:
                with _after(runtime, loop, failed, first.reached_connection, original) as work:
                    work.wants_txn_number = first.wanted_txn_number
                    return executor.recover(work, failed)
            finally:
                del failed

        return method

    def of_async(original: Function) -> Function:
        async def method(loop: Any) -> Any:
            work = driver.retry_loop.func(loop)
            if type(work) is Attempts and work.runtime is runtime:
                return await async_executor.run(_prepared(work, original, asynchronous))
            if not _is_light(runtime, loop):
                return await original(loop)
            first = _FirstWrite(loop, work)
            try:
                return await original(loop)
            except Exception as error:
                if closes_a_coroutine(error):
                    raise
                failed = error
            finally:
                first.release()
            try:
                with _after(runtime, loop, failed, first.reached_connection, original) as work:
                    work.wants_txn_number = first.wanted_txn_number
                    return await async_executor.recover(work, failed)
            finally:
                del failed

        return method

    return Method(of_async if asynchronous else of_sync)


def _is_light(runtime: Runtime, loop: Any) -> bool:
    """Whether our ``run`` is around it, which hears that we gave up."""
    call = calls.found()
    return call is not None and call.loop is loop and runtime.enabled_flag.on


def _prepared(work: Attempts, original: Function, asynchronous: bool) -> Attempts:
    work.send = original
    if work.count is not None:
        work.send = counted(original, work.count, asynchronous)
    return work


def _after(
    runtime: Runtime, loop: Any, error: Exception, reached_connection: bool, original: Function
) -> Attempts:
    """What repeats a loop that ran as it is until its first attempt failed.

    Raises ``error`` where a fault of ours keeps us from that.
    """
    try:
        work = after_failure(runtime, loop, reached_connection)
    except Exception:
        logger.exception("internal error in pymongo-resilience after an attempt")
        raise error from error.__cause__
    work.send = original
    return work
