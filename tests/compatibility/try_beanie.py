"""Beanie's documents use pymongo's own async client, from version 2 on."""

from __future__ import annotations

import asyncio
from typing import Any

from beanie import Document, init_beanie
from pymongo import AsyncMongoClient
from trial import FAILURES, Trial, deadline_missed, tried

from pymongo_resilience.testbed import BlackHole, CutAfter, CutBefore

trial = Trial()


class Order(Document):
    n: int


async def main(proxy: Any) -> None:
    client: Any = AsyncMongoClient(proxy.uri)
    await init_beanie(database=client.shop, document_models=[Order])
    proxy.inject(CutBefore("insert", times=FAILURES))
    order = await Order(n=0).insert()
    trial.check_operation("insert shop.Order", commands=1 + FAILURES)

    proxy.inject(CutAfter("update", times=FAILURES))
    await Order.find_one(Order.id == order.id).update({"$inc": {"n": 1}})
    trial.check_operation("update shop.Order", commands=1 + FAILURES)

    await Order.insert_many([Order(n=n) for n in range(2, 6)])
    found = await Order.find(batch_size=3).sort("+n").to_list()
    assert [each.n for each in found] == [1, 2, 3, 4, 5]
    trial.check_operation("getMore shop.Order")
    trial.check_pools(1)

    proxy.inject(BlackHole(60))
    with deadline_missed():
        await Order.find_one()
    proxy.clear()
    await client.close()
    trial.check_pools(0)


with trial.deployment() as deployment:
    asyncio.run(main(deployment))
tried("beanie")
