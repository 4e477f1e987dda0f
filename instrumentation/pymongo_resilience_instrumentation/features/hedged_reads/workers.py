"""Runs the tries of hedged reads in daemon threads, or in tasks of the running event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from pymongo_resilience.internal_errors import contain_internal_errors

MAX_THREADS = 64
"""Maximum number of threads for one client. If all are busy, a read runs in the caller's thread and
is not hedged.
"""


class ThreadWorkers:
    """The threads for one client's reads, one for each try. Thread-safe.

    They are daemons, because a read without a timeout may wait forever, and the process must be
    able to exit.
    """

    new_signal = threading.Event

    def __init__(self) -> None:
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Start without threads in a forked child, which inherits none."""
        self._free = threading.Semaphore(MAX_THREADS)

    def start(self, function: Callable[[], object]) -> bool:
        """Run a function in a new thread, in a copy of the caller's context. Return False if no
        thread is available.
        """
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
        except RuntimeError:
            # The process cannot start more threads, or the interpreter is shutting down.
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
        """Do nothing: threads cannot be canceled."""


class TaskSignal(asyncio.Event):
    """A replacement for threading.Event in one event loop."""

    async def wait(self, seconds: float | None = None) -> bool:  # type: ignore[override]  # bounded
        """Return True if the signal was set in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await super().wait()
        return self.is_set()


class TaskWorkers:
    """The tasks of one read."""

    new_signal = TaskSignal

    def __init__(self, alive: set[asyncio.Task[object]]) -> None:
        self._alive = alive
        """Strong references, because an event loop references its tasks only weakly."""
        self._mine: set[asyncio.Task[object]] = set()

    def start(self, function: Callable[[], Coroutine[Any, Any, object]]) -> asyncio.Task[object]:
        """Run a coroutine function in a new task."""
        task = asyncio.get_running_loop().create_task(function())
        for tasks in (self._mine, self._alive):
            tasks.add(task)
            # A canceled task references the frames of its coroutine, and thus the read.
            task.add_done_callback(tasks.discard)
        return task

    def cancel(self) -> None:
        """Cancel the tasks, as pymongo's own operation would end with its caller's task."""
        for task in [*self._mine]:
            # The event loop may be closed.
            with suppress(RuntimeError):
                task.cancel()
