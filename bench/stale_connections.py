"""How many calls fail if the network has dropped the connection that they use.

    python bench/stale_connections.py                     on the emulator
    python bench/stale_connections.py mongod=PATH         on a mongod

Before each call, all is well. Then the connection breaks when the call's command is sent, as after
a firewall has forgotten it. Each method is called N times with plain pymongo, with the library, and
with the library and ``override(idempotent=True)``.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import PyMongoError

from pymongo_resilience import instrument, override, uninstrument
from pymongo_resilience.testbed import CutBefore, ReplicaSet

OUT = [{"$match": {"paid": True}}, {"$out": "paid_orders"}]
METHODS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    'command("ping")': ("ping", lambda shop: shop.command("ping")),
    'command("collStats", ...)': ("collStats", lambda shop: shop.command("collStats", "orders")),
    "server_info()": ("buildinfo", lambda shop: shop.client.server_info()),
    "validate_collection()": ("validate", lambda shop: shop.validate_collection("orders")),
    "drop_database()": ("dropDatabase", lambda shop: shop.client.drop_database("other")),
    "aggregate() with $out": ("aggregate", lambda shop: shop.orders.aggregate(OUT)),
    "update_many()": (
        "update", lambda shop: shop.orders.update_many({"paid": False}, {"$set": {"paid": True}}),
    ),
}  # fmt: skip
SIDES = ("plain pymongo", "the library, not declared", "the library, declared")


def check_that_it_struck(cut: CutBefore) -> None:
    if cut.injected != 1:
        raise RuntimeError("no connection was cut")


def count_failures(replica_set: ReplicaSet, times: int) -> list[int]:
    """Return how many calls of each method fail, with the synchronous API."""
    failures = []
    with MongoClient[Any](replica_set.uri) as client:
        for command, call in METHODS.values():
            failed = 0
            for _ in range(times):
                client.shop.orders.find_one()  # so that there is a connection
                replica_set.inject(cut := CutBefore(command))
                try:
                    call(client.shop)
                except PyMongoError:
                    failed += 1
                check_that_it_struck(cut)
            failures.append(failed)
    return failures


async def count_failures_async(replica_set: ReplicaSet, times: int) -> list[int]:
    """The same with the asynchronous API."""
    failures = []
    async with AsyncMongoClient[Any](replica_set.uri) as client:
        for command, call in METHODS.values():
            failed = 0
            for _ in range(times):
                await client.shop.orders.find_one()
                replica_set.inject(cut := CutBefore(command))
                try:
                    await call(client.shop)
                except PyMongoError:
                    failed += 1
                check_that_it_struck(cut)
            failures.append(failed)
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("server", nargs="?")
    parser.add_argument("--times", type=int, default=10)
    arguments = parser.parse_args()
    logging.getLogger("pymongo_resilience").setLevel(logging.CRITICAL)
    times = arguments.times
    with ReplicaSet(arguments.server) as replica_set:
        with MongoClient[Any](replica_set.uri) as client:
            client.shop.orders.insert_many([{"paid": n % 2 == 0} for n in range(10)])
        found: list[tuple[list[int], list[int]]] = []
        for side in SIDES:
            if side == SIDES[1]:
                instrument(timeout_ms=20_000)
            with override(idempotent=True) if side == SIDES[2] else nullcontext():
                found.append(
                    (
                        count_failures(replica_set, times),
                        asyncio.run(count_failures_async(replica_set, times)),
                    )
                )
        uninstrument()
    print(f"| calls that failed, of {times}: sync, async | {' | '.join(SIDES)} |")
    print(f"|---|{'---|' * len(SIDES)}")
    for number, name in enumerate(METHODS):
        cells = (f"{sync[number]}, {asynchronous[number]}" for sync, asynchronous in found)
        print(f"| `{name}` | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
