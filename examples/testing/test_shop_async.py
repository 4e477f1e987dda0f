"""The same with asyncio. A plugin such as anyio's or pytest-asyncio runs async tests as well."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import shop
from pymongo import AsyncMongoClient

from pymongo_resilience import instrument, uninstrument
from pymongo_resilience.testbed import CutAfter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from pymongo_resilience.testbed import ReplicaSet


@pytest.fixture
def with_orders(mongo_replica_set: ReplicaSet, mongo_database: str) -> Iterator[Any]:
    """Runs a coroutine function with the collection, in an event loop of its own."""

    async def call(test: Callable[[Any], Awaitable[None]]) -> None:
        async with AsyncMongoClient[dict[str, Any]](mongo_replica_set.uri) as client:
            await test(client[mongo_database].orders)

    instrument(timeout_ms=20_000)
    yield lambda test: asyncio.run(call(test))
    uninstrument()


@pytest.mark.mongo_faults(CutAfter("insert", times=2))
def test_an_order_is_placed_once(with_orders: Any) -> None:
    async def test(orders: Any) -> None:
        await shop.place_order_async(orders, 1)
        assert await orders.count_documents({"number": 1}) == 1

    with_orders(test)


@pytest.mark.mongo_faults(CutAfter("update"))
def test_an_order_is_paid_once(with_orders: Any) -> None:
    async def test(orders: Any) -> None:
        await orders.insert_one({"number": 1, "cents": 0})
        await shop.pay_async(orders, 1, 500)
        assert (await orders.find_one({"number": 1}))["cents"] == 500

    with_orders(test)
