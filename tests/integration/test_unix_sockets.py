"""A server behind a Unix socket: its path is its address, and there is no port."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import Side
from support.telemetry import Instrument


@pytest.fixture
def path(server: EmbeddedServer, tmp_path: Path) -> Iterator[str]:
    """The embedded server has none: this passes every byte on."""
    made = str(tmp_path / "mongodb.sock")
    ready, stop = threading.Event(), threading.Event()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, on = await asyncio.open_connection(*server.address)
        await asyncio.gather(copy(reader, on), copy(back, writer))

    async def serve() -> None:
        async with await asyncio.start_unix_server(relay, made):
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(10)
    yield made
    stop.set()
    thread.join()


def test_its_path_is_its_address(
    path: str, side: Side, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    uri = f"mongodb://{urllib.parse.quote(path, safe='')}/?directConnection=true"
    side.do(side.client(uri)[database].coll.find_one)
    (find,) = telemetry.operations(f"find {database}.coll")
    (command,) = telemetry.commands_of(find)
    shown = command.attributes
    assert (shown["network.transport"], shown["server.address"]) == ("unix", path)
    assert "server.port" not in shown
    (attributes,) = (
        each
        for each, _ in telemetry.points("db.client.operation.duration")
        if each["db.operation.name"] == "find"
    )
    assert attributes["server.address"] == path
    assert "server.port" not in attributes
