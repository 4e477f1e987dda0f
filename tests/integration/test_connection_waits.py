"""An operation that has to wait for a connection shows it; one that finds a connection, nothing."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pymongo.errors import WaitQueueTimeoutError
from pymongo_resilience_instrumentation.tools.testbed import CutAtHandshake
from support.busy_pools import the_only_connection_taken
from support.clients import Side, wait_until
from support.interruption import Held, interrupt
from support.telemetry import Instrument

from pymongo_resilience.testbed import ReplicaSet

pytestmark = pytest.mark.oldest

OUTCOME = "pymongo_resilience.outcome"
WAITED = "pymongo_resilience.waited"
CONNECTING = "pymongo_resilience.connecting"


def waits(telemetry: Any, name: str) -> list[dict[str, Any]]:
    """Of the only operation of that name, in order; each was over before anything was sent."""
    (span,) = telemetry.operations(name)
    found = [event for event in span.events if event.name == "connection.waited"]
    for event in found:
        assert span.start_time < event.timestamp <= span.end_time
        assert 0 < event.attributes[WAITED] < 20
    commands = telemetry.commands_of(span)
    if commands and found:
        assert found[-1].timestamp <= commands[-1].start_time
    return [dict(event.attributes) for event in found]


def somebody_waits(client: Any) -> bool:
    (server,) = client._topology._servers.values()
    return bool(server.pool.size_cond._waiters)


@pytest.fixture
def crowded(side: Side, proxy: ReplicaSet) -> Any:
    """A client with a pool of one connection, which is there."""
    client = side.client(proxy.uri, maxPoolSize=1)
    side.do(client.admin.command, "ping")
    return client


def test_an_operation_that_finds_a_connection_shows_nothing(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    client = side.client(proxy.uri)
    side.do(client.admin.command, "ping")
    side.do(client[database].coll.insert_one, {})
    assert waits(telemetry, f"insert {database}.coll") == []


def test_one_that_waited_until_another_gave_its_connection_back(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument, crowded: Any
) -> None:
    telemetry = instrument()
    coll = crowded[database].coll
    held = Held("insert")
    proxy.inject(held)

    def give_back() -> None:
        wait_until(lambda: somebody_waits(crowded))
        proxy.clear()

    def both() -> None:
        with ThreadPoolExecutor(1) as threads:
            inserted = threads.submit(coll.insert_one, {})
            wait_until(held.has_it)
            coll.find_one()
            inserted.result()

    async def both_in_tasks() -> None:
        inserted = asyncio.create_task(coll.insert_one({}))
        await asyncio.to_thread(wait_until, held.has_it)
        await coll.find_one()
        await inserted

    giving = threading.Thread(target=give_back)
    giving.start()
    side.do(both if side.runner is None else both_in_tasks)
    giving.join()
    (wait,) = waits(telemetry, f"find {database}.coll")
    assert wait == {WAITED: wait[WAITED], OUTCOME: "checked_out"}
    assert telemetry.points("pymongo_resilience.server_selection.duration") == []


def test_one_that_waited_in_vain(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    client = side.client(proxy.uri, maxPoolSize=1, waitQueueTimeoutMS=50)
    side.do(client.admin.command, "ping")
    with the_only_connection_taken(side, client, proxy):
        with pytest.raises(WaitQueueTimeoutError):
            side.do(client[database].coll.update_many, {}, {"$set": {"n": 1}})
        proxy.clear()
    (span,) = telemetry.operations(f"update {database}.coll")
    found = waits(telemetry, f"update {database}.coll")
    assert [wait[OUTCOME] for wait in found] == ["timed_out"] * len(found)
    assert len(found) == span.attributes["pymongo_resilience.attempts"]
    assert all(wait[WAITED] >= 0.04 for wait in found)


def test_one_that_was_interrupted(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument, crowded: Any
) -> None:
    telemetry = instrument()
    with the_only_connection_taken(side, crowded, proxy):
        interrupt(side, lambda: somebody_waits(crowded), crowded[database].coll.find_one)
        proxy.clear()
    (wait,) = waits(telemetry, f"find {database}.coll")
    assert wait == {WAITED: wait[WAITED], OUTCOME: "interrupted"}


@pytest.mark.parametrize("made", ["before", "after"])
def test_one_that_made_a_connection_says_how_long_that_took(
    made: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument() if made == "after" else None
    client = side.client(proxy.uri)
    telemetry = telemetry or instrument()
    side.do(client[database].coll.insert_one, {})
    (wait,) = waits(telemetry, f"insert {database}.coll")
    assert wait == {
        WAITED: wait[CONNECTING],
        CONNECTING: wait[CONNECTING],
        OUTCOME: "checked_out",
    }


def test_each_attempt_that_had_to_connect_has_a_wait_of_its_own(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    client = side.client(proxy.uri)
    proxy.inject(CutAtHandshake(2))
    side.do(client[database].coll.insert_one, {})
    found = waits(telemetry, f"insert {database}.coll")
    assert [wait[OUTCOME] for wait in found] == ["failed", "failed", "checked_out"]
    assert all(wait[CONNECTING] > 0 for wait in found)


def test_connections_made_in_the_background_are_nobodys_wait(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    # The background task of an async client inherits the context of the first operation.
    telemetry = instrument()
    client = side.client(proxy.uri, minPoolSize=4)
    held = Held("insert")
    proxy.inject(held)

    def all_are_there() -> bool:
        pools = [server.pool for server in client._topology._servers.values()]
        return held.has_it() and sum(len(pool.conns) for pool in pools) == 3

    def give_back() -> None:
        wait_until(all_are_there)
        proxy.clear()

    giving = threading.Thread(target=give_back)
    giving.start()
    side.do(client[database].coll.insert_one, {})
    giving.join()
    # None if the background made a connection before the operation needed one.
    found = [wait[OUTCOME] for wait in waits(telemetry, f"insert {database}.coll")]
    assert found in ([], ["checked_out"])
