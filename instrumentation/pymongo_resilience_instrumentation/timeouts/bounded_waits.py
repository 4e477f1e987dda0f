"""Waits for a server, a connection and a socket: cut to the time that is left, and measured.

Without a deadline none is cut: the driver's own timeouts hold. Under one (pymongo 4.19 and 4.20)
its selection has all the time that is left and looks at the clock every half second, a checkout has
all of it again, and connecting ignores connectTimeoutMS. What need not wait is not measured.
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
"""Before the number at the end of a WaitQueueTimeoutError (pymongo 4.20)."""
GRACE = 0.005
"""Seconds. Where the driver ends its connecting by itself, it closes the socket, too."""
RESOLUTION = 0.001
"""Seconds. The driver looks at its own clock after a wait, and it began a moment after ours."""
HUNG_UP: Mapping[type[BaseException], str] = {
    ConnectionResetError: "connection closed by the peer during the TLS handshake",
    ConnectionAbortedError: "TLS handshake aborted",
    ssl.SSLEOFError: "EOF during the TLS handshake",
}
CONNECTING = 1.0
"""Seconds that ``attempt_timeout_ms`` leaves at least for making a connection: TCP, TLS, hello and
authentication are several round trips."""


def observed(connected: Connected | None) -> Iterator[Row]:
    """For ``strategy=driver``: waits are measured, and end when pymongo ends them."""
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
    """``dead_peer_s``: see ``Config``; ``hopeless``: where retries are decided here."""
    for api in (driver.clients.SYNC_API, driver.clients.ASYNC_API):
        pool = api.module("pool")
        yield api.module("topology"), api.wait, ConditionWait(WaitKind.SERVER, terminal_check)
        yield pool, api.wait, ConditionWait(WaitKind.CONNECTION)
        yield pool, api.connect, Connect(dead_peer_s)
        yield api.module("srv_resolver"), driver.clients.LOOKUP, Lookup()
        yield pool.Pool, driver.selection.HANDSHAKE, Handshake(connected)
    if sys.version_info < (3, 12):
        pool = driver.clients.ASYNC_API.module("pool")
        yield pool, driver.selection.ASYNC_SEND, _kept_while_sending(enabled_flag)
        yield lock, "wait_for", KeptWhileWaiting()


class WaitKind(Enum):
    """What is waited for. The value is the outcome of a wait that succeeded."""

    SERVER = "selected"
    CONNECTION = "checked_out"


@dataclass(slots=True, eq=False, repr=False)
class Wait:
    """One that had to be, once or again and again until a server or a connection was there."""

    what: WaitKind
    seconds: float = 0.0
    connecting: float | None = None
    """How many of the seconds the operation made a connection itself; None if it did not."""
    ended_ns: int = 0
    """Since the epoch."""
    outcome: str | None = None
    """None while it is not over."""
    began: float = field(default_factory=driver.csot.now)
    """On the driver's clock."""
    own_limit: float | None = None
    """Seconds of ``waitQueueTimeoutMS``, if that is how long it may last."""

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
            # A selection fails in no other way; what comes after it may.
            self.outcome = "failed" if self.what is WaitKind.CONNECTION else self.what.value
        else:
            self.outcome = "interrupted"


TerminalCheck = Callable[[Operation], Exception | None]
"""Called before a wait for a server, with the topology's lock held; returns what the operation
fails with at once where the wait could not help."""
Connected = Callable[["Pool", float, BaseException | None], None]
"""Called with the pool that has made a connection, or failed to, the seconds that it took, and the
error."""


def name_configured_limit(error: WaitQueueTimeoutError, operation: Operation) -> None:
    """Have a full pool's error name the ``waitQueueTimeoutMS`` that ended the wait. The driver's
    text ends with the timeout of the operation."""
    waits = operation.limits.waits
    wait = waits[-1] if waits else None
    if wait is not None and wait.own_limit is not None and error.args:
        text, given, _ = str(error.args[0]).rpartition(TIMEOUT_TEXT)
        error.args = (f"{text}{given}{wait.own_limit}",) if given else error.args


def end_waits(operation: Operation, error: BaseException | None) -> None:
    """Its attempt is over, so its waits are; ``error`` is None for one that sent something."""
    waits = operation.limits.waits
    if waits and waits[-1].outcome is None:
        waits[-1].end(error)


@dataclass(slots=True, eq=False, repr=False)
class _Waiting:
    """What an interceptor of waits has entered."""

    instance: Any
    seconds: float | None
    """None is without end."""
    deadline: AbstractContextManager[None] = NO_DEADLINE
    operation: Operation | None = None
    """The one that waits, if any."""
    error: Exception | None = None
    """Raised in place of a wait that cannot help."""
    began: float = field(default_factory=driver.csot.now)


class MeasuredWait(Interceptor):
    """Measures how long an operation waits, and changes nothing."""

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
            waits[-1].end(None)  # one follows the other
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
        operation.note_handshake(None)
        seconds = driver.csot.now() - waiting.began
        waits[-1].add(seconds, connecting=isinstance(self, MeasuredHandshake))


