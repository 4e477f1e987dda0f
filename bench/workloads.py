"""The operations that are measured, sync and async, by one or by many at once."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo import AsyncMongoClient, MongoClient

FIND, INSERT, UPDATE, AGGREGATE, CURSOR, ONE_BATCH, TEN_DOCUMENTS = (
    "find_one", "insert_one", "update_one", "aggregate", "cursor", "one_batch", "ten_documents",
)  # fmt: skip
WORKLOADS = (FIND, INSERT, UPDATE, AGGREGATE, CURSOR)
"""``cursor`` is 1,000 documents in 10 batches; one operation is all of it."""
CURSORS = (CURSOR, ONE_BATCH, TEN_DOCUMENTS)
"""``one_batch`` is 1,000 documents in one batch, ``ten_documents`` as many in one."""
BATCH_SIZE = 100
DOCUMENTS = 1000
FEW = 10
LONG = (CURSOR, ONE_BATCH)
"""Operations that take as long as ten others."""


class SyncWork:
    """So many threads, each with its share of a burst."""

    def __init__(self, uri: str, around: Callable[[Any], Any], at_once: int) -> None:
        from pymongo import MongoClient

        self.client: MongoClient[Any] = MongoClient(uri)
        self._coll = self.client.bench.coll
        self._calls = {name: around(getattr(self, f"_{name}")) for name in (*WORKLOADS, *CURSORS)}
        self._at_once = at_once

    def burst(self, workload: str, count: int) -> None:
        call = self._calls[workload]
        if self._at_once == 1:
            self._share(call, count)
            return
        threads = [
            threading.Thread(target=self._share, args=(call, count // self._at_once))
            for _ in range(self._at_once)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @staticmethod
    def _share(call: Callable[[], Any], count: int) -> None:
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

    def _one_batch(self) -> Any:
        for _ in self._coll.find({}, batch_size=DOCUMENTS):
            pass

    def _ten_documents(self) -> Any:
        for _ in self._coll.find({}, limit=FEW):
            pass


class AsyncWork:
    """So many tasks, each with its share of a burst, on one event loop."""

    def __init__(self, uri: str, around: Callable[[Any], Any], at_once: int) -> None:
        from pymongo import AsyncMongoClient

        self._loop = asyncio.new_event_loop()
        self.client: AsyncMongoClient[Any] = AsyncMongoClient(uri)
        self._coll = self.client.bench.coll
        self._calls = {name: around(getattr(self, f"_{name}")) for name in (*WORKLOADS, *CURSORS)}
        self._at_once = at_once

    def burst(self, workload: str, count: int) -> None:
        self._loop.run_until_complete(self._all(self._calls[workload], count))

    async def _all(self, call: Callable[[], Any], count: int) -> None:
        if self._at_once == 1:
            await self._share(call, count)
            return
        share = count // self._at_once
        await asyncio.gather(*(self._share(call, share) for _ in range(self._at_once)))

    @staticmethod
    async def _share(call: Callable[[], Any], count: int) -> None:
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

    async def _one_batch(self) -> Any:
        async for _ in self._coll.find({}, batch_size=DOCUMENTS):
            pass

    async def _ten_documents(self) -> Any:
        async for _ in self._coll.find({}, limit=FEW):
            pass
