"""Who waits for a connection, where the wait does not end as others do."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pymongo
import pytest
from support.clients import POLLING, wait_until
from support.telemetry import Instrument, Telemetry

from pymongo_resilience.testbed import ReplicaSet


def pending(telemetry: Telemetry) -> list[int]:
    points = telemetry.points("db.client.connection.pending_requests")
    return [point.value for _, point in points]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_client_whose_loop_was_given_up_while_somebody_waited_is_collected(
    proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()

    async def begin() -> weakref.ref[Any]:
        client: Any = pymongo.AsyncMongoClient(proxy.uri, maxPoolSize=1, **POLLING)
        coll = client[database].coll
        await coll.insert_many([{}, {}, {}])
        cursor = coll.find(cursor_type=pymongo.CursorType.EXHAUST, batch_size=1)
        await cursor.next()  # has the connection until it is closed
        waits.append(asyncio.create_task(coll.find_one()))
        await asyncio.to_thread(wait_until, lambda: pending(telemetry) == [1])
        return weakref.ref(client)

    waits: list[asyncio.Task[Any]] = []
    loop = asyncio.new_event_loop()
    client = loop.run_until_complete(begin())
    loop.close()
    waits.clear()
    gc.collect()
    assert client() is None
    assert pending(telemetry) == []
