"""The same for asyncio: many tasks, one client, a shorter deadline for one of them.

MONGODB_URI=mongodb://localhost:27017 python quickstart_asyncio.py
"""

from __future__ import annotations

import asyncio
import logging
import os

import pymongo
from pymongo import AsyncMongoClient

from pymongo_resilience import instrument

TASKS = 20


async def main() -> None:
    logging.basicConfig(level=logging.INFO)
    instrument(timeout_ms=20_000)

    async with AsyncMongoClient(os.environ["MONGODB_URI"]) as client:
        counters = client.shop.counters
        await counters.drop()
        await counters.insert_one({"_id": "visits", "n": 0})

        # Each increment is applied exactly once, whatever the network does meanwhile.
        visit = {"$inc": {"n": 1}}
        await asyncio.gather(*(counters.update_one({"_id": "visits"}, visit) for _ in range(TASKS)))

        # pymongo's own block sets a deadline for what is inside, retries included.
        with pymongo.timeout(5):
            print(await counters.find_one({"_id": "visits"}))


if __name__ == "__main__":
    asyncio.run(main())
