"""A mongos is killed and started again while a transaction is open: who frees its locks."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pymongo
import pytest
from pymongo.errors import PyMongoError
from pymongo_resilience_instrumentation.tools.testbed.server import program
from support.clients import Side, wait_until
from support.telemetry import Instrument
from support.transactions import session_of

from pymongo_resilience.testbed import EmbeddedServer

pytestmark = [
    pytest.mark.each_setup,
    pytest.mark.needs_mongod("a mongos and a shard, which are processes of their own"),
    pytest.mark.thorough("starts a sharded cluster"),
]
KEPT = 3.0
"""Seconds after which plain pymongo's transaction is still open. It is for a minute."""
FREED = 3.0
"""Seconds within which ours has ended: the background task runs once a second."""


@pytest.fixture(scope="module")
def sharded() -> Iterator[EmbeddedServer]:
    mongod = program(None)
    if mongod is None or not Path(mongod).with_name("mongos").exists():
        pytest.skip("there is no mongos beside the mongod")
    with EmbeddedServer(kind="sharded", startup_timeout=60.0) as server:
        yield server


@pytest.fixture
def shard(sharded: EmbeddedServer) -> Iterator[Any]:
    """A client of the shard itself, past the mongos."""
    host, port = sharded.processes[1].address
    with pymongo.MongoClient[Any](host, port, directConnection=True) as client:
        yield client


def open_transactions(shard: Any) -> int:
    return int(shard.admin.command("serverStatus")["transactions"]["currentOpen"])


def restart_router(server: EmbeddedServer) -> None:
    """It is killed: a mongos that ends in an orderly way aborts its transactions."""
    router = server.processes[-1]
    router.signal(signal.SIGKILL)
    router.wait(10.0)
    router.start(time.monotonic() + 30.0)


def left_open(side: Side, server: EmbeddedServer, name: str) -> Any:
    """A transaction whose mongos restarts between its statement and its abort; its client."""
    client = side.client(server.uri)
    coll = client.restarted[name]
    side.do(coll.insert_one, {"_id": 1, "n": 0})
    with session_of(side, client) as session:
        side.do(session.start_transaction)
        side.do(coll.update_one, {"_id": 1}, {"$inc": {"n": 1}}, session=session)
        restart_router(server)
        with suppress(PyMongoError):
            side.do(session.abort_transaction)
    return client


def test_the_locks_of_its_transaction_are_freed(
    side: Side, sharded: EmbeddedServer, shard: Any, instrument: Instrument, request: Any
) -> None:
    name = request.node.name
    left_open(side, sharded, f"{name} plain")
    # Nothing happens that could be waited for.
    time.sleep(KEPT)
    assert open_transactions(shard) == 1
    shard.admin.command("killAllSessions", [])
    wait_until(lambda: open_transactions(shard) == 0)

    instrument()
    left_open(side, sharded, f"{name} ours")
    ended = time.monotonic()
    side.wait_until(lambda: open_transactions(shard) == 0)
    assert time.monotonic() - ended < FREED
    assert shard.restarted[f"{name} ours"].distinct("n") == [0]
