"""Forks again and again while its threads work with an instrumented client.

OpenTelemetry's SDK is set up after the fork, in each process, as by servers that fork workers.
Arguments: URI, database.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pymongo
from common import Child, Telemetry, client, fail, say

import pymongo_resilience

THREADS = 4
UPDATE = {"$inc": {"n": 1}}


class Load:
    """Threads that insert and find, until the block ends."""

    def __init__(self, coll: Any) -> None:
        self._coll = coll
        self._stop = threading.Event()
        self._rounds = [0] * THREADS
        self.errors: list[str] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._work, args=(n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def wait_for_progress(self) -> None:
        """Until each thread has done a whole round that it began after now."""
        goal = [rounds + 2 for rounds in self._rounds]
        while not self.errors and any(map(int.__lt__, self._rounds, goal)):
            self._stop.wait(0.001)

    def _work(self, thread: int) -> None:
        try:
            for n in itertools.count():
                if self._stop.is_set():
                    return
                self._coll.insert_one({"_id": f"{thread}-{n}"})
                self._coll.find_one({"_id": f"{thread}-{n}"})
                self._rounds[thread] += 1
        except Exception as error:  # noqa: BLE001 - the test wants to see it
            self.errors.append(repr(error))


async def update_through_faults(clients: list[Any], database: str) -> list[int]:
    """Each client updates a document of its own; how often that was done to it."""

    async def done(value: Any) -> Any:
        return await value if inspect.isawaitable(value) else value

    counts = []
    for number, one in enumerate(clients):
        document = {"_id": f"{os.getpid()}-{number}"}
        await done(fail(one, "update"))
        await done(one[database].children.update_one(document, UPDATE, upsert=True))
        counts.append((await done(one[database].children.find_one(document)))["n"])
        await done(one.close())
    return counts


def child(inherited: Any, uri: str, database: str) -> dict[str, Any]:
    """What a forked worker sees, and what it does with a new client and with the inherited one."""
    telemetry = Telemetry()
    seen = {
        "servers before": telemetry.points("pymongo_resilience.server.state"),
        "connections before": telemetry.points("db.client.connection.count"),
        "counts": asyncio.run(
            update_through_faults([client(uri, type(inherited)), inherited], database)
        ),
        "updates": telemetry.described(f"update {database}.children"),
        "calls": telemetry.by("db.operation.name", "pymongo_resilience.attempts"),
        "retries": telemetry.by("db.operation.name", "pymongo_resilience.retries"),
    }
    pymongo_resilience.uninstrument()
    telemetry.exporter.clear()
    client(uri)[database].children.find_one()
    return seen | {"spans once uninstrumented": len(telemetry.exporter.get_finished_spans())}


def main(uri: str, database: str) -> None:
    pymongo_resilience.instrument(pymongo_resilience.Config(timeout_ms=20_000, metrics="all"))
    ours = client(uri)
    # An async client belongs to the event loop it was first used in: the children inherit an
    # unused one.
    unused = client(uri, pymongo.AsyncMongoClient)
    load = Load(ours[database].parent)
    with load.running():
        children = []
        for inherited in [ours, unused] * 2:
            load.wait_for_progress()
            children.append(Child("fork", child, inherited, uri, database).answer())
        load.wait_for_progress()
    telemetry = Telemetry()
    fail(ours, "update")
    ours[database].parent.update_one({"_id": 0}, UPDATE, upsert=True)
    say(
        {
            "children": children,
            "errors": load.errors,
            "updates": telemetry.described(f"update {database}.parent"),
        }
    )
    ours.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
