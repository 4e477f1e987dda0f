"""The SDK is set up once clients are made and have run operations. Arguments: URI, database, sync
or async. Prints spans and servers.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from typing import Any

import pymongo
from common import Telemetry, client, say

import pymongo_resilience


async def main() -> None:
    uri, database, half = sys.argv[1:]
    pymongo_resilience.instrument()
    kind = pymongo.MongoClient if half == "sync" else pymongo.AsyncMongoClient
    one = client(uri, kind)

    async def find_twice() -> None:
        for _ in range(2):
            found = one[database].coll.find_one()
            if inspect.isawaitable(found):
                await found

    await find_twice()
    telemetry = Telemetry()
    await asyncio.sleep(1)  # an SDK is looked for once a second
    await find_twice()
    spans = telemetry.exporter.get_finished_spans()
    names = {span.context.span_id: span.name for span in spans}
    say({
        "spans": [(span.name, span.parent and names[span.parent.span_id]) for span in spans],
        "durations": telemetry.by("server.port", "db.client.operation.duration"),
        "idle": telemetry.by("db.client.connection.state", "db.client.connection.count"),
    })  # fmt: skip
    closed: Any = one.close()
    if inspect.isawaitable(closed):
        await closed


asyncio.run(main())