class ConditionWait(MeasuredWait):
    """A wait for a server, or for a place in the pool. The sync one runs under their lock."""

    def __init__(self, what: WaitKind, terminal_check: TerminalCheck | None = None) -> None:
        super().__init__(what)
        self._hopeless = terminal_check

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> _Waiting:
        condition, timeout = args
        operation = in_progress.current()
        left = driver.csot.remaining()
        configured = operation is not None and operation.limits.source.is_configuration
        if left is not None:
            left = max(left, RESOLUTION)
            timeout = left if timeout is None else min(timeout, left)
        if operation is not None and self._hopeless is not None:
            error = self._hopeless(operation)
            if error is not None:
                return _Waiting(condition, timeout, error=error)
        self._begin(operation)
        if operation is not None and configured and self._what is WaitKind.CONNECTION:
            timeout = self._keep_configured_limit(operation, timeout)
        return _Waiting(condition, timeout, operation=operation)

    def _keep_configured_limit(self, operation: Operation, timeout: float | None) -> float | None:
        """Under a timeout of the configuration, the pool's ``waitQueueTimeoutMS`` holds as well."""
        own: float | None = operation.client.options.pool_options.wait_queue_timeout
        waits = operation.limits.waits
        if own is None or not waits:
            return timeout
        wait = waits[-1]
        left = max(wait.began + own - driver.csot.now(), RESOLUTION)
        if timeout is not None and timeout < left:
            return timeout
        wait.own_limit = own
        return left

    def send(self, waiting: _Waiting, original: Function, *_given: Any, **_kwargs: Any) -> Any:
        if waiting.error is not None:
            raise waiting.error
        return original(waiting.instance, waiting.seconds)


class MeasuredHandshake(MeasuredWait):
    """A connection until it is ready, hello and authentication included."""

    def __init__(self, connected: Connected | None) -> None:
        super().__init__(WaitKind.CONNECTION)
        self._connected = connected

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Waiting:
        # Monitors, and what keeps minPoolSize, have no handler.
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
    """Limit it to what is left of the deadline, and to the time of one attempt.

    Like pymongo, not to ``serverSelectionTimeoutMS``: a client whose limit is shorter than its
    handshakes take would never connect.
    """

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Waiting:
        # Monitors, and what keeps minPoolSize, have no handler.
        handler = args[1] if len(args) > 1 else kwargs.get("handler")
        pool, operation = args[0], None if handler is None else in_progress.current()
        left, began = driver.csot.remaining(), driver.csot.now()
        attempt = None if operation is None else operation.limits.attempt_timeout
        if attempt is not None:
            attempt = max(attempt, CONNECTING)
            if left is None or attempt <= left:
                left = attempt
            else:
                attempt = None
        limit = NO_DEADLINE if left is None else driver.csot.within(left)
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
                driver.connections.count_login(waiting.instance, refused=True)
        elif (
            isinstance(error, NetworkTimeout)
            and waiting.seconds is not None
            # A socket's own clock may end the wait a moment early.
            and driver.csot.now() >= waiting.began + waiting.seconds - RESOLUTION
        ):
            error.__cause__ = AttemptTimeoutError(waiting.seconds)
            # The driver's text names a timeoutMS that was not set.
            error.args = (f"{address_text(waiting.instance.address)}: {error.__cause__}",)
        return error


class Connect(Interceptor):
    """``min(connectTimeoutMS, remaining)`` until the socket is there, whose peer is watched."""

    def __init__(self, dead_peer_s: int) -> None:
        self._dead_peer_s = dead_peer_s

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> _Waiting:
        options = args[1]
        seconds = driver.csot.remaining()
        if seconds is None:
            return _Waiting(options, None)
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
        """The TLS handshake, which pymongo leaves to asyncio and its 60 s, and the resolver's
        thread end in time as well; a cancellation that arrives with the socket is kept."""
        task, seconds = asyncio.current_task(), connecting.seconds
        before = 0 if task is None else task.cancelling()
        try:
            async with asyncio.timeout(None if seconds is None else seconds + GRACE):
                interface = await original(*args, **kwargs)
        except TimeoutError as error:
            # asyncio's own has no text, and the driver's message would be without a reason.
            raise TimeoutError("timed out") from error
        if task is not None and task.cancelling() > before:
            await interface.close()
            raise asyncio.CancelledError
        return interface

    def failed(self, connecting: _Waiting | None, error: BaseException, *_: Any) -> BaseException:
        cause = error.__cause__
        if connecting is not None and isinstance(error, AutoReconnect) and cause is not None:
            # asyncio ends a handshake whose peer is gone with errors that have no text.
            text = HUNG_UP.get(type(cause))
            if text is not None and not str(cause):
                cause.args = (text,)
                error.args = (str(error).replace(":  (", f": {text} (", 1),)
        return error


class Lookup(Interceptor):
    """Look up the hosts of a mongodb+srv URI: ``min(connectTimeoutMS, remaining)``."""

    def send(
        self,
        _entered: Entered,
        original: Function,
        *args: Any,
        lifetime: float | None = None,
        **kwargs: Any,
    ) -> Any:
        left = driver.csot.remaining()
        if left is not None:
            left = max(left, RESOLUTION)
            lifetime = left if lifetime is None else min(lifetime, left)
        return original(*args, lifetime=lifetime, **kwargs)


def _kept_while_sending(enabled_flag: EnabledFlag) -> Wrapper:
    """Before CPython 3.12 ``asyncio.wait_for`` drops a cancellation that arrives together with the
    result. pymongo sends and waits by it; under a deadline, every command."""

    async def wrapper(
        original: Function, _pool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
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


class KeptWhileWaiting(Interceptor):
    """The same of what pymongo waits for by ``asyncio.wait_for``."""

    async def send_async(
        self, _entered: Entered, _original: Function, *args: Any, **kwargs: Any
    ) -> Any:
        return await wait_for(*args, **kwargs)


async def wait_for(fut: Coroutine[Any, Any, Any], timeout: float | None) -> Any:  # noqa: ASYNC109 - asyncio's names
    """``asyncio.wait_for`` as it is from 3.12 on, and without a task for each operation."""
    if timeout is not None and timeout <= 0:
        fut.close()
        raise TimeoutError
    async with asyncio.timeout(timeout):
        return await fut
