"""Connections to dead peers, which the kernel closes; and the reason for which
a connection was lost, where pymongo knows only that it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience.internal_errors import shielded
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.failures.reasons import (
    AttemptInterruptedError,
    DeadPeerError,
    InterruptedAttemptError,
    LostConnectionError,
)
from pymongo_resilience_instrumentation.interception.interceptor import Entered, Interceptor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pymongo_resilience_instrumentation.interception.interceptor import Wrapped
    from pymongo_resilience_instrumentation.interception.methods import Function
    from pymongo_resilience_instrumentation.runtime import Runtime


def wrapped(runtime: Runtime) -> Iterator[Wrapped]:
    """What to wrap of pools and connections, and with what."""
    if runtime.config.dead_peer_s and driver.connections.can_watch():
        for half in (driver.waits.SYNC_HALF, driver.waits.ASYNC_HALF):
            yield half.module("pool"), half.connect, Connected(runtime.config.dead_peer_s)
    for owner in driver.commands.connections_with(driver.connections.FAILED):
        yield owner, driver.connections.FAILED, Failed(runtime.config.dead_peer_s)


class Connected(Interceptor):
    """A new connection, once it is there: connecting has a timeout of its own."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds

    def enter(self, _given: tuple[Any, ...], _kwargs: dict[str, Any]) -> Entered:
        return Entered(None)

    def succeeded(self, _entered: Entered, interface: Any) -> Any:
        with shielded("after a connection was made"):
            driver.connections.watch_peer(interface, self._seconds)
        return interface


class _Lost(Entered):
    __slots__ = ("cause",)

    def __init__(self, connection: Any, cause: Any) -> None:
        super().__init__(connection)
        self.cause = cause


class Failed(Interceptor):
    """What ends a connection: closes it, and always raises."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds if driver.connections.can_watch() else 0

    def enter(self, given: tuple[Any, ...], kwargs: dict[str, Any]) -> _Lost:
        connection, error = driver.connections.failed_arguments(given, kwargs)
        return _Lost(connection, self._named(connection, error))

    def _named(self, connection: Any, error: Any) -> Any:
        if not isinstance(error, Exception):
            return error
        named = isinstance(error, LostConnectionError)
        reason = error if named else driver.connections.reason_of(connection)
        if reason is None and self._seconds:
            silent = driver.connections.peer_was_silent(connection, error, self._seconds)
            reason = DeadPeerError(self._seconds) if silent else None
        if not isinstance(reason, LostConnectionError):
            return error
        driver.connections.count_lost(connection, reason.reason.value)
        return reason

    def send(self, lost: _Lost, original: Function, _: Any, *given: Any, **kwargs: Any) -> Any:
        kwargs.pop("error", None)
        return original(lost.instance, lost.cause, *given[1:], **kwargs)

    def failed(self, lost: _Lost | None, error: BaseException, *_: Any) -> BaseException:
        if lost is None or not isinstance(error, Exception):
            return error
        if not isinstance(lost.cause, InterruptedAttemptError):
            return error
        interrupted = AttemptInterruptedError(str(error))
        interrupted.__cause__ = lost.cause
        return interrupted
