"""Clients of both of pymongo's APIs, what they sent, and failpoints that hit them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pymongo
from pymongo_resilience_instrumentation import driver

from pymongo_resilience.testing import set_active

APP = "under-test"
POLLING = {"serverMonitoringMode": "poll", "heartbeatFrequencyMS": 500, "appname": APP}
"""Failpoints with not-primary codes leave a server unknown until its next heartbeat."""

CLOSING_S = 1.0
"""Seconds for all clients of a test, at its end."""


def retry_loops() -> list[type]:
    """What pymongo runs as its retry loop at the moment: the sync one, then the async one."""
    return list(driver.clients.classes("mongo_client", driver.attempts.LOOP))


@dataclass
class Side:
    """One of pymongo's two APIs, called in the same way."""

    name: str
    runner: asyncio.Runner | None
    clients: list[Any] = field(default_factory=list)

    def client(self, uri: str, **options: Any) -> Any:
        cls = pymongo.MongoClient if self.runner is None else pymongo.AsyncMongoClient
        client: Any = cls(uri, **{**POLLING, **options})
        self.clients.append(client)
        return client

    def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The result of a call, awaited where there is something to await."""
        if self.runner is None:
            return function(*args, **kwargs)

        async def call() -> Any:
            result = function(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        return self.runner.run(call(), context=contextvars.copy_context())

    def documents(self, cursor: Any) -> list[Any]:
        documents: list[Any] = self.do(cursor.to_list)
        return documents

    def wait_for_members(self, client: Any, count: int) -> None:
        """The driver's monitors find them one after the other; a retry avoids the one that failed
        only if another one is known."""
        self.wait_until(lambda: len(client.nodes) == count)

    def turn(self) -> None:
        """Let the tasks of async clients, as their monitors are, run for a moment."""
        if self.runner is not None:
            self.do(asyncio.sleep, 0.01)

    def wait_until(self, condition: Callable[[], Any]) -> Any:
        """As the function, while the tasks of async clients run."""

        def after_a_turn() -> Any:
            self.turn()
            return condition()

        return wait_until(after_a_turn)

    def close(self) -> None:
        # Without a server to end its sessions on, a client would wait for one for 30 seconds.
        with pymongo.timeout(CLOSING_S):
            for client in self.clients:
                self.do(client.close)
        if self.runner is not None:
            self.runner.close()


@contextlib.contextmanager
def fail_command(control: pymongo.MongoClient[Any], *commands: str, **data: Any) -> Iterator[None]:
    """A failpoint for the clients under test: ``times=N`` or without end, off after the block."""
    times = data.pop("times", None)
    mode = "alwaysOn" if times is None else {"times": times}
    with set_active(False):
        control.admin.command(
            {
                "configureFailPoint": "failCommand",
                "mode": mode,
                "data": {"failCommands": list(commands), "appName": APP, **data},
            }
        )
    try:
        yield
    finally:
        with set_active(False):
            control.admin.command({"configureFailPoint": "failCommand", "mode": "off"})


def wait_until(condition: Callable[[], Any], *, timeout: float = 10.0) -> Any:
    """The condition's first true value; an error once ``timeout`` seconds have passed."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"not within {timeout} s")


class SentCommands(pymongo.monitoring.CommandListener):
    """Every command a client sent, as the driver reports it."""

    def __init__(self) -> None:
        self.started_events: list[Any] = []
        self.ended = 0

    def started(self, event: Any) -> None:
        self.started_events.append(event)

    def succeeded(self, event: Any) -> None:
        self.ended += 1

    def failed(self, event: Any) -> None:
        self.ended += 1

    def named(self, *names: str) -> list[Any]:
        return [event.command for event in self.started_events if event.command_name in names]


AT_ONCE = "16 threads", "200 tasks"
MANY = 200


def run_at_once(
    how: str,
    uri: str,
    in_a_thread: Callable[[Any, int], object],
    in_a_task: Callable[[Any, int], Awaitable[object]],
    **options: Any,
) -> None:
    """Call one of both with a client and each number below ``MANY``. ``how``: of ``AT_ONCE``;
    ``options``: of the async client."""

    async def tasks() -> None:
        async with pymongo.AsyncMongoClient(uri, **options) as client:
            await asyncio.gather(*(in_a_task(client, number) for number in range(MANY)))

    if how == "200 tasks":
        asyncio.run(tasks())
        return
    with pymongo.MongoClient(uri) as client, ThreadPoolExecutor(16) as pool:
        list(pool.map(partial(in_a_thread, client), range(MANY)))
