"""Repeats a read with a session beside it, then lists whose attributes are kept in a dictionary.

CPython keeps the attributes of an instance where it finds them fast, until its ``__dict__`` is
read; a class that had many instances gets no new ones there, so the process has to be a new one.
Who starts it cuts the first ``find``. Arguments: URI, database, sync or async.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
from typing import Any

import pymongo
from common import Telemetry, client, say

import pymongo_resilience


def in_a_dict(instance: Any) -> bool:
    """Whether its attributes are; asked of any, they are from then on."""
    return any(
        type(each) is dict and each is instance.__dict__ for each in gc.get_referents(instance)
    )


def passed_through(client: Any) -> list[Any]:
    topology = client._topology
    pools = [server.pool for server in topology._servers.values()]
    return [client, client._event_listeners, topology, *topology._servers.values(), *pools]


async def main() -> None:
    uri, database, half = sys.argv[1:]
    Telemetry()
    pymongo_resilience.instrument()
    one = client(uri, pymongo.MongoClient if half == "sync" else pymongo.AsyncMongoClient)

    async def ended(result: Any) -> Any:
        return await result if inspect.isawaitable(result) else result

    session = one.start_session()
    await ended(one[database].coll.insert_one({}, session=session))
    await ended(one[database].coll.find_one())
    pymongo_resilience.uninstrument()
    kept = [*passed_through(one), session]
    say({"in a dictionary": [type(each).__name__ for each in kept if in_a_dict(each)]})
    await ended(session.end_session())
    await ended(one.close())


asyncio.run(main())
