"""Forks in the middle of operations. OpenTelemetry's SDK is set up before.

In the generator that ``insert_many`` reads from: that child lives on below the operation. And in
the decoder of a reply: that child leaves the operation. Arguments: URI, database, ``MongoClient``
or ``AsyncMongoClient``.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import pymongo
from bson.codec_options import CodecOptions, TypeDecoder, TypeRegistry
from common import Child, Telemetry, client, say
from opentelemetry import trace

import pymongo_resilience

TIMEOUT = 3.0


async def done(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def lives_on(telemetry: Telemetry, clients: list[Any], database: str, deadline: float) -> Any:
    """A worker of a pool: the operation's frames stay below it, and it outlives its deadline."""
    below_the_operation = trace.get_current_span().get_span_context().is_valid
    while time.monotonic() < deadline:
        time.sleep(0.01)

    async def find() -> None:
        for one in clients:
            await done(one[database].children.find_one())

    asyncio.run(find())
    finds = telemetry.described(f"find {database}.children")
    return {"current span": below_the_operation, "finds": finds}


class Unwound(BaseException):
    """Leaves the operation in the child."""


class Forking(TypeDecoder):
    bson_type = str

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def transform_bson(self, value: str) -> str:
        if value == "fork" and os.fork() == 0:
            # Since Python 3.14, a forked child has no running loop, so that not even plain pymongo
            # can leave an operation in it: the clean-up of its connection waits for ever.
            asyncio._set_running_loop(self._loop)
            raise Unwound
        return value


async def main(uri: str, database: str, kind: Any) -> None:
    telemetry = Telemetry()
    ours = client(uri, kind)
    children: list[Child] = []

    def documents() -> Iterator[dict[str, Any]]:
        yield {"_id": 1}
        # An async client that is in use belongs to this process's event loop.
        clients = [client(uri, kind), ours if kind is pymongo.MongoClient else client(uri, kind)]
        end = time.monotonic() + TIMEOUT
        children.append(Child("fork", lives_on, telemetry, clients, database, end))
        yield {"_id": "fork"}

    await done(ours[database].coll.insert_many(documents()))

    codec = CodecOptions(type_registry=TypeRegistry([Forking()]))
    read, write = os.pipe()
    counted = telemetry.by("db.operation.name", "pymongo_resilience.attempts")
    exported = len(telemetry.exporter.get_finished_spans())
    try:
        await done(ours[database].get_collection("coll", codec).find_one("fork"))
    except Unwound:
        after = telemetry.by("db.operation.name", "pymongo_resilience.attempts")
        spans = len(telemetry.exporter.get_finished_spans()) - exported
        os.write(write, json.dumps({"spans": spans, "counted": after != counted}).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        unwound = json.load(pipe)
    await done(ours.close())
    say(
        {
            "lived on": children[0].answer(),
            "unwound": unwound,
            "insert": telemetry.described(f"insert {database}.coll"),
            "find": telemetry.described(f"find {database}.coll"),
        }
    )


if __name__ == "__main__":
    pymongo_resilience.instrument(
        pymongo_resilience.Config(timeout_ms=int(TIMEOUT * 1000), metrics="all")
    )
    asyncio.run(main(sys.argv[1], sys.argv[2], getattr(pymongo, sys.argv[3])))
