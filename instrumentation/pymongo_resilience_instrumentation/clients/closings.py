"""A client that is closed ends the back-offs of its operations, and their waits, at once."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import TYPE_CHECKING, Any

from pymongo.errors import InvalidOperation

from pymongo_resilience.clock import MonotonicClock
from pymongo_resilience.faults import logger
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.interception.methods import Method
from pymongo_resilience_instrumentation.operations.changes import END_SESSIONS

from .by_client import keep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pymongo_resilience.enabled_flag import EnabledFlag
    from pymongo_resilience_instrumentation.interception.methods import Function

CLOSED = "Cannot use MongoClient after close"
"""As the driver puts it."""


class Closing:
    """Whether one client is closed, or about to be. Thread- and task-safe."""

    def __init__(self) -> None:
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """In a forked child: nothing waits there, and the lock is a new one."""
        self._closed = threading.Event()
        # Weak: a future holds its task, and so the client, of a loop that was given up meanwhile.
        self._waiting: set[weakref.ref[asyncio.Future[None]]] = set()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        self._closed.set()
        for waiting in list(self._waiting):
            future = waiting()
            if future is None:
                continue
            try:
                future.get_loop().call_soon_threadsafe(_wake, future)
            except RuntimeError:  # its loop is closed: nothing waits any more
                continue

    def sleep(self, seconds: float) -> None:
        """Raises InvalidOperation (pymongo's) as soon as the client is closed."""
        if self._closed.wait(seconds):
            raise InvalidOperation(CLOSED)

    async def sleep_async(self, seconds: float) -> None:
        """As ``sleep``."""
        woken = asyncio.get_running_loop().create_future()
        waiting = weakref.ref(woken)
        self._waiting.add(waiting)
        try:
            if not self.closed:
                await asyncio.wait([woken], timeout=seconds)
        finally:
            self._waiting.discard(waiting)
        if self.closed:
            raise InvalidOperation(CLOSED)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Closings:
    """Of every client that has waited. Holds none alive. Thread- and task-safe."""

    def __init__(self) -> None:
        self._by_client: dict[int, Closing] = {}

    def of(self, client: Any) -> Closing:
        found = self._by_client.get(id(client))
        return keep(self._by_client, client, Closing()) if found is None else found

    def closed(self, client: Any) -> bool:
        found = self._by_client.get(id(client))
        return found is not None and found.closed

    def reset_after_fork(self) -> None:
        for each in list(self._by_client.values()):
            each.reset_after_fork()


class ClientClock(MonotonicClock):
    """Whose waits end with the client of the call in progress. Thread- and task-safe."""

    def __init__(self, closings: Closings) -> None:
        self._closings = closings

    def _of_the_caller(self) -> Closing | None:
        call = calls.current()
        # What close() sends itself is repeated while the client is being closed.
        if call is None or call.client is None or call.operation == END_SESSIONS:
            return None
        return self._closings.of(call.client)

    def sleep(self, seconds: float, /) -> None:
        closing = self._of_the_caller()
        if closing is None:
            super().sleep(seconds)
        else:
            closing.sleep(seconds)

    async def sleep_async(self, seconds: float, /) -> None:
        closing = self._of_the_caller()
        if closing is None:
            await super().sleep_async(seconds)
        else:
            await closing.sleep_async(seconds)


def of_a_client(
    enabled_flag: EnabledFlag, closings: Closings, owner: type, asynchronous: bool
) -> Iterator[tuple[str, Method]]:
    """What to wrap of a client's class, and with what."""
    for name in ("close", "aclose"):
        if name in vars(owner):
            yield name, _close(enabled_flag, closings, asynchronous)


def _close(enabled_flag: EnabledFlag, closings: Closings, asynchronous: bool) -> Method:
    def begin(client: Any) -> None:
        try:
            if enabled_flag.acts():
                closings.of(client).close()
        except Exception:
            logger.exception("internal error in pymongo-resilience before a client was closed")

    def of_sync(original: Function) -> Function:
        def method(*given: Any, **kwargs: Any) -> Any:
            begin(given[0])
            result = original(*given, **kwargs)
            try:
                driver.waits.wake_selections(given[0])
            except Exception:
                logger.exception("internal error in pymongo-resilience after a client was closed")
            return result

        return method

    def of_async(original: Function) -> Function:
        async def method(*given: Any, **kwargs: Any) -> Any:
            begin(given[0])
            result = await original(*given, **kwargs)
            try:
                await driver.waits.wake_selections_async(given[0])
            except Exception:
                logger.exception("internal error in pymongo-resilience after a client was closed")
            return result

        return method

    return Method(of_async if asynchronous else of_sync)
