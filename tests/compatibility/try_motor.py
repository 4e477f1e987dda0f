"""Motor runs pymongo's sync client in threads."""

from __future__ import annotations

import asyncio

from trial import FAILURES, Trial, deadline_missed, tried

from pymongo_resilience.testbed import BlackHole, CutAfter, CutBefore, ReplicaSet

trial = Trial()
from motor.motor_asyncio import AsyncIOMotorClient  # noqa: E402 - it keeps the methods it finds


async def main(proxy: ReplicaSet) -> None:
    client = AsyncIOMotorClient(proxy.uri)
    orders = client.shop.orders
    proxy.inject(CutBefore("insert", times=FAILURES))
    await orders.insert_one({"_id": 1, "n": 0})
    trial.check_operation("insert shop.orders", commands=1 + FAILURES)

    proxy.inject(CutAfter("update", times=FAILURES))
    await asyncio.gather(*(orders.update_one({"_id": 1}, {"$inc": {"n": 1}}) for _ in range(20)))
    assert len(trial.operations("update shop.orders")) == 20

    await orders.insert_many([{"n": n} for n in range(9)])
    documents = await orders.find({}, batch_size=6).to_list(None)
    assert sorted(each["n"] for each in documents) == [*range(9), 20]
    trial.check_operation("find shop.orders")
    trial.check_operation("getMore shop.orders")

    async with await client.start_session() as session:
        async with session.start_transaction():
            await orders.delete_many({}, session=session)
    assert await orders.count_documents({}) == 0
    trial.check_pools(1)

    proxy.inject(BlackHole(60))
    with deadline_missed():
        await orders.find_one()
    proxy.clear()
    client.close()
    trial.check_pools(0)


with trial.deployment() as deployment:
    asyncio.run(main(deployment))
tried("motor")
