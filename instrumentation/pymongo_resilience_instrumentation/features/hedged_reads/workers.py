"""Where the tries of hedged reads run: threads of a client, or tasks of the caller's event loop."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from pymongo_resilience.internal_errors import shielded
from pymongo_resilience_instrumentation.interception.steps import run, run_async

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo_resilience_instrumentation.interception.steps import Steps

    Work = Callable[[], object]

MOST_THREADS = 64
"""Of one client. Where all are busy, a read is made in its caller's thread, and not hedged."""
IDLE_S = 5.0
"""After so long without work a thread ends."""


class ThreadPool:
    """Of one client. Thread-safe: each step is one of a list or of a set.

    Daemons, as a read without a timeout may wait for ever: the process does not wait for them.
    """

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Work | None]] = []
        self._alive: set[SimpleQueue[Work | None]] = set()
        self._stopped = False

    @property
    def count(self) -> int:
        return len(self._alive)

    def start(self, work: Work) -> bool:
        """False where all are busy."""
        try:
            inbox = self._idle.pop()
        except IndexError:
            if len(self._alive) >= MOST_THREADS:
                return False
            inbox = SimpleQueue()
            self._alive.add(inbox)
            thread = threading.Thread(
                target=self._serve, args=(inbox,), name="pymongo_resilience_hedge", daemon=True
            )
            try:
                thread.start()
            except BaseException as error:
                self._alive.discard(inbox)
                if isinstance(error, RuntimeError):  # no more threads, or the interpreter ends
                    return False
                raise
        inbox.put(work)
        return True

    def stop(self) -> None:
        """Idle threads end, busy ones with their work."""
        self._stopped = True
        while self._idle:
            with suppress(IndexError):
                self._idle.pop().put(None)

    def reset_after_fork(self) -> None:
        """In a forked child, which has none of them."""
        self._idle, self._alive = [], set()

    def _serve(self, inbox: SimpleQueue[Work | None]) -> None:
        try:
            while True:
                try:
                    work = inbox.get(timeout=IDLE_S)
                except Empty:
                    with suppress(ValueError):
                        self._idle.remove(inbox)
                        return
                    continue  # taken at this moment: work comes
                if work is None:
                    return
                with shielded("in a thread of hedged reads"):
                    work()
                del work
                if self._stopped:
                    return
                self._idle.append(inbox)
        finally:
            self._alive.discard(inbox)


class ThreadSignal:
    """A ``threading.Event`` of a lock alone, to be waited for once. Set by one thread at a time."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        if self._lock.locked():
            self._lock.release()

    def wait(self, seconds: float = -1) -> bool:
        """Whether it was set in time; a negative number of seconds is no limit."""
        return self._lock.acquire(timeout=seconds)


class TaskSignal:
    """As ThreadSignal, of one event loop; ``wait`` is a coroutine function."""

    __slots__ = ("_set", "_waiter")

    def __init__(self) -> None:
        self._set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._set = True
        self._wake()

    async def wait(self, seconds: float = -1) -> bool:
        if not self._set:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(seconds, self._wake) if seconds >= 0 else None
            try:
                await self._waiter
            finally:
                if timer is not None:
                    timer.cancel()
        return self._set

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class ThreadWorkers:
    """The threads in which one read is made."""

    new_signal = ThreadSignal

    def __init__(self, threads: ThreadPool) -> None:
        self._threads = threads

    def start(self, steps: Steps) -> bool:
        """In a copy of the caller's context. False where no thread is left for it."""
        return self._threads.start(partial(copy_context().run, run, steps))

    def cancel(self) -> None:
        """Threads cannot be: they finish."""


class TaskWorkers:
    """As ThreadWorkers: tasks of the running event loop."""

    new_signal = TaskSignal

    def __init__(self, alive: set[asyncio.Task[object]]) -> None:
        self._alive = alive
        """An event loop holds its tasks weakly."""
        self._mine: list[asyncio.Task[object]] = []

    def start(self, steps: Steps) -> bool:
        task = asyncio.get_running_loop().create_task(run_async(steps))
        self._mine.append(task)
        self._alive.add(task)
        task.add_done_callback(self._alive.discard)
        return True

    def cancel(self) -> None:
        """As the driver's own operation ends with its caller's task."""
        for task in self._mine:
            with suppress(RuntimeError):  # its loop is closed
                task.cancel()
