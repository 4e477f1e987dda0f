"""A write that nobody declared idempotent is applied once, whatever blocks there have been before.

Its reply is lost: repeated, it would count twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import pymongo
import pytest
from pymongo.errors import AutoReconnect
from support.clients import POLLING, Side
from support.command_listeners import Inside
from support.telemetry import Instrument

import pymongo_resilience
from pymongo_resilience import Config, Policy, bind, override
from pymongo_resilience.testbed import CutAfter, ReplicaSet
from pymongo_resilience.testing import is_active, set_active

pytestmark = pytest.mark.oldest

Count = Callable[[], None]
"""Counts once, by a write that must not be repeated."""


@override(idempotent=True)
def holding() -> Iterator[None]:
    yield
    yield


def in_the_body_of_a_loop(count: Count) -> None:
    for step, _ in enumerate(holding()):
        if step == 0:
            count()


def in_a_context_that_was_copied_inside(count: Count) -> None:
    with override(idempotent=True):
        context = contextvars.copy_context()
    context.run(count)


def in_a_context_that_a_loop_body_copied(count: Count) -> None:
    steps = holding()
    next(steps)
    contextvars.copy_context().run(count)


@pytest.fixture
def coll(side: Side, proxy: ReplicaSet, database: str, control: Any) -> Any:
    client = side.client(proxy.uri)
    side.do(client.admin.command, "ping")
    control[database].coll.insert_many([{"_id": number, "n": 0} for number in range(2)])
    return client[database].coll


@pytest.mark.parametrize(
    "undeclared",
    [
        in_the_body_of_a_loop,
        in_a_context_that_was_copied_inside,
        in_a_context_that_a_loop_body_copied,
    ],
)
def test_no_policy_outlives_its_block(
    undeclared: Callable[[Count], None],
    side: Side,
    proxy: ReplicaSet,
    coll: Any,
    database: str,
    control: Any,
    instrument: Instrument,
) -> None:
    instrument(timeout_ms=20_000)
    proxy.inject(CutAfter("update"))

    def count() -> None:
        with pytest.raises(AutoReconnect):
            side.do(coll.update_many, {}, {"$inc": {"n": 1}})

    contextvars.copy_context().run(undeclared, count)
    assert control[database].coll.distinct("n") == [1]


def test_a_policy_does_not_outlive_its_block_in_tasks(
    proxy: ReplicaSet, database: str, control: Any, instrument: Instrument
) -> None:
    instrument(timeout_ms=20_000)
    control[database].coll.insert_one({"n": 0})

    async def count(coll: Any) -> None:
        proxy.inject(CutAfter("update"))
        with pytest.raises(AutoReconnect):
            await coll.update_many({}, {"$inc": {"n": 1}})

    @override(idempotent=True)
    async def holding_async() -> Any:
        yield

    async def main() -> None:
        async with pymongo.AsyncMongoClient(proxy.uri, **POLLING) as client:
            coll, go = client[database].coll, asyncio.Event()

            async def later() -> None:
                await go.wait()
                await count(coll)

            async with override(idempotent=True):
                task = asyncio.create_task(later())
            go.set()
            await task
            async for _ in holding_async():
                await count(coll)
                await asyncio.create_task(count(coll))

    asyncio.run(main())
    assert control[database].coll.distinct("n") == [3]


def test_a_policy_holds_inside_of_its_block(
    side: Side,
    proxy: ReplicaSet,
    coll: Any,
    database: str,
    control: Any,
    instrument: Instrument,
) -> None:
    instrument(timeout_ms=20_000)

    def write() -> None:
        cut = CutAfter("update")
        proxy.inject(cut)
        side.do(coll.update_many, {}, {"$set": {"seen": True}})
        assert cut.injected == 1

    @override(idempotent=True)
    def steps() -> Iterator[None]:
        write()
        yield
        write()

    @contextlib.contextmanager
    def declared() -> Iterator[None]:
        with override(idempotent=True):
            yield

    with declared():
        write()
        contextvars.copy_context().run(write)
    assert len(list(steps())) == 1


@pytest.mark.parametrize("how", ["generator", "listener"])
def test_what_is_inserted_from_does_not_get_the_policy_of_the_insert(
    how: str, proxy: ReplicaSet, database: str, control: Any, instrument: Instrument
) -> None:
    """Into the same namespace. Nothing can be awaited there."""
    telemetry = instrument(timeout_ms=20_000)
    control[database].coll.insert_one({"_id": "counter", "n": 0})
    inside = Inside()
    options: Any = {**POLLING, "event_listeners": [inside]}
    with pymongo.MongoClient[Any](proxy.uri, **options) as client:
        coll = client[database].coll
        bound = bind(coll, Policy(idempotent=True))
        telemetry.clear()

        def count() -> None:
            proxy.inject(CutAfter("update"))
            with pytest.raises(AutoReconnect):
                coll.update_many({}, {"$inc": {"n": 1}})

        def documents() -> Iterator[dict[str, Any]]:
            count()
            yield {"_id": 1}

        if how == "generator":
            bound.insert_many(documents())
        else:
            coll.find_one()
            inside.act = count
            bound.insert_one({"_id": 1})
    assert control[database].coll.find_one({"_id": "counter"}) == {"_id": "counter", "n": 1}
    names = [span.name for span in telemetry.operations() if not span.name.startswith("find")]
    assert names == [f"update {database}.coll", f"insert {database}.coll", "endSessions admin"]


def test_uninstrumenting_inside_of_set_active_is_for_good() -> None:
    pymongo_resilience.instrument(Config())
    with set_active(False):
        pymongo_resilience.uninstrument()
    assert not is_active()
