"""Two hundred tasks cancelled at random moments: what started has ended, once, everywhere."""

from __future__ import annotations

import asyncio
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


def test_whatever_the_moment_each_started_command_has_one_span_that_ends(
    proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(retry_budget="off")  # one client meets all of the rejections
    journal = Journal()
    asyncio.run(_cancel_them_all(proxy, database, journal))

    names = Counter(type(event).__name__ for event in journal.events)
    ended = names["CommandSucceededEvent"] + names["CommandFailedEvent"]
    interrupted = names["CommandStartedEvent"] - ended
    assert interrupted > TASKS / 50, "nearly all were cancelled elsewhere: this proves little"
    spans = [span for span in telemetry.spans() if "db.command.name" in span.attributes]
    sent = Counter(each.command_name for each in journal.started_commands())
    # A clean-up that is cancelled belongs to no operation, whose end would end its span.
    for name in ("killCursors", "endSessions"):
        del sent[name]
    ended_spans = Counter(span.attributes["db.command.name"] for span in spans)
    # The background task may send the abort of a transaction whose session is left.
    assert ended_spans.pop("abortTransaction", 0) <= sent.pop("abortTransaction", 0)
    assert {name: ended_spans[name] for name in sent} == dict(sent)
    assert names["ConnectionCheckedOutEvent"] == names["ConnectionCheckedInEvent"]
