"""What runs the tries of hedged reads: daemon threads, or tasks of the running event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from pymongo_resilience.internal_errors import contain_internal_errors

MAX_THREADS = 64
"""The limit for one client. Where all are busy, a read is made by its caller, and not hedged."""


class ThreadWorkers:
    """The threads of one client's reads, one for each try. Thread-safe.

    Daemons, as a read without a timeout may wait for ever: the process does not wait for them.
    """

    new_signal = threading.Event

    def __init__(self) -> None:
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """In a forked child, which has none of them."""
        self._free = threading.Semaphore(MAX_THREADS)

    def start(self, function: Callable[[], object]) -> bool:
        """In a copy of the caller's context. False where no thread is left for it."""
        if not self._free.acquire(blocking=False):
            return False
        thread = threading.Thread(
            target=copy_context().run,
            args=(self._run, function, self._free),
            name="pymongo_resilience_hedge",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter ends
            self._free.release()
            return False
        return True

    @staticmethod
    def _run(function: Callable[[], object], free: threading.Semaphore) -> None:
        try:
            with contain_internal_errors("in a thread of hedged reads"):
                function()
        finally:
            free.release()

    def cancel(self) -> None:
        """Threads cannot be: they finish."""


class TaskSignal(asyncio.Event):
    """Stands in for threading.Event in one event loop."""

    async def wait(self, seconds: float | None = None) -> bool:  # type: ignore[override]  # bounded
        """Whether it was set in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await super().wait()
        return self.is_set()


class TaskWorkers:
    """The tasks in which one read is made."""

    new_signal = TaskSignal

    def __init__(self, alive: set[asyncio.Task[object]]) -> None:
        self._alive = alive
        """An event loop holds its tasks weakly."""
        self._mine: list[asyncio.Task[object]] = []

    def start(self, function: Callable[[], Coroutine[Any, Any, object]]) -> bool:
        task = asyncio.get_running_loop().create_task(function())
        self._mine.append(task)
        self._alive.add(task)
        task.add_done_callback(self._alive.discard)
        return True

    def cancel(self) -> None:
        """The driver's own operation ends with its caller's task, too."""
        for task in self._mine:
            with suppress(RuntimeError):  # its loop is closed
                task.cancel()
