"""The test bed where an event loop runs (Jupyter, asynchronous fixtures), and what ends with it."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pymongo
import pytest
from support.clients import wait_until
from support.free_ports import consecutive_free_ports
from support.servers import mongod_version

from pymongo_resilience.testbed import EmbeddedServer, ReplicaSet, TestbedError

KINDS = (EmbeddedServer, ReplicaSet)
Kind = Callable[[], Any]


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[str]]]:
    """The servers that a test starts: none of them may outlive it, and no thread."""
    started: list[subprocess.Popen[str]] = []
    popen = subprocess.Popen

    def recorded(*args: Any, **kwargs: Any) -> subprocess.Popen[str]:
        started.append(popen(*args, **kwargs))
        return started[-1]

    place = "subprocess.Popen"
    monkeypatch.setattr(place, recorded)
    yield started
    monkeypatch.undo()
    assert started
    # SecantusDB ends by itself; a mongod is killed, and a mongos without its cluster aborts.
    killed = {256 - signal.SIGKILL, 256 - signal.SIGABRT}
    assert {each.poll() for each in started} <= ({0} if mongod_version() is None else killed)
    assert "pymongo_resilience_testbed" not in {each.name for each in threading.enumerate()}


async def _works(uri: str) -> None:
    async with pymongo.AsyncMongoClient[dict[str, Any]](uri) as client:
        await client.test.coll.insert_one({"_id": 1})
        assert await client.test.coll.find_one() == {"_id": 1}


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_it_starts_and_stops_inside_of_a_running_loop(kind: Kind, asynchronous: bool) -> None:
    async def sync_block() -> None:
        with kind() as running:
            await _works(running.uri)

    async def async_block() -> None:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0.001)

        counting = asyncio.create_task(count())
        async with kind() as running:
            # The loop has gone on while the server was starting.
            assert turns > 1
            await _works(running.uri)
        counting.cancel()

    asyncio.run(async_block() if asynchronous else sync_block())


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("how", ["no loop", "async with"])
def test_a_start_that_fails_leaves_no_server(how: str) -> None:
    with socket.create_server(("127.0.0.1", consecutive_free_ports(2) + 1)) as other:
        deployment = ReplicaSet(members=2, port=other.getsockname()[1] - 1)

        async def async_block() -> None:
            async with deployment:
                pass

        start: dict[str, Callable[[], object]] = {
            "no loop": deployment.start,
            "async with": lambda: asyncio.run(async_block()),
        }
        with pytest.raises(TestbedError, match="Address already in use"):
            start[how]()


@pytest.mark.parametrize("kind", KINDS)
def test_an_asynchronous_block_that_is_cancelled_leaves_no_server(
    kind: Kind, processes: list[subprocess.Popen[str]]
) -> None:
    async def block() -> None:
        async with kind():
            pytest.fail("it was cancelled before")

    async def cancel_twice() -> None:
        task = asyncio.create_task(block())
        await asyncio.to_thread(wait_until, lambda: processes)
        task.cancel()
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel_twice())


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("kind", KINDS)
def test_what_runs_is_not_started_again(kind: Kind) -> None:
    with kind() as running:
        with pytest.raises(TestbedError, match="is running already"):
            running.start()
        with pymongo.MongoClient[dict[str, Any]](running.uri) as client:
            client.admin.command("ping")
