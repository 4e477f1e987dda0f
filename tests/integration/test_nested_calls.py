"""Operations inside of others, and tasks that outlive the call they were started in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pymongo
import pytest
from pymongo.errors import AutoReconnect
from pymongo_resilience_instrumentation.tools.testbed import CutAfter, Overload
from support.clients import POLLING
from support.command_listeners import Inside
from support.telemetry import Instrument

from pymongo_resilience import Policy
from pymongo_resilience.testbed import ReplicaSet

pytestmark = pytest.mark.oldest


def test_a_task_whose_attempts_outlive_their_call_goes_on(
    proxy: ReplicaSet, database: str, instrument: Instrument, caplog: pytest.LogCaptureFixture
) -> None:
    instrument(timeout_ms=10_000, policies={f"{database}.coll": Policy(hedge=1000)})
    inside, tasks, ended = Inside(), list[asyncio.Task[Any]](), asyncio.Event()

    async def attempts(coll: Any) -> Any:
        # Its loop begins inside of the call; its second attempt comes after the call.
        running = asyncio.ensure_future(coll.find_one())
        await asyncio.sleep(0)
        ended.set()
        return await running

    async def main() -> Any:
        async with pymongo.AsyncMongoClient(
            proxy.uri, **POLLING, event_listeners=[inside]
        ) as client:
            coll = client[database].coll
            await coll.insert_one({"n": 1})
            await coll.find_one()  # the first hedged read
            loop = asyncio.get_running_loop()
            proxy.inject(Overload("find", times=2, base_backoff=0.5))
            inside.act = lambda: tasks.append(loop.create_task(attempts(coll)))
            await client[database].other.count_documents({})
            await ended.wait()
            return await tasks[0]

    assert asyncio.run(main())["n"] == 1
    assert "internal error in pymongo-resilience" not in caplog.text


@pytest.mark.parametrize(
    ("command", "change"),
    [
        ("renameCollection", lambda db: db.other.rename("renamed")),
        ("drop", lambda db: db.other.drop()),
        ("update", lambda db: db.other.update_many({}, {"$inc": {"n": 1}})),
    ],
)
def test_a_rule_for_one_collection_does_not_hold_for_another_inside_of_it(
    command: str,
    change: Callable[[Any], Any],
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
) -> None:
    telemetry = instrument(timeout_ms=5000, policies={f"{database}.coll": Policy(idempotent=True)})
    inside = Inside()
    options: Any = {**POLLING, "event_listeners": [inside]}
    raised: list[Any] = []
    with pymongo.MongoClient(proxy.uri, **options) as client:
        client[database].other.insert_one({"n": 0})
        client[database].coll.insert_one({})

        def lose_its_reply() -> None:
            proxy.inject(CutAfter(command))
            with pytest.raises(AutoReconnect) as caught:
                change(client[database])
            raised.append(caught.value)

        inside.act = lose_its_reply
        client[database].coll.insert_one({})
    (error,) = raised
    assert error.attempts == 1
    assert [event.operation for event in telemetry.decisions.events] == [
        {"drop": "dropCollection"}.get(command, command)
    ]


def test_what_a_listener_runs_inside_of_a_close_is_an_operation(
    proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    inside = Inside()
    options: Any = {**POLLING, "event_listeners": [inside]}
    with pymongo.MongoClient(proxy.uri, **options) as client:
        coll = client[database].coll
        coll.insert_many([{"_id": n} for n in range(5)])
        cursor = coll.find(batch_size=2)
        next(cursor)
        telemetry.clear()
        inside.act = client[database].audit.find_one
        cursor.close()
    assert [span.name for span in telemetry.operations()] == [
        f"find {database}.audit",
        f"killCursors {database}.coll",
        "endSessions admin",
    ]
