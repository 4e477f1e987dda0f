"""The state of each client, found by the client's identity, and removed with the client.

Clients are never kept alive. Gauges read pymongo's pools and servers when metrics are collected, so
operations count nothing for them. Closing a client ends the back-offs of its operations.
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
from pymongo_resilience.open_transactions import OpenTransactions
from pymongo_resilience_instrumentation import driver, in_progress
from pymongo_resilience_instrumentation.addresses import Address, address_text
from pymongo_resilience_instrumentation.driver.attempts import END_SESSIONS
from pymongo_resilience_instrumentation.interceptor import Interceptor

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.driver.protocols import Client, CursorAddress, Pool

T = TypeVar("T")
MAX_CURSORS = 1000
"""Maximum of lost cursors per client. The background task may not be running, and nothing may grow
without limit.
"""
KILL_WITHIN = 60.0
"""Seconds during which the background task tries to kill a lost cursor."""
POOL_NAME = "db.client.connection.pool.name"
"""The name of an attribute in OpenTelemetry's semantic conventions."""


class ByClient(dict[int, T]):
    """A value for each client, created when it is first needed. Thread- and task-safe.

    Keys are the clients' identities, because clients of the same servers compare equal.
    """

    def __init__(self, make: Callable[[Client], T]) -> None:
        super().__init__()
        self._make = make

    def of(self, client: Client) -> T:
        key = id(client)
        value = self.get(key)
        if value is None:
            new = self._make(client)
            # Another thread may have created a value in the meantime; both must use the same.
            value = self.setdefault(key, new)
            if value is new:
                # A later client may get the same identity, so the value must go with its client.
                # Do not run the finalizers at exit, when nothing is left to clean up.
                weakref.finalize(client, self.pop, key, None).atexit = False
        return value

    def known(self, client: Client) -> T | None:
        """Return the client's value, or None if it has none yet."""
        return self.get(id(client))

    def reset_after_fork(self) -> None:
        """Call ``reset_after_fork`` of all values in a forked child."""
        value: Any
        for value in list(self.values()):
            value.reset_after_fork()


class LostCursor(NamedTuple):
    """A cursor that may be open on its server, although pymongo considers it closed. Immutable."""

    cursor_id: int
    address: CursorAddress
    until: float
    """When the background task stops trying, on pymongo's clock."""
    rejections: int = 0
    """How often the overloaded server has rejected the killCursors."""

    @classmethod
    def new(cls, cursor_id: int, address: CursorAddress) -> LostCursor:
        return cls(cursor_id, address, driver.csot.now() + KILL_WITHIN)


class BackOff(Protocol):
    """One wait between two attempts.

    It is a single wait and not a loop, because a test may have frozen the clock.
    """

    def end(self) -> None:
        """End the wait early. May be called from any thread, and more than once."""


class ThreadBackOff:
    """The back-off of a thread. Thread-safe, and safe in a signal handler."""

    def __init__(self) -> None:
        # Do not use an Event: the thread that the signal handler interrupts may hold its lock.
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def wait(self, seconds: float) -> None:
        """Block the calling thread. The operating system measures the time, not
        ``time.monotonic``.
        """
        self._lock.acquire(timeout=max(0.0, min(seconds, threading.TIMEOUT_MAX)))

    def end(self) -> None:
        # The wait may have ended already.
        with suppress(RuntimeError):
            self._lock.release()


class TaskBackOff:
    """The back-off of a task, which awaits ``over``. Thread-safe."""

    def __init__(self, loop: asyncio.AbstractEventLoop, over: asyncio.Future[None]) -> None:
        self._loop = loop
        # A weak reference, because a task of an abandoned event loop must not live as long as the
        # client.
        self._over = weakref.ref(over)

    def end(self) -> None:
        # The event loop may be closed.
        with suppress(RuntimeError):
            # ``close()`` may be called in another thread than the event loop's.
            self._loop.call_soon_threadsafe(self.end_in_loop)

    def end_in_loop(self) -> None:
        """As ``end``, for callers in the event loop's thread."""
        over = self._over()
        if over is not None and not over.done():
            over.set_result(None)


