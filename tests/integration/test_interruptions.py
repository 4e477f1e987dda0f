"""Whoever is interrupted ends at once: nothing more is sent, no cancellation is lost or kept.

CPython's ``wait_for``, by which pymongo sends, waits and connects, drops one before 3.12 that
arrives together with a result.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter
from contextvars import ContextVar
from typing import Any

import pymongo
import pytest
from pymongo import AsyncMongoClient, InsertOne, UpdateOne
from pymongo.lock import Condition
from pymongo.network_layer import PyMongoProtocol
from support.clients import Side, fail_command
from support.interruption import LONG, NAMES, Journal, interrupt
from support.telemetry import Instrument, Telemetry

from pymongo_resilience.strategies import RetryAction
from pymongo_resilience.testbed import Fail, Overload, ReplicaSet, Slow

AT_ONCE = 5.0
"""Seconds. It takes milliseconds, or longer on a machine with other work; the wait is 60 s."""


class Patient:
    """A strategy that has all the time in the world."""

    def retry_after(self, operation: Any, failure: Any) -> RetryAction:
        return RetryAction(LONG)


class Pondering:
    """A strategy that never comes to an answer."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    async def retry_after(self, operation: Any, failure: Any) -> RetryAction:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError("not reached")


def _interrupt_between_attempts(
    side: Side, proxy: ReplicaSet, database: str, telemetry: Telemetry, due: Any
) -> Any:
    """A find whose first attempt failed, interrupted before the second: its operation span."""
    journal = Journal()
    client = side.do(side.client, proxy.uri, maxPoolSize=1, event_listeners=[journal])
    side.do(client.admin.command, "ping")
    telemetry.clear()
    proxy.inject(Fail("find", times=9, code=262))
    assert interrupt(side, due, client[database].coll.find_one) < AT_ONCE

    (attempt,) = journal.started_commands("find")
    assert journal.without_exactly_one_end() == []
    used = [
        point.value
        for attributes, point in telemetry.points("db.client.connection.count")
        if attributes["db.client.connection.state"] == "used"
    ]
    assert used == [0], "a connection was not given back"
    (root,) = telemetry.operations()
    assert root.attributes["exception.type"].endswith(NAMES[side.name])
    assert len(telemetry.commands_of(root)) == 1
    side.do(client.admin.command, "ping")
    following = journal.started_commands("ping")[-1]
    assert following.command["lsid"] == attempt.command["lsid"], "a session was not given back"
    return root


def test_a_back_off_ends_at_once(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(strategy=Patient())
    decisions = telemetry.decisions.events
    root = _interrupt_between_attempts(side, proxy, database, telemetry, lambda: decisions)
    (scheduled,) = decisions
    assert scheduled.delay == LONG
    assert [event.name for event in root.events] == ["retry.scheduled"]


@pytest.mark.parametrize("side", ["async"], indirect=True)
def test_a_strategy_that_is_awaited_ends_at_once(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    strategy = Pondering()
    telemetry = instrument(strategy=strategy)
    root = _interrupt_between_attempts(side, proxy, database, telemetry, strategy.asked.is_set)
    assert telemetry.decisions.events == []
    assert root.events == ()


TIMEOUTS = pytest.mark.parametrize("timeout_ms", [None, 20_000])

CANCELLED: ContextVar[asyncio.Task[Any] | None] = ContextVar("CANCELLED", default=None)


PLACES = {
    "sending": (PyMongoProtocol, "write"),
    "waiting": (Condition, "wait"),
    "connecting": (asyncio.selector_events.BaseSelectorEventLoop, "sock_connect"),
}


@TIMEOUTS
@pytest.mark.parametrize("place", PLACES)
def test_a_cancellation_that_arrives_with_the_result_of_a_wait(
    proxy: ReplicaSet,
    database: str,
    control: pymongo.MongoClient[Any],
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
    timeout_ms: int | None,
    place: str,
) -> None:
    instrument(timeout_ms=timeout_ms)
    owner, name = PLACES[place]
    original = getattr(owner, name)
    hits: list[str] = []

    async def with_cancellation(*args: Any) -> Any:
        result = await original(*args)
        task = CANCELLED.get()
        if task is not None and not hits:
            hits.append(place)
            task.cancel()
        return result

    async def main() -> None:
        options = {"maxIdleTimeMS": 1} if place == "connecting" else {"maxPoolSize": 1}
        async with AsyncMongoClient(proxy.uri, appname="under-test", **options) as client:
            coll = client[database].coll
            await coll.find_one()
            await asyncio.sleep(0.01)
            finished: list[int] = []

            async def work() -> None:
                CANCELLED.set(asyncio.current_task())
                for number in range(3):
                    await coll.find_one()
                    finished.append(number)

            monkeypatch.setattr(owner, name, with_cancellation)
            with contextlib.ExitStack() as stack:
                if place == "waiting":
                    held = {"blockConnection": True, "blockTimeMS": 200, "times": 1}
                    stack.enter_context(fail_command(control, "count", **held))
                    holding = asyncio.create_task(coll.estimated_document_count())
                    await asyncio.sleep(0.1)
                worker = asyncio.create_task(work())
                await asyncio.wait([worker], timeout=10)
                if place == "waiting":
                    await holding
            assert hits
            assert finished == []
            assert worker.cancelled()
            # Nothing is left behind.
            monkeypatch.setattr(owner, name, original)
            assert await coll.find_one() is None

    asyncio.run(main())


TASKS = 200
REJECTIONS = 40
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
        proxy.inject(Overload(times=REJECTIONS))
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
    interrupted = names["CommandStartedEvent"] - names["CommandSucceededEvent"] - REJECTIONS
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
