"""Two hundred tasks cancelled at random moments: what started has ended, once, everywhere."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
from collections import Counter
from typing import Any

import pytest
from pymongo import AsyncMongoClient, InsertOne, UpdateOne
from support.interruption import Journal
from support.telemetry import Instrument

from pymongo_resilience.testbed import Overload, ReplicaSet, Slow

TASKS = 200
SECONDS = 1.0
"""Within so many the last task is cancelled."""


async def _work(coll: Any, number: int, rng: random.Random) -> None:
    client = coll.database.client
    mine = {"_id": number}

    async def read() -> None:
        async for _ in coll.find({}, batch_size=2, limit=8):
            pass

    async def leave_early() -> None:
        async with coll.find({}, batch_size=2) as cursor:
            await cursor.next()

    async def in_transaction() -> None:
        async with client.start_session() as session, await session.start_transaction():
            await coll.update_one(mine, {"$inc": {"n": 1}}, session=session)

    async def write_many() -> None:
        await coll.bulk_write([UpdateOne(mine, {"$inc": {"n": 1}}), InsertOne({})])

    async def aggregate() -> None:
        await (await coll.aggregate([{"$match": mine}])).to_list()

    async def command() -> None:
        await coll.database.command("count", coll.name)

    while True:
        await rng.choice([read, leave_early, in_transaction, write_many, aggregate, command])()


async def _cancel_them_all(proxy: ReplicaSet, database: str, journal: Journal) -> None:
    rng = random.Random(4)  # noqa: S311 - moments, no secrets
    async with AsyncMongoClient(
        proxy.uri, maxPoolSize=TASKS // 2, event_listeners=[journal]
    ) as client:
        coll = client[database].coll
        await coll.insert_many([{"_id": number} for number in range(TASKS)])
        # Connections for them: else a slow machine is busy with those when they are cancelled.
        await asyncio.gather(*(coll.find_one() for _ in range(TASKS)))
        # Replies to wait for, and back-offs.
        proxy.inject(Slow(0.05))
        proxy.inject(Overload(times=40))
        tasks = [asyncio.create_task(_work(coll, number, rng)) for number in range(TASKS)]
        await asyncio.gather(*(_cancel(task, rng.uniform(0, SECONDS)) for task in tasks))


async def _cancel(task: asyncio.Task[None], moment: float) -> None:
    """Until it is over: in Python 3.11 ``asyncio.wait_for``, with which pymongo connects and sends,
    drops a cancellation that comes together with what it waits for (plain pymongo 4.20 as well)."""
    while not task.done():
        await asyncio.sleep(moment)
        task.cancel()
        await asyncio.wait([task], timeout=SECONDS)
    with pytest.raises(asyncio.CancelledError):
        await task


def test_whatever_the_moment_each_started_command_has_one_end(
    proxy: ReplicaSet, database: str, instrument: Instrument, caplog: pytest.LogCaptureFixture
) -> None:
    telemetry = instrument(retry_budget="off")  # one client meets all of the rejections
    caplog.set_level(logging.DEBUG, logger="pymongo.command")
    journal = Journal()
    asyncio.run(_cancel_them_all(proxy, database, journal))

    started, ended = Counter[int](), Counter[int]()
    for event in journal.events:
        if type(event).__name__ == "CommandStartedEvent":
            started[event.request_id] += 1
        elif type(event).__name__ in ("CommandSucceededEvent", "CommandFailedEvent"):
            ended[event.request_id] += 1
    assert ended == started
    failures = [event.failure for event in journal.events if hasattr(event, "failure")]
    interrupted = [failure for failure in failures if failure.get("errtype") == "CancelledError"]
    assert len(interrupted) > TASKS / 50, "nearly all were cancelled elsewhere: this proves little"

    log: dict[str, Counter[int]] = {
        "started": Counter(),
        "succeeded": Counter(),
        "failed": Counter(),
    }
    for record in caplog.records:
        if record.name == "pymongo.command":
            line = json.loads(record.getMessage())
            with contextlib.suppress(KeyError):
                log[line["message"].removeprefix("Command ")][line["requestId"]] += 1
    assert log["succeeded"] + log["failed"] == log["started"] == started

    spans = [span for span in telemetry.spans() if "db.command.name" in span.attributes]
    assert len(spans) == started.total()
    names = Counter(type(event).__name__ for event in journal.events)
    assert names["ConnectionCheckedOutEvent"] == names["ConnectionCheckedInEvent"]