class ClientState:
    """The state of one client. Thread- and task-safe."""

    number: int | None = None
    """The smallest number that no other client with open pools has."""
    limits: Any = None
    """A ClientLimits (selection/); None for a client that was made before ``instrument()``."""
    readiness: Any = None
    """A History (public_api/readiness.py), or None before the first call of ``readiness``."""
    closed = False
    """True if the client is closed or being closed."""
    coroutine_closed = False
    """True if a coroutine was closed inside an operation since the last run of the background task.
    Cleanup that pymongo sends after that cannot be awaited, and may run in the context of another
    task. So the library leaves it to pymongo, and the background task sends an abort.
    """

    def __init__(self, client: Client) -> None:
        self.client = weakref.ref(client)
        self.open_transactions = OpenTransactions()
        """Transactions that the background task should end."""
        self.lost_cursors = deque[LostCursor](maxlen=MAX_CURSORS)
        """Cursors that the background task should kill, the one that waits longest first."""
        self.back_offs: set[BackOff] = set()
        """The current back-offs of operations. Changed and copied in one step each, without a lock,
        because a signal handler may close the client that the interrupted thread uses.
        """

    def close(self) -> None:
        """End all back-offs of the client's operations."""
        self.closed = True
        # Copy the set, because operations may add and remove back-offs at any time.
        for each in list(self.back_offs):
            each.end()

    @contextmanager
    def ended_by_close(self, back_off: BackOff) -> Iterator[None]:
        """End ``back_off`` if the client is closed during the block, or was closed before."""
        self.back_offs.add(back_off)
        try:
            # Check after adding, or a client that is closed in between would be missed.
            if self.closed:
                back_off.end()
            yield
        finally:
            self.back_offs.discard(back_off)

    def kill_later(self, cursor_id: int, address: CursorAddress) -> None:
        """Make the background task kill a cursor when its server can be reached. Safe in a
        finalizer.
        """
        self.lost_cursors.append(LostCursor.new(cursor_id, address))

    def reset_after_fork(self) -> None:
        """Reset the state in a forked child, because open transactions and cursors belong to the
        parent.
        """
        self.closed = False
        self.open_transactions.clear()
        self.lost_cursors.clear()
        self.back_offs.clear()

    def pools(self) -> dict[Address, Pool]:
        """Return pymongo's pools by server. Empty if the client is closed, collected, or not used
        yet in this process.
        """
        client = self.client()
        return {} if client is None else driver.connections.open_pools(client)

    def attributes(self, address: Address) -> dict[str, Any]:
        return {POOL_NAME: f"{address_text(address)}#{self.number}"}

    def servers(self) -> tuple[str, dict[Address, ServerDescription | None]]:
        """Return the topology's type, and for each server its current description or None."""
        client = self.client()
        if client is None:
            return "Unknown", {}
        description = client.topology_description
        known = description.server_descriptions()
        return description.topology_type_name, {each: known.get(each) for each in self.pools()}


class Clients(ByClient[ClientState]):
    """All clients that were created or used. Thread- and task-safe."""

    def __init__(self) -> None:
        super().__init__(ClientState)
        self._lock = threading.RLock()

    def reset_after_fork(self) -> None:
        """Replace the lock in a forked child, because a thread of the parent may hold it."""
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
        """Return True if a coroutine was just closed inside an operation of the client."""
        known = self.known(client)
        return known is not None and known.coroutine_closed

    def alive(self) -> list[ClientState]:
        """Return the instrumented clients that have pools, each with its number."""
        states = [each for each in list(self.values()) if each.limits is not None]
        alive = []
        for each in states:
            with contain_internal_errors("while looking for a client's pools"):
                alive += [each] if each.pools() else []
        with self._lock:
            for each in states:
                if each not in alive:
                    # A client without pools gives its number back.
                    each.number = None
            for each in alive:
                if each.number is None:
                    # Reuse numbers: they are part of metric attributes, and the number of their
                    # values must not grow with each client that the application creates.
                    taken = {other.number for other in alive}
                    each.number = next(n for n in itertools.count(1) if n not in taken)
        return alive

    def attributes(self, pool: Pool) -> dict[str, Any] | None:
        """Return the attributes of one of pymongo's pools, or None for a monitor's pool."""
        for client in self.alive():
            for address, each in client.pools().items():
                if each is pool:
                    return client.attributes(address)
        return None


def closed_text(client: Client | None) -> str:
    """Return pymongo's text for an operation on a closed client."""
    name = "AsyncMongoClient" if isinstance(client, AsyncMongoClient) else "MongoClient"
    return f"Cannot use {name} after close"


class ClientClock(Clock):
    """A clock whose waits end when the client of the current operation is closed.

    They then raise pymongo's InvalidOperation. Thread- and task-safe.
    """

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def _client(self) -> ClientState | None:
        """Return the client whose closing ends the wait."""
        operation = in_progress.current()
        # ``close()`` itself sends endSessions, which is retried while the client is being closed.
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
        # The client was closed during the wait, so the operation must not continue.
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
    """Wraps ``close()`` of clients."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        self._clients.of(args[0]).close()
