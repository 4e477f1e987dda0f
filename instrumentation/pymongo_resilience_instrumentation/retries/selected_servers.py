"""Each attempt on its server: counted from the driver's selection until it is over, and let through
by the server's circuit breaker."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pymongo_resilience.faults import logger
from pymongo_resilience.unfinished import closes_a_coroutine
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.deferred import defer

from .attempts import Attempts

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo_resilience_instrumentation.interception.methods import Wrapper
    from pymongo_resilience_instrumentation.runtime import Runtime
    from pymongo_resilience_instrumentation.selection.operation_counts import AttemptCount

FAULT = "internal error in pymongo-resilience after a server was selected"


def get_server(runtime: Runtime, asynchronous: bool) -> Wrapper:
    """The loop's ``_get_server``. What it ends with is what counts: where there is one address only
    or the operation is bound to one, the selector is never called.

    Raises CircuitBreakerOpenError, which is also pymongo's AutoReconnect.
    """

    def begin(loop: Any) -> Attempts | None:
        work = driver.retry_loop.func(loop)
        if type(work) is not Attempts or work.runtime is not runtime:
            return None
        work.call.selecting = work.count
        return work

    def end(work: Attempts, server: Any) -> None:
        if work.count is None:
            return
        address = driver.retry_loop.address_of(server)
        if address is not None:
            work.count.take(address)

    def sync_wrapper(
        wrapped: Callable[..., Any], loop: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        work = begin(loop)
        if work is None:
            return wrapped(*args, **kwargs)
        try:
            server = wrapped(*args, **kwargs)
        finally:
            work.call.selecting = None
        _harmless(end, work, server)
        work.ask_breaker(server)
        return server

    async def async_wrapper(
        wrapped: Callable[..., Any], loop: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        work = begin(loop)
        if work is None:
            return await wrapped(*args, **kwargs)
        try:
            server = await wrapped(*args, **kwargs)
        finally:
            work.call.selecting = None
        _harmless(end, work, server)
        work.ask_breaker(server)
        return server

    return async_wrapper if asynchronous else sync_wrapper


def _harmless(end: Callable[[Attempts, Any], None], work: Attempts, server: Any) -> None:
    try:
        end(work, server)
    except Exception:
        logger.exception(FAULT)


def counted(
    send: Callable[[Any], Any], count: AttemptCount, asynchronous: bool
) -> Callable[[Any], Any]:
    """One attempt; its count is given back however it ends, cancelled and interrupted included."""

    def sync_attempt(loop: Any) -> Any:
        try:
            return send(loop)
        finally:
            try:
                count.release()
            except Exception:
                logger.exception(FAULT)

    async def async_attempt(loop: Any) -> Any:
        try:
            return await send(loop)
        finally:
            try:
                if closes_a_coroutine(sys.exception()):
                    defer(count.release)
                else:
                    count.release()
            except Exception:
                logger.exception(FAULT)

    return async_attempt if asynchronous else sync_attempt
