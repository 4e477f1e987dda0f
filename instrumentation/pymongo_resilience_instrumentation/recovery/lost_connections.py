"""Finds the reason why a connection was lost if pymongo does not know it, and closes connections to
dead peers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pymongo_resilience.internal_errors import contain_internal_errors
from pymongo_resilience.rules.failure import RetryReason
from pymongo_resilience_instrumentation import driver, in_progress
from pymongo_resilience_instrumentation.addresses import address_text
from pymongo_resilience_instrumentation.failures.reasons import (
    AttemptInterruptedError,
    LostConnectionError,
)
from pymongo_resilience_instrumentation.interceptor import Entered, Function, Interceptor, Row
from pymongo_resilience_instrumentation.runtime import Runtime

if TYPE_CHECKING:
    from pymongo.hello import Hello as HelloReply

    from pymongo_resilience_instrumentation.driver.protocols import Connection


def wrapped(runtime: Runtime) -> Iterator[Row]:
    """Yield the methods of connections to wrap, and their interceptors."""
    for owner in driver.connections.connections_with(driver.connections.FAILED):
        yield owner, driver.connections.FAILED, RaiseConnectionFailure(runtime)
    for owner in driver.connections.connections_with(driver.connections.HELLO):
        yield owner, driver.connections.HELLO, Hello()


class RaiseConnectionFailure(Interceptor):
    """Wraps the method that closes a connection after an error. It always raises."""

    def __init__(self, runtime: Runtime) -> None:
        # Not every operating system can tell when a peer last acknowledged a packet.
        self._seconds = runtime.config.dead_peer_s if driver.connections.can_watch() else 0

    def enter(self, all_args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entered | None:
        connection, *args = all_args
        # pymongo passes the error by position or by keyword.
        [error] = args or kwargs.values()
        if not isinstance(error, Exception):
            return None
        named = _named(connection, error, self._seconds)
        return None if named is error else Entered(named)

    def send(
        self, entered: Entered, original: Function, connection: Connection, *_: Any, **_kwargs: Any
    ) -> Any:
        return original(connection, entered.instance)


def _dead_peer(seconds: int) -> LostConnectionError:
    text = (
        f"connection closed: the server's host has acknowledged no packet for {seconds} s. Check "
        "the host and the network path to it"
    )
    return LostConnectionError(RetryReason.DEAD_PEER, text)


class DeadPeers(Interceptor):
    """Ends attempts whose requests the server's host does not acknowledge.

    Runs before each run of a client's background task, once a second. The kernel alone would give
    up after about 15 minutes. Its option for a shorter time would also end connections to hosts
    that respond but whose buffers are full.
    """

    def __init__(self, runtime: Runtime, seconds: int) -> None:
        self._runtime = runtime
        self._seconds = seconds

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        for attempts in self._runtime.attempts_in_flight():
            with contain_internal_errors("before the background task"):
                connection = attempts.connection or attempts.operation.handshaking
                # Look at the connection of the attempt, or at the one that it is creating.
                if (
                    attempts.client is args[0]
                    and connection is not None
                    and driver.connections.peer_is_gone(connection, self._seconds)
                ):
                    driver.connections.end(connection, _dead_peer(self._seconds))


def _named(connection: Connection, error: Exception, seconds: int) -> Exception:
    reason: Any = driver.connections.reason_of(connection)
    if isinstance(error, LostConnectionError):
        reason = error
    elif (
        reason is None
        and seconds
        # A dead peer shows as an error of the socket, or, if its monitor notices first, as a
        # canceled operation.
        and (isinstance(error, OSError) or driver.monitors.was_cancelled(error))
        and driver.connections.peer_was_silent(connection, error, seconds)
    ):
        reason = _dead_peer(seconds)
    if reason is None:
        return error
    driver.connections.count_lost(connection, reason.reason.value)
    named_error: Exception = reason
    if reason.reason is RetryReason.INTERRUPTED:
        # pymongo labels a plain AutoReconnect as overload if it is raised in a handshake.
        named_error = AttemptInterruptedError(f"{address_text(connection.address)}: {reason}")
        named_error.__cause__ = reason
    return named_error


class Hello(Interceptor):
    """Wraps the handshake of connections for operations."""

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Entered:
        if (operation := in_progress.current()) is not None:
            operation.note_handshake(args[0])
        return Entered(args[0])

    def succeeded(self, entered: Entered, result: HelloReply[Any]) -> HelloReply[Any]:
        driver.connections.ignore_transient_state(entered.instance, result)
        return result
