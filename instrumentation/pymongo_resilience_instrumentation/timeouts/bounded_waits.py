"""Limits waits for a server, a connection and a socket to the remaining time, and measures them.

Without a deadline, waits are not shortened and pymongo's own timeouts apply. With a deadline,
pymongo 4.19 and 4.20 give server selection all the remaining time but check the clock only every
half second; a checkout gets all of that time again; and connecting ignores connectTimeoutMS. Waits
that return immediately are not measured.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from pymongo import lock
from pymongo.errors import (
    AutoReconnect,
    NetworkTimeout,
    OperationFailure,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
)

from pymongo_resilience.enabled_flag import EnabledFlag
from pymongo_resilience_instrumentation import driver, in_progress
from pymongo_resilience_instrumentation.addresses import address_text
from pymongo_resilience_instrumentation.failures.causes import LOGINS, cause_of
from pymongo_resilience_instrumentation.failures.reasons import AttemptTimeoutError
from pymongo_resilience_instrumentation.interceptor import (
    Entered,
    Function,
    Interceptor,
    Row,
    Wrapper,
)
from pymongo_resilience_instrumentation.limits import NO_DEADLINE
from pymongo_resilience_instrumentation.operation import Operation

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.driver.protocols import NetworkInterface, Pool

T = TypeVar("T")

TIMEOUT_TEXT = "timeout: "
"""Text before the number at the end of a WaitQueueTimeoutError (pymongo 4.20)."""
GRACE = 0.005
"""Seconds. If pymongo itself ends connecting, it also closes the socket, so let it do so first."""
RESOLUTION = 0.001
"""Seconds. pymongo checks its own clock after a wait, and it started a moment after ours."""
HUNG_UP: Mapping[type[BaseException], str] = {
    ConnectionResetError: "connection closed by the peer during the TLS handshake",
    ConnectionAbortedError: "TLS handshake aborted",
    ssl.SSLEOFError: "EOF during the TLS handshake",
}
CONNECTING = 1.0
"""Minimum seconds for making a connection under ``attempt_timeout_ms``, because TCP, TLS, hello and
authentication take several round trips.
"""


def observed(connected: Connected | None) -> Iterator[Row]:
    """Yield what to wrap for ``strategy=driver``: waits are measured, but only pymongo ends
    them.
    """
    for api in (driver.clients.SYNC_API, driver.clients.ASYNC_API):
        pool = api.module("pool")
        yield api.module("topology"), api.wait, MeasuredWait(WaitKind.SERVER)
        yield pool, api.wait, MeasuredWait(WaitKind.CONNECTION)
        yield pool.Pool, driver.selection.HANDSHAKE, MeasuredHandshake(connected)


def wrapped(
    enabled_flag: EnabledFlag,
    dead_peer_s: int,
    terminal_check: TerminalCheck | None,
    connected: Connected | None,
) -> Iterator[Row]:
    """Yield what to wrap, and the interceptors.

    Args:
        enabled_flag: Whether the wrappers are active.
        dead_peer_s: See ``Config``.
        terminal_check: Decides whether a wait for a server can help; None if pymongo decides about
            retries.
        connected: Called after each attempt to make a connection.
    """
    for api in (driver.clients.SYNC_API, driver.clients.ASYNC_API):
        pool = api.module("pool")
        yield api.module("topology"), api.wait, ConditionWait(WaitKind.SERVER, terminal_check)
        yield pool, api.wait, ConditionWait(WaitKind.CONNECTION)
        yield pool, api.connect, Connect(dead_peer_s)
        yield api.module("srv_resolver"), driver.clients.LOOKUP, Lookup()
        yield pool.Pool, driver.selection.HANDSHAKE, Handshake(connected)
    if sys.version_info < (3, 12):
        # In CPython 3.11, ``asyncio.wait_for`` may swallow a cancellation; see ``wait_for`` below.
        pool = driver.clients.ASYNC_API.module("pool")
        yield pool, driver.selection.ASYNC_SEND, _kept_while_sending(enabled_flag)
        yield lock, "wait_for", KeptWhileWaiting()


class WaitKind(Enum):
    """What an operation waits for. The value is the outcome of a successful wait."""

    SERVER = "selected"
    CONNECTION = "checked_out"


@dataclass(slots=True, eq=False, repr=False)
class Wait:
    """One wait for a server or a connection. May consist of several waits on a condition."""

    what: WaitKind
    seconds: float = 0.0
    connecting: float | None = None
    """Seconds in which the operation itself made a connection; None if it made none."""
    ended_ns: int = 0
    """Nanoseconds since the epoch."""
    outcome: str | None = None
    """None until the wait is over."""
    began: float = field(default_factory=driver.csot.now)
    """On pymongo's clock."""
    own_limit: float | None = None
    """``waitQueueTimeoutMS`` in seconds, if it limits this wait."""

    def add(self, seconds: float, *, connecting: bool) -> None:
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
            # Server selection fails only by a timeout. Any other error was raised after it.
            self.outcome = "failed" if self.what is WaitKind.CONNECTION else self.what.value
        else:
            self.outcome = "interrupted"


