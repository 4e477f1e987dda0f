"""Calls that are interrupted at a known moment: a task is cancelled, a thread gets a signal."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from pymongo import monitoring
from pymongo_resilience_instrumentation.tools.testbed.fault import Delay, Hang
from support.clients import Side, wait_until

from pymongo_resilience.testbed import Interception

NAMES = {"sync": "KeyboardInterrupt", "async": "CancelledError"}
LONG = 60.0
"""Seconds that nobody waits who is interrupted."""


class Held(Interception):
    """Has the server execute a command, and keeps the reply back until the faults are cleared; or
    keeps the command from the server, where it is not to be executed."""

    def __init__(self, command: str, *, executed: bool = True) -> None:
        super().__init__()
        self._command = command
        self._verdict = Delay if executed else Hang

    def on_request(self, request: Any, connection: Any) -> Any:
        if request.command_name != self._command:
            return None
        self.injected += 1
        return self._verdict(LONG)

    def has_it(self) -> bool:
        return self.injected > 0


class Journal(monitoring.CommandListener, monitoring.ConnectionPoolListener):
    """What one client reports of its commands and connections, in order."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def note(self, event: Any) -> None:
        self.events.append(event)

    started = succeeded = failed = note
    pool_created = pool_ready = pool_cleared = pool_closed = note
    connection_created = connection_ready = connection_closed = note
    connection_check_out_started = connection_check_out_failed = note
    connection_checked_out = connection_checked_in = note

    def started_commands(self, *names: str) -> list[Any]:
        found = [e for e in self.events if isinstance(e, monitoring.CommandStartedEvent)]
        return [event for event in found if not names or event.command_name in names]

    def ends_of(self, started: Any) -> list[Any]:
        ends = (monitoring.CommandSucceededEvent, monitoring.CommandFailedEvent)
        return [
            event
            for event in self.events
            if isinstance(event, ends) and event.request_id == started.request_id
        ]

    def without_exactly_one_end(self) -> list[Any]:
        return [each for each in self.started_commands() if len(self.ends_of(each)) != 1]


def interrupt(
    side: Side, due: Callable[[], Any], function: Callable[..., Any], *args: Any, **kwargs: Any
) -> float:
    """Call it, interrupt it once ``due()`` is true, and see it end so; the seconds that took."""
    if side.name == "sync":
        return _ctrl_c(due, function, *args, **kwargs)
    return float(side.do(cancel, due, function, *args, **kwargs))


def _ctrl_c(
    due: Callable[[], Any], function: Callable[..., Any], *args: Any, **kwargs: Any
) -> float:
    struck: list[float] = []
    over = threading.Event()

    def strike(*_: object) -> None:
        struck.append(time.monotonic())
        raise KeyboardInterrupt

    def watch() -> None:
        wait_until(lambda: over.is_set() or due())
        if not over.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, strike)
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            function(*args, **kwargs)
        return time.monotonic() - struck[0]
    finally:
        over.set()
        watcher.join()
        signal.signal(signal.SIGUSR1, before)


async def cancel(
    due: Callable[[], Any], function: Callable[..., Any], *args: Any, **kwargs: Any
) -> float:
    task = asyncio.ensure_future(function(*args, **kwargs))
    await asyncio.to_thread(wait_until, due)
    assert not task.done()
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return time.monotonic() - began
