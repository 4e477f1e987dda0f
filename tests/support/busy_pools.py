"""A pool of one connection that somebody else has."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from pymongo import monitoring
from pymongo.errors import AutoReconnect
from pymongo_resilience_instrumentation.tools.testbed.command_faults import OnCommand
from pymongo_resilience_instrumentation.tools.testbed.fault import Hang
from support.clients import Side, wait_until

from pymongo_resilience.testbed import ReplicaSet


class Silent(OnCommand):
    """Never answers the command."""

    def verdict(self, request: Any) -> Hang:
        return Hang(60)


class Waiting(monitoring.ConnectionPoolListener):
    """Counts who has asked the pool for a connection."""

    asked = 0

    def connection_check_out_started(self, event: Any) -> None:
        self.asked += 1

    def __getattribute__(self, name: str) -> Any:
        known = name.startswith("__") or name in {"asked", "connection_check_out_started"}
        return object.__getattribute__(self, name) if known else lambda event: None


@contextlib.contextmanager
def the_only_connection_taken(side: Side, client: Any, proxy: ReplicaSet) -> Iterator[None]:
    """By a command that is never answered, in another thread or task."""
    silent = Silent("ping")
    proxy.inject(silent)

    def hold() -> None:
        with contextlib.suppress(AutoReconnect):
            client.admin.command("ping")

    async def begin() -> asyncio.Task[Any]:
        task = asyncio.create_task(client.admin.command("ping"))
        await asyncio.to_thread(wait_until, lambda: silent.injected)
        return task

    async def end(task: asyncio.Task[Any]) -> None:
        await asyncio.wait([task])
        assert isinstance(task.exception(), AutoReconnect)

    if side.runner is not None:
        held = side.do(begin)
        yield
        side.do(end, held)
    else:
        thread = threading.Thread(target=hold)
        thread.start()
        wait_until(lambda: silent.injected)
        yield
        thread.join()