TerminalCheck = Callable[[Operation], Exception | None]
"""Called before a wait for a server, with the topology's lock held. Returns the error to raise at
once, if waiting cannot help.
"""
Connected = Callable[["Pool", float, BaseException | None], None]
"""Called with a pool that tried to make a connection, the seconds it took, and the error if it
failed.
"""


def name_configured_limit(error: WaitQueueTimeoutError, operation: Operation) -> None:
    """Make the error of a full pool name the ``waitQueueTimeoutMS`` that ended the wait.

    pymongo's text would name the operation's timeout instead.
    """
    waits = operation.limits.waits
    wait = waits[-1] if waits else None
    if wait is not None and wait.own_limit is not None and error.args:
        text, given, _ = str(error.args[0]).rpartition(TIMEOUT_TEXT)
        error.args = (f"{text}{given}{wait.own_limit}",) if given else error.args


def end_waits(operation: Operation, error: BaseException | None) -> None:
    """End the waits of an attempt that is over. ``error`` is None if it sent something."""
    waits = operation.limits.waits
    if waits and waits[-1].outcome is None:
        waits[-1].end(error)


@dataclass(slots=True, eq=False, repr=False)
class _Waiting:
    """The state of an interceptor of waits."""

    instance: Any
    seconds: float | None
    """None means no limit."""
    deadline: AbstractContextManager[None] = NO_DEADLINE
    operation: Operation | None = None
    """The operation that waits, if any."""
    error: Exception | None = None
    """Raised instead of waiting, if waiting cannot help."""
    began: float = field(default_factory=driver.csot.now)


class MeasuredWait(Interceptor):
    """Measures how long an operation waits, and changes nothing else."""

    def __init__(self, what: WaitKind) -> None:
        self._what = what

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> _Waiting:
        operation = in_progress.current()
        self._begin(operation)
        return _Waiting(args[0], None, operation=operation)

    def _begin(self, operation: Operation | None) -> None:
        if operation is None:
            return
        waits = operation.limits.waits
        if waits is None:
            waits = operation.limits.waits = []
        if waits and waits[-1].outcome is None and waits[-1].what is not self._what:
            # The operation now waits for something else, so the previous wait has succeeded.
            waits[-1].end(None)
        # pymongo waits on a condition repeatedly; all of these belong to the same wait.
        if not waits or waits[-1].outcome is not None:
            waits.append(Wait(self._what))

    def succeeded(self, waiting: _Waiting, result: T) -> T:
        self._add(waiting)
        return result

    def failed(self, waiting: _Waiting | None, error: BaseException, *_: Any) -> BaseException:
        if waiting is not None:
            self._add(waiting)
        return error

    def _add(self, waiting: _Waiting) -> None:
        if (operation := waiting.operation) is None or not (waits := operation.limits.waits):
            return
        # The operation waits no longer, so it is not creating a connection either.
        operation.note_handshake(None)
        seconds = driver.csot.now() - waiting.began
        waits[-1].add(seconds, connecting=isinstance(self, MeasuredHandshake))


