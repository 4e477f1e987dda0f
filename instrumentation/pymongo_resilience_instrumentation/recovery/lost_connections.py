"""The reason for which a connection was lost, where pymongo knows only that it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience.faults import logger
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.failures.lost_connections import (
    DeadPeerError,
    InterruptedAttemptError,
    LostConnectionError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pymongo_resilience_instrumentation.interception.methods import Wrapper
    from pymongo_resilience_instrumentation.runtime import Runtime


def wrapped(runtime: Runtime) -> Iterator[tuple[type, str, Wrapper]]:
    """What to wrap of connections, and with what."""
    for owner, asynchronous in driver.connections.connection_classes():
        yield owner, driver.connections.FAILED, _failed(runtime, asynchronous)


def _failed(runtime: Runtime, asynchronous: bool) -> Wrapper:
    """What ends a connection: closes it, and always raises."""
    seconds = runtime.config.dead_peer_s if driver.connections.CAN_WATCH else 0

    def named(connection: Any, error: Any) -> Any:
        try:
            if not isinstance(error, Exception):
                return error
            reason = driver.connections.reason_of(connection)
            if reason is None and seconds:
                silent = driver.connections.peer_was_silent(connection, error, seconds)
                reason = DeadPeerError(seconds) if silent else None
            if isinstance(reason, LostConnectionError):
                driver.connections.count_lost(connection, reason.reason.value)
                return reason
        except Exception:
            logger.exception("internal error in pymongo-resilience after a connection was lost")
        return error

    def wrapper(
        wrapped: Callable[..., Any], connection: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        error, *others = args
        cause = named(connection, error)
        try:
            return wrapped(cause, *others, **kwargs)
        except Exception:
            if isinstance(cause, InterruptedAttemptError):
                raise driver.connections.cancelled(connection, cause) from cause
            raise

    async def async_wrapper(
        wrapped: Callable[..., Any], connection: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        error, *others = args
        cause = named(connection, error)
        try:
            return await wrapped(cause, *others, **kwargs)
        except Exception:
            if isinstance(cause, InterruptedAttemptError):
                raise driver.connections.cancelled(connection, cause) from cause
            raise

    return async_wrapper if asynchronous else wrapper
