"""What is kept for each client, which is never held alive: found by its identity, gone with it.

What its gauges show is read of pymongo's pools and servers when metrics are collected, and nothing
is counted meanwhile. Closing a client ends the back-offs of its operations.
"""

from __future__ import annotations

import _thread
import asyncio
import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from pymongo import AsyncMongoClient
from pymongo.errors import InvalidOperation
from pymongo.server_description import ServerDescription

from pymongo_resilience.clock import Clock
from pymongo_resilience.internal_errors import contain_internal_errors
from pymongo_resilience_instrumentation import driver, in_progress
from pymongo_resilience_instrumentation.addresses import Address, address_text
from pymongo_resilience_instrumentation.driver.attempts import END_SESSIONS
from pymongo_resilience_instrumentation.driver.sessions import OpenTransaction
from pymongo_resilience_instrumentation.interceptor import Interceptor

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.driver.protocols import Client, CursorAddress, Pool

T = TypeVar("T")
MAX_TRANSACTIONS = 1000
"""Of one client: where its background task does not run, nothing may grow for ever."""
MAX_CURSORS = 1000
"""The same of cursors that are left open."""
LIFETIME = 60.0
"""Seconds after which the server has ended one (``transactionLifetimeLimitSeconds``)."""
POOL_NAME = "db.client.connection.pool.name"
"""An attribute by OpenTelemetry's semantic conventions."""


class ByClient(dict[int, T]):
    """A value for each client, made when it is first asked for: by the client's identity, since
    clients of the same servers are equal. Thread- and task-safe."""

    def __init__(self, make: Callable[[Client], T]) -> None:
        super().__init__()
        self._make = make

    def of(self, client: Client) -> T:
        key = id(client)
        found = self.get(key)
        if found is None:
            made = self._make(client)
            found = self.setdefault(key, made)
            if found is made:
                weakref.finalize(client, self.pop, key, None).atexit = False
        return found

    def known(self, client: Client) -> T | None:
        """The client's value; None where it has none yet."""
        return self.get(id(client))

    def reset_after_fork(self) -> None:
        """In a forked child, for values that have the same."""
        each: Any
        for each in list(self.values()):
            each.reset_after_fork()


class LostCursor(NamedTuple):
    """A cursor that may be open on its server although pymongo takes it for closed. Immutable."""

    cursor_id: int
    address: CursorAddress
    until: float
    """When the background task stops trying, on the driver's clock."""
    rejections: int = 0
    """How often the server has rejected the killCursors as overloaded."""

    @classmethod
    def new(cls, cursor_id: int, address: CursorAddress) -> LostCursor:
        return cls(cursor_id, address, driver.csot.now() + LIFETIME)


class BackOff(Protocol):
    """One wait between two attempts. It is a single wait, without a loop: a test may have frozen
    the clock."""

    def end(self) -> None:
        """End the wait early, from any thread, and perhaps more than once."""


class ThreadBackOff:
    """The back-off of a thread. Thread-safe, and safe in a signal handler."""

    def __init__(self) -> None:
        # Not an Event: its lock may be held by the very thread that the signal handler interrupts.
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def wait(self, seconds: float) -> None:
        """Block the calling thread. The system measures the time, not ``time.monotonic``."""
        self._lock.acquire(timeout=max(0.0, min(seconds, threading.TIMEOUT_MAX)))

    def end(self) -> None:
        with suppress(RuntimeError):  # it has ended already
            self._lock.release()


class TaskBackOff:
    """The back-off of a task, which awaits ``over``. Thread-safe."""

    def __init__(self, loop: asyncio.AbstractEventLoop, over: asyncio.Future[None]) -> None:
        self._loop = loop
        # A weak reference: a task whose event loop was given up must not live as long as the
        # client.
        self._over = weakref.ref(over)

    def end(self) -> None:
        with suppress(RuntimeError):  # its event loop is closed
            self._loop.call_soon_threadsafe(self.end_in_loop)

    def end_in_loop(self) -> None:
        """The same for a caller in the event loop's thread."""
        over = self._over()
        if over is not None and not over.done():
            over.set_result(None)


