"""A client that is closed ends the back-offs of its operations, and their waits, at once."""

from __future__ import annotations

import asyncio
import threading
import weakref
from contextlib import suppress
from typing import Any

from pymongo.errors import InvalidOperation

from pymongo_resilience.clock import MonotonicClock
from pymongo_resilience.internal_errors import shielded
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.driver.retry_loop import END_SESSIONS
from pymongo_resilience_instrumentation.interceptor import Entered, Function, Interceptor

from .by_client import ByClient

CLOSED = "Cannot use MongoClient after close"
"""The driver's words."""


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
            if (future := waiting()) is not None:
                with suppress(RuntimeError):  # its loop is closed: nothing waits any more
                    future.get_loop().call_soon_threadsafe(driver.monitors.answer, future)

    def sleep(self, seconds: float) -> None:
        """Raises InvalidOperation (pymongo's) as soon as the client is closed."""
        if self._closed.wait(seconds):
            raise InvalidOperation(CLOSED)

    async def sleep_async(self, seconds: float) -> None:
        """Raises InvalidOperation (pymongo's) as soon as the client is closed."""
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


class Closings(ByClient[Closing]):
    """The Closing of every client that has waited."""

    def __init__(self) -> None:
        super().__init__(lambda _: Closing())

    def closed(self, client: object) -> bool:
        found = self.known(client)
        return found is not None and found.closed


class ClientClock(MonotonicClock):
    """A clock whose waits end with the client of the call in progress. Thread- and task-safe."""

    def __init__(self, closings: Closings) -> None:
        self._closings = closings
        self._clock = MonotonicClock()

    def _waits(self) -> Closing | MonotonicClock:
        call = calls.current()
        # What close() sends itself is repeated while the client is being closed.
        if call is None or call.client is None or call.operation == END_SESSIONS:
            return self._clock
        return self._closings.of(call.client)

    def sleep(self, seconds: float, /) -> None:
        self._waits().sleep(seconds)

    async def sleep_async(self, seconds: float, /) -> None:
        await self._waits().sleep_async(seconds)


class Close(Interceptor):
    """A client's ``close()``."""

    def __init__(self, closings: Closings) -> None:
        self._closings = closings

    def enter(self, given: tuple[Any, ...], _kwargs: dict[str, Any]) -> Entered:
        self._closings.of(given[0]).close()
        return Entered(given[0])

    def succeeded(self, entered: Entered, result: object) -> Any:
        with shielded("after a client was closed"):
            driver.waits.wake_selections(entered.instance)
        return result


class CloseAsync(Close):
    async def send(self, entered: Entered, original: Function, *given: Any, **kwargs: Any) -> Any:
        result = await original(*given, **kwargs)
        with shielded("after a client was closed"):
            await driver.waits.wake_selections_async(entered.instance)
        return result

    def succeeded(self, entered: Entered, result: object) -> Any:  # noqa: ARG002 - as above
        return result