class ConditionWait(MeasuredWait):
    """Limits a wait for a server or for a place in the pool. The sync version runs with their lock
    held.
    """

    def __init__(self, what: WaitKind, terminal_check: TerminalCheck | None = None) -> None:
        super().__init__(what)
        self._terminal_check = terminal_check

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> _Waiting:
        condition, timeout = args
        operation = in_progress.current()
        remaining = driver.csot.remaining()
        is_configured = operation is not None and operation.limits.source.is_configuration
        # pymongo waits on its condition for half a second at a time, or for the whole timeout. Cut
        # the wait to what is left.
        if remaining is not None:
            remaining = max(remaining, RESOLUTION)
            timeout = remaining if timeout is None else min(timeout, remaining)
        if operation is not None and self._terminal_check is not None:
            # Ask before the wait is recorded: an operation that fails at once has not waited.
            error = self._terminal_check(operation)
            if error is not None:
                return _Waiting(condition, timeout, error=error)
        self._begin(operation)
        if operation is not None and is_configured and self._what is WaitKind.CONNECTION:
            timeout = self._keep_configured_limit(operation, timeout)
        return _Waiting(condition, timeout, operation=operation)

    def _keep_configured_limit(self, operation: Operation, timeout: float | None) -> float | None:
        """Also apply the pool's ``waitQueueTimeoutMS``, if the timeout comes from the
        configuration.
        """
        own: float | None = operation.client.options.pool_options.wait_queue_timeout
        waits = operation.limits.waits
        if own is None or not waits:
            return timeout
        wait = waits[-1]
        remaining = max(wait.began + own - driver.csot.now(), RESOLUTION)
        if timeout is not None and timeout < remaining:
            return timeout
        # Remember which limit ended the wait, for the text of the error.
        wait.own_limit = own
        return remaining

    def send(self, waiting: _Waiting, original: Function, *_given: Any, **_kwargs: Any) -> Any:
        if waiting.error is not None:
            raise waiting.error
        # The arguments of pymongo's wait, with the shorter timeout.
        return original(waiting.instance, waiting.seconds)


class MeasuredHandshake(MeasuredWait):
    """Measures how long it takes to make a connection, including hello and authentication."""

    def __init__(self, connected: Connected | None) -> None:
        super().__init__(WaitKind.CONNECTION)
        self._connected = connected

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Waiting:
        # Connections of monitors, and those for minPoolSize, have no handler. No operation waits
        # for them.
        handler = args[1] if len(args) > 1 else kwargs.get("handler")
        operation = None if handler is None else in_progress.current()
        self._begin(operation)
        return _Waiting(args[0], None, operation=operation)

    def succeeded(self, waiting: _Waiting, connection: T) -> T:
        self._add(waiting)
        self._report(waiting)
        return connection

    def failed(self, waiting: _Waiting | None, error: BaseException, *_: Any) -> BaseException:
        if waiting is not None:
            self._add(waiting)
            self._report(waiting, error)
        return error

    def _report(self, waiting: _Waiting, error: BaseException | None = None) -> None:
        if self._connected is not None and not in_progress.in_foreign_call():
            self._connected(waiting.instance, driver.csot.now() - waiting.began, error)


class Handshake(MeasuredHandshake):
    """Limits making a connection to the remaining time, and to the time of one attempt.

    As in pymongo, ``serverSelectionTimeoutMS`` does not apply here: a client for which it is
    shorter than a handshake could never connect.
    """

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Waiting:
        # As above: connections of monitors, and those for minPoolSize, have no handler.
        handler = args[1] if len(args) > 1 else kwargs.get("handler")
        pool, operation = args[0], None if handler is None else in_progress.current()
        remaining, began = driver.csot.remaining(), driver.csot.now()
        attempt = None if operation is None else operation.limits.attempt_timeout
        if attempt is not None:
            # A handshake takes several round trips, whereas ``attempt_timeout_ms`` is chosen for
            # one.
            attempt = max(attempt, CONNECTING)
            if remaining is None or attempt <= remaining:
                remaining = attempt
            else:
                attempt = None
        limit = NO_DEADLINE if remaining is None else driver.csot.within(remaining)
        self._begin(operation)
        return _Waiting(pool, attempt, limit, operation, began=began)

    def succeeded(self, waiting: _Waiting, connection: T) -> T:
        driver.connections.count_login(waiting.instance, refused=False)
        return super().succeeded(waiting, connection)

    def failed(self, waiting: _Waiting | None, error: BaseException, *_: Any) -> BaseException:
        if waiting is None:
            return error
        super().failed(waiting, error)
        if isinstance(error, OperationFailure):
            if cause_of(error) in LOGINS:
                # Fast failing counts consecutive refusals.
                driver.connections.count_login(waiting.instance, refused=True)
        elif (
            isinstance(error, NetworkTimeout)
            and waiting.seconds is not None
            # A socket's own clock may end the wait a moment early.
            and driver.csot.now() >= waiting.began + waiting.seconds - RESOLUTION
        ):
            error.__cause__ = AttemptTimeoutError(waiting.seconds)
            # pymongo's own text would blame a timeoutMS that was not set.
            error.args = (f"{address_text(waiting.instance.address)}: {error.__cause__}",)
        return error