class ClientState:
    """What is known of one client. Thread- and task-safe."""

    number: int | None = None
    """The smallest that no other client has whose pools are open."""
    limits: Any = None
    """A ClientLimits (selection/); None of a client that was made before ``instrument()``."""
    readiness: Any = None
    """A History (public_api/readiness.py), once its readiness was asked for."""
    closed = False
    """Or about to be."""
    coroutine_closed = False
    """Since the last run of the background task, a coroutine was closed while it waited in an
    operation. What pymongo then sends to clean up cannot be awaited, and its context may be another
    task's: it is pymongo's alone, and an abort is the background task's."""

    def __init__(self, client: Client) -> None:
        self.client = weakref.ref(client)
        self.open_transactions = deque[tuple[OpenTransaction, float]](maxlen=MAX_TRANSACTIONS)
        """What the background task is to abort, and until when it tries."""
        self.lost_cursors = deque[LostCursor](maxlen=MAX_CURSORS)
        """What the background task is to kill, the one that waits longest first."""
        self.back_offs: set[BackOff] = set()
        """Those of its operations that wait now. Changed and copied in one step each, without a
        lock: a signal handler may close the client that the interrupted thread uses."""

    def close(self) -> None:
        """End all back-offs of its operations."""
        self.closed = True
        for each in list(self.back_offs):
            each.end()

    @contextmanager
    def ended_by_close(self, back_off: BackOff) -> Iterator[None]:
        """End ``back_off`` when the client is closed during the block, or was before."""
        self.back_offs.add(back_off)
        try:
            if self.closed:
                back_off.end()
            yield
        finally:
            self.back_offs.discard(back_off)

    def leave_open(self, opened: OpenTransaction | None, until: float | None = None) -> None:
        """Have the background task abort a transaction, and again until then. Safe in a
        finalizer."""
        if opened is not None:
            until = driver.csot.now() + LIFETIME if until is None else until
            self.open_transactions.append((opened, until))

    def kill_later(self, cursor_id: int, address: CursorAddress) -> None:
        """Have the background task kill a cursor once its server can be reached. Safe in a
        finalizer."""
        self.lost_cursors.append(LostCursor.new(cursor_id, address))

    def reset_after_fork(self) -> None:
        """In a forked child: what is open, or being closed, is the parent's."""
        self.closed = False
        self.open_transactions.clear()
        self.lost_cursors.clear()
        self.back_offs.clear()

    def pools(self) -> dict[Address, Pool]:
        """The driver's, by server: none of a client that is closed, that was collected, or that
        has not been used yet in this process."""
        client = self.client()
        return {} if client is None else driver.connections.open_pools(client)

    def attributes(self, address: Address) -> dict[str, Any]:
        return {POOL_NAME: f"{address_text(address)}#{self.number}"}

    def servers(self) -> tuple[str, dict[Address, ServerDescription | None]]:
        """The topology's type, and each server as the client describes it now or None."""
        client = self.client()
        if client is None:
            return "Unknown", {}
        description = client.topology_description
        known = description.server_descriptions()
        return description.topology_type_name, {each: known.get(each) for each in self.pools()}


class Clients(ByClient[ClientState]):
    """Every client that was made or used. Thread- and task-safe."""

    def __init__(self) -> None:
        super().__init__(ClientState)
        self._lock = threading.RLock()

    def reset_after_fork(self) -> None:
        """In a forked child: a thread that is no more may have held the lock."""
        self._lock = threading.RLock()
        super().reset_after_fork()

    def living(self) -> list[Client]:
        """Return the clients that were not collected."""
        clients = [each.client() for each in list(self.values())]
        return [each for each in clients if each is not None]

    def closed(self, client: Client) -> bool:
        known = self.known(client)
        return known is not None and known.closed

    def left_by_coroutine(self, client: Client) -> bool:
        """Return True if a coroutine was closed inside an operation of the client, just before."""
        known = self.known(client)
        return known is not None and known.coroutine_closed

    def alive(self) -> list[ClientState]:
        """Those with listeners of ours that have pools, each with its number."""
        states = [each for each in list(self.values()) if each.limits is not None]
        alive = []
        for each in states:
            with contain_internal_errors("while looking for a client's pools"):
                alive += [each] if each.pools() else []
        with self._lock:
            for each in states:
                if each not in alive:
                    each.number = None
            for each in alive:
                if each.number is None:
                    taken = {other.number for other in alive}
                    each.number = next(n for n in itertools.count(1) if n not in taken)
        return alive

    def attributes(self, pool: Pool) -> dict[str, Any] | None:
        """Those of one of the driver's pools; None for a monitor's."""
        for client in self.alive():
            for address, each in client.pools().items():
                if each is pool:
                    return client.attributes(address)
        return None


def closed_text(client: Client | None) -> str:
    """Return pymongo's words for an operation of a closed client."""
    name = "AsyncMongoClient" if isinstance(client, AsyncMongoClient) else "MongoClient"
    return f"Cannot use {name} after close"


class ClientClock(Clock):
    """A clock whose waits end with the client of the operation in progress: InvalidOperation
    (pymongo's). Thread- and task-safe."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def _client(self) -> ClientState | None:
        """Whose closing ends the wait."""
        operation = in_progress.current()
        # What close() sends itself is repeated while the client is being closed.
        if operation is None or operation.client is None or operation.name == END_SESSIONS:
            return None
        return self._clients.of(operation.client)

    def sleep(self, seconds: float, /) -> None:
        client = self._client()
        if client is None:
            time.sleep(seconds)
            return
        back_off = ThreadBackOff()
        with client.ended_by_close(back_off):
            back_off.wait(seconds)
        if client.closed:
            raise _closed()

    async def sleep_async(self, seconds: float, /) -> None:
        client = self._client()
        if client is None:
            await asyncio.sleep(seconds)
            return
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        back_off = TaskBackOff(loop, over)
        timer = loop.call_later(seconds, back_off.end_in_loop)
        try:
            with client.ended_by_close(back_off):
                await over
        finally:
            timer.cancel()
        if client.closed:
            raise _closed()


def _closed() -> InvalidOperation:
    operation = in_progress.current()
    return InvalidOperation(closed_text(None if operation is None else operation.client))


class Close(Interceptor):
    """A client's ``close()``."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        self._clients.of(args[0]).close()
