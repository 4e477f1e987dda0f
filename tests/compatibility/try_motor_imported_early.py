"""Motor keeps pymongo's methods as they are while it is imported: what is left after that."""

from __future__ import annotations

import asyncio

from motor.motor_asyncio import AsyncIOMotorClient
from trial import FAILURES, Trial, deadline_missed, tried

from pymongo_resilience.testbed import BlackHole, CutAfter, ReplicaSet

trial = Trial()


async def main(proxy: ReplicaSet) -> None:
    client = AsyncIOMotorClient(proxy.uri)
    orders = client.shop.orders
    proxy.inject(CutAfter("update", times=FAILURES))
    await orders.update_one({"_id": 1}, {"$inc": {"n": 1}}, upsert=True)
    assert await orders.find_one() == {"_id": 1, "n": 1}
    trial.check_retried("update")
    assert trial.operations("update shop.orders") == []
    assert len(trial.operations("update")) == 1 + FAILURES

    proxy.inject(BlackHole(60))
    with deadline_missed():
        await orders.find_one()
    proxy.clear()
    client.close()


with trial.deployment() as deployment:
    asyncio.run(main(deployment))
tried("motor")
