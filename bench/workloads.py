"""The operations that are measured, sync and async, by one or by many at once."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from pymongo import AsyncMongoClient, MongoClient

if TYPE_CHECKING:
    from collections.abc import Callable

FIND, INSERT, UPDATE, AGGREGATE, CURSOR = (
    "find_one", "insert_one", "update_one", "aggregate", "cursor",
)  # fmt: skip
WORKLOADS = (FIND, INSERT, UPDATE, AGGREGATE, CURSOR)
"""``cursor`` is 1,000 documents in 10 batches; one operation is all of it."""
BATCH_SIZE = 100


class SyncWork:
    """So many threads, each with its share of a burst."""

    def __init__(self, uri: str, workload: str, around: Callable[[Any], Any], at_once: int) -> None:
        self.client: MongoClient[Any] = MongoClient(uri)
        self._coll = self.client.bench.coll
        self._call = around(getattr(self, f"_{workload}"))
        self._at_once = at_once

    def burst(self, count: int) -> None:
        if self._at_once == 1:
            self._share(count)
            return
        threads = [
            threading.Thread(target=self._share, args=(count // self._at_once,))
            for _ in range(self._at_once)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _share(self, count: int) -> None:
        call = self._call
        for _ in range(count):
            call()

    def _find_one(self) -> Any:
        return self._coll.find_one({"_id": 1})

    def _insert_one(self) -> Any:
        return self._coll.insert_one({"name": "a customer of ours", "balance": 12.5})

    def _update_one(self) -> Any:
        return self._coll.update_one({"_id": 1}, {"$set": {"balance": 12.5}})

    def _aggregate(self) -> Any:
        return list(self._coll.aggregate([{"$match": {"_id": 1}}]))

    def _cursor(self) -> Any:
        for _ in self._coll.find({}, batch_size=BATCH_SIZE):
            pass


class AsyncWork:
    """So many tasks, each with its share of a burst, on one event loop."""

    def __init__(self, uri: str, workload: str, around: Callable[[Any], Any], at_once: int) -> None:
        self._loop = asyncio.new_event_loop()
        self.client: AsyncMongoClient[Any] = AsyncMongoClient(uri)
        self._coll = self.client.bench.coll
        self._call = around(getattr(self, f"_{workload}"))
        self._at_once = at_once

    def burst(self, count: int) -> None:
        self._loop.run_until_complete(self._all(count))

    async def _all(self, count: int) -> None:
        if self._at_once == 1:
            await self._share(count)
            return
        share = count // self._at_once
        await asyncio.gather(*(self._share(share) for _ in range(self._at_once)))

    async def _share(self, count: int) -> None:
        call = self._call
        for _ in range(count):
            await call()

    async def _find_one(self) -> Any:
        return await self._coll.find_one({"_id": 1})

    async def _insert_one(self) -> Any:
        return await self._coll.insert_one({"name": "a customer of ours", "balance": 12.5})

    async def _update_one(self) -> Any:
        return await self._coll.update_one({"_id": 1}, {"$set": {"balance": 12.5}})

    async def _aggregate(self) -> Any:
        return await (await self._coll.aggregate([{"$match": {"_id": 1}}])).to_list()

    async def _cursor(self) -> Any:
        async for _ in self._coll.find({}, batch_size=BATCH_SIZE):
            pass
