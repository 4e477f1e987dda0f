"""What is kept for a client that cannot carry it: found by its identity, gone with it. Here,
whether it is closed, which ends the back-offs of its operations."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, MutableMapping
from typing import Any, TypeVar

from pymongo.errors import InvalidOperation

from pymongo_resilience.clock import Clock
from pymongo_resilience.enabled_flag import EnabledFlag
from pymongo_resilience.internal_errors import shielded
from pymongo_resilience_instrumentation import in_progress
from pymongo_resilience_instrumentation.driver.retry_loop import END_SESSIONS
from pymongo_resilience_instrumentation.interceptor import Function, Wrapper

T = TypeVar("T")


def keep(values: MutableMapping[int, T], client: object, made: T) -> T:
    """What ``values`` has for the client; ``made`` where it has nothing yet. Clients of the same
    servers are equal, so no weak mapping would do."""
    key = id(client)
    kept = values.setdefault(key, made)
    if kept is made:
        weakref.finalize(client, values.pop, key, None).atexit = False
    return kept


class ByClient(dict[int, T]):
    """A value for each client, made when it is first asked for. Thread- and task-safe. Each has a
    ``reset_after_fork``."""

    def __init__(self, make: Callable[[object], T]) -> None:
        super().__init__()
        self._make = make

    def of(self, client: object) -> T:
        """The client's; one that was made before ``instrument()`` gets its own here."""
        found = self.get(id(client))
        return keep(self, client, self._make(client)) if found is None else found

    def known(self, client: object) -> T | None:
        """None where nobody has asked for the client's yet."""
        return self.get(id(client))

    def reset_after_fork(self) -> None:
        each: Any
        for each in list(self.values()):
            each.reset_after_fork()


CLOSED = "Cannot use MongoClient after close"
"""The driver's words."""
LOOK = 0.1
"""Seconds between two looks of a task that waits, whether its client is closed."""


class Closing:
    """Whether one client is closed, or about to be. Thread- and task-safe."""

    def __init__(self) -> None:
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """In a forked child: nothing waits there, and the lock is a new one."""
        self._closed = threading.Event()
        self.closed, self.close = self._closed.is_set, self._closed.set

    def sleep(self, seconds: float) -> None:
        """Raises InvalidOperation (pymongo's) as soon as the client is closed."""
        if self._closed.wait(seconds):
            raise InvalidOperation(CLOSED)

    async def sleep_async(self, seconds: float) -> None:
        """Raises InvalidOperation (pymongo's) soon after the client is closed."""
        ends = time.monotonic() + seconds
        while not self.closed() and (left := ends - time.monotonic()) > 0:  # noqa: ASYNC110 - any thread may close it
            await asyncio.sleep(min(left, LOOK))
        if self.closed():
            raise InvalidOperation(CLOSED)


class Closings(ByClient[Closing]):
    """The Closing of every client that has waited."""

    def __init__(self) -> None:
        super().__init__(lambda _: Closing())

    def closed(self, client: object) -> bool:
        found = self.known(client)
        return found is not None and found.closed()


class ClientClock(Clock):
    """A clock whose waits end with the client of the operation in progress. Thread- and
    task-safe."""

    def __init__(self, closings: Closings) -> None:
        self._closings = closings
        self._clock = Clock()

    def _waits(self) -> Closing | Clock:
        operation = in_progress.current()
        # What close() sends itself is repeated while the client is being closed.
        if operation is None or operation.client is None or operation.name == END_SESSIONS:
            return self._clock
        return self._closings.of(operation.client)

    def sleep(self, seconds: float, /) -> None:
        self._waits().sleep(seconds)

    async def sleep_async(self, seconds: float, /) -> None:
        await self._waits().sleep_async(seconds)


def close(closings: Closings, enabled_flag: EnabledFlag) -> Wrapper:
    """A client's ``close()``."""

    def wrapper(original: Function, client: Any, args: Any, kwargs: Any) -> Any:
        if enabled_flag.on:
            with shielded("before a client is closed"):
                closings.of(client).close()
        return original(*args, **kwargs)

    return wrapper