class Connect(Interceptor):
    """Limits connecting to ``min(connectTimeoutMS, remaining)``, and starts to watch the peer.

    pymongo 4.20 ignores connectTimeoutMS under a deadline.
    """

    def __init__(self, dead_peer_s: int) -> None:
        self._dead_peer_s = dead_peer_s

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> _Waiting:
        options = args[1]
        seconds = driver.csot.remaining()
        if seconds is None:
            return _Waiting(options, None)
        # A connectTimeoutMS of 0 means no limit.
        seconds = min(seconds, options.connect_timeout or seconds)
        return _Waiting(options, seconds, driver.csot.within(seconds))

    def succeeded(self, connecting: _Waiting, interface: NetworkInterface) -> NetworkInterface:
        if self._dead_peer_s:
            driver.connections.watch_peer(
                interface, self._dead_peer_s, is_monitor_pool=not connecting.instance.pause_enabled
            )
        return interface

    async def send_async(
        self, connecting: _Waiting, original: Function, *args: Any, **kwargs: Any
    ) -> Any:
        """Limit the TLS handshake and the resolver's thread as well, and keep cancellations."""
        task, seconds = asyncio.current_task(), connecting.seconds
        before = 0 if task is None else task.cancelling()
        try:
            # pymongo leaves the TLS handshake to asyncio, whose own limit is 60 seconds.
            async with asyncio.timeout(None if seconds is None else seconds + GRACE):
                interface = await original(*args, **kwargs)
        except TimeoutError as error:
            # asyncio's own TimeoutError has no text, so pymongo's message would give no reason.
            raise TimeoutError("timed out") from error
        # In CPython 3.11 the cancellation may have been swallowed on the way. Close the socket,
        # which nobody would use.
        if task is not None and task.cancelling() > before:
            await interface.close()
            raise asyncio.CancelledError
        return interface

    def failed(self, connecting: _Waiting | None, error: BaseException, *_: Any) -> BaseException:
        cause = error.__cause__
        if connecting is not None and isinstance(error, AutoReconnect) and cause is not None:
            # If the peer closes the connection during a handshake, asyncio raises errors without a
            # text.
            text = HUNG_UP.get(type(cause))
            if text is not None and not str(cause):
                cause.args = (text,)
                error.args = (str(error).replace(":  (", f": {text} (", 1),)
        return error


class Lookup(Interceptor):
    """Limits the DNS lookup of a mongodb+srv URI to ``min(connectTimeoutMS, remaining)``."""

    def send(
        self,
        _entered: Entered,
        original: Function,
        *args: Any,
        lifetime: float | None = None,
        **kwargs: Any,
    ) -> Any:
        remaining = driver.csot.remaining()
        if remaining is not None:
            # dnspython requires a positive lifetime.
            remaining = max(remaining, RESOLUTION)
            lifetime = remaining if lifetime is None else min(lifetime, remaining)
        return original(*args, lifetime=lifetime, **kwargs)


def _kept_while_sending(enabled_flag: EnabledFlag) -> Wrapper:
    """Return a wrapper of pymongo's async send that does not lose a cancellation."""

    async def wrapper(
        original: Function, _pool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if not enabled_flag.on:
            await original(*args, **kwargs)
            return
        conn, buf = args
        seconds = conn.gettimeout
        try:
            # As with ``asyncio.wait_for``: send nothing if the time is over.
            if seconds is not None and seconds <= 0:
                raise TimeoutError
            # pymongo uses ``asyncio.wait_for`` here. Before CPython 3.12, that drops a cancellation
            # that arrives together with the result.
            async with asyncio.timeout(seconds):
                await conn.write(buf)
        except TimeoutError as error:
            # asyncio's own TimeoutError has no text.
            raise TimeoutError("timed out") from error

    return wrapper


class KeptWhileWaiting(Interceptor):
    """Replaces ``asyncio.wait_for`` where pymongo waits for a lock, for the same reason."""

    async def send_async(
        self, _entered: Entered, _original: Function, *args: Any, **kwargs: Any
    ) -> Any:
        return await wait_for(*args, **kwargs)


async def wait_for(fut: Coroutine[Any, Any, Any], timeout: float | None) -> Any:  # noqa: ASYNC109 - asyncio's names
    """Wait as ``asyncio.wait_for`` does from CPython 3.12 on.

    It does not create a task for each call, and so does not lose a cancellation.
    """
    if timeout is not None and timeout <= 0:
        # Never awaited, so close it, or Python warns about it.
        fut.close()
        raise TimeoutError
    async with asyncio.timeout(timeout):
        return await fut
