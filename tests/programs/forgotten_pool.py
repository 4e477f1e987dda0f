"""An insert over a pool whose connections a firewall has forgotten, while its monitors' go on.

Arguments: sync or async; and plain, or with a timeout.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from typing import Any

import pymongo
from common import say
from support.severable_path import SeverablePath

import pymongo_resilience

POOLED = 4
SHORT_MS = 300
"""``socketTimeoutMS``."""


async def result(of: Any) -> Any:
    return await of if inspect.isawaitable(of) else of


async def main(kind: str, setup: str) -> None:
    if setup != "plain":
        pymongo_resilience.instrument(timeout_ms=20_000)
    cls = pymongo.MongoClient if kind == "sync" else pymongo.AsyncMongoClient
    with SeverablePath() as path:
        client: Any = cls(path.uri, minPoolSize=POOLED, socketTimeoutMS=SHORT_MS)
        coll = client.test.coll
        await result(coll.insert_one({}))
        (server,) = client._topology._servers.values()
        for _ in range(1000):
            if len(server.pool.conns) >= POOLED:
                break
            await asyncio.sleep(0.01)
        path.forget_connections()
        error, began = None, time.monotonic()
        try:
            await result(coll.insert_one({}))
        except pymongo.errors.PyMongoError as raised:
            error = type(raised).__name__
        say({"error": error, "seconds": time.monotonic() - began})
        await result(client.close())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
