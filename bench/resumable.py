"""Whether resumable finds give each document once, in order, whatever strikes, and what that costs.

    python bench/resumable.py [--quick] [--collections N] [--side sync|async] [--only alone|writers]

200,000 documents, whose ``_id`` has ten types of BSON and each single value beside, are read in
batches of 100 from a replica set, while 100 faults strike: connections cut before and after a
getMore, elections, and cursors that the server has lost. Once alone, and once with writers that
insert and delete other documents meanwhile. The bar: each document that exists throughout once, in
order; no more than 2 % more commands than the batches of an undisturbed scan plus the faults.

The server of the test bed scans a whole collection for each find, so with 10 collections of 20,000
documents, each with its share of the faults, it takes a tenth of the time. ``--quick``: 4,000
documents, 20 faults, one seed; too few to judge the commands by.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import itertools
import logging
import math
import random
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import bson
import pymongo
from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Timestamp
from pymongo.errors import BulkWriteError
from pymongo.monitoring import CommandListener
from pymongo_resilience_instrumentation.testbed import (
    CutAfter,
    CutBefore,
    Election,
    EmbeddedServer,
    Fail,
    ReplicaSet,
)

from pymongo_resilience import Config, instrument, override, uninstrument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

BATCH = 100
MORE = 0.02
"""The bar: commands beyond the batches and the faults."""
PLENTY_MS = 120_000
CURSOR_NOT_FOUND = 43
VOLATILE = 2_000
"""Documents that writers insert and delete."""
FAULTS: tuple[Callable[[random.Random], Any], ...] = (
    lambda _: CutBefore("getMore"),
    lambda _: CutAfter("getMore"),
    lambda _: Fail("getMore", code=CURSOR_NOT_FOUND, name="CursorNotFound"),
    lambda dice: Election(gap=dice.uniform(0.05, 0.3)),
)
SINGLE: tuple[Any, ...] = (
    MinKey(), None, math.nan, -math.inf, Decimal128("Infinity"), True, False, MaxKey(), "",
)  # fmt: skip
_EPOCH = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
_MAKERS: tuple[Callable[[int], Any], ...] = (
    lambda n: n,
    lambda n: Int64(2**40 + n),
    lambda n: n + 0.5,
    lambda n: Decimal128(f"{n}.25"),
    lambda n: f"text {n % 7} {n}",
    lambda n: {"a": n % 5, "b": f"{n:07}"},
    lambda n: Binary(n.to_bytes(4, "big"), n % 3),
    lambda n: ObjectId(n.to_bytes(12, "big")),
    lambda n: _EPOCH + dt.timedelta(seconds=n),
    lambda n: Timestamp(n + 1, n % 3),
)


def made(first: int, count: int) -> Iterator[Any]:
    """So many values of ``_id``, in turn of each type, none equal to another one."""
    return (_MAKERS[n % len(_MAKERS)](n) for n in range(first, first + count))


def key(document: Any) -> bytes:
    return bson.encode({"_id": document["_id"]})


class Commands(CommandListener):
    """How many of each were sent."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()

    def started(self, event: Any) -> None:
        if event.command_name in ("find", "getMore", "killCursors"):
            self.sent[event.command_name] += 1

    def succeeded(self, event: Any) -> None: ...

    def failed(self, event: Any) -> None: ...


@dataclass
class Run:
    """The scans of all collections, and what came of them."""

    members: ReplicaSet
    dice: random.Random
    faults: int
    """For each collection."""
    most_more: float
    commands: Commands = field(default_factory=Commands)
    missing: int = 0
    doubled: int = 0
    ordered: bool = True
    struck: int = 0
    batches: int = 0

    @property
    def more(self) -> float:
        """Commands beyond the batches and the faults, as a part of those."""
        return self.commands.sent.total() / (self.batches + self.struck) - 1

    @property
    def kept(self) -> bool:
        return not (self.missing or self.doubled) and self.ordered and self.more <= self.most_more

    def places(self, documents: int) -> set[int]:
        """Before which batches a fault strikes; one that would meet the last finds no getMore."""
        return set(self.dice.sample(range(1, documents // BATCH - 1), self.faults))

    def strike(self) -> Future[None]:
        self.struck += 1
        return self.members.inject(self.dice.choice(FAULTS)(self.dice))

    def check(self, expected: list[bytes], found: list[bytes]) -> None:
        stable, times = set(expected), Counter(found)
        self.missing += len(stable - times.keys())
        self.doubled += sum(count > 1 for count in times.values())
        self.ordered &= [each for each in found if each in stable] == expected
        self.batches += -(-len(found) // BATCH)


def resumable() -> override:
    return override(resumable=True, timeout_ms=PLENTY_MS, timeout_mode="iteration")


def scan(run: Run, names: list[str], expected: list[bytes]) -> None:
    with pymongo.MongoClient(run.members.uri, event_listeners=[run.commands]) as client:
        for name in names:
            places, found = run.places(len(expected)), []
            with resumable():
                cursor = client.bench[name].find({}, batch_size=BATCH)
            for number in itertools.count():
                fault = run.strike() if number in places else None
                batch = cursor.to_list(BATCH) if cursor.alive else []
                if fault is not None:
                    fault.result(PLENTY_MS / 1000)  # one at a time, so that each strikes
                if not batch:
                    break
                found += map(key, batch)
            run.check(expected, found)


async def scan_async(run: Run, names: list[str], expected: list[bytes]) -> None:
    async with pymongo.AsyncMongoClient(run.members.uri, event_listeners=[run.commands]) as client:
        for name in names:
            places, found = run.places(len(expected)), []
            with resumable():
                cursor = client.bench[name].find({}, batch_size=BATCH)
            for number in itertools.count():
                fault = run.strike() if number in places else None
                batch = await cursor.to_list(BATCH) if cursor.alive else []
                if fault is not None:
                    await asyncio.wrap_future(fault)
                if not batch:
                    break
                found += map(key, batch)
            run.check(expected, found)


@contextmanager
def writers(uri: str, names: list[str], first: int) -> Iterator[None]:
    """Two threads that insert and delete documents which a scan need not see."""
    over, volatile = threading.Event(), list(made(first, VOLATILE))

    def write(number: int) -> None:
        dice = random.Random(number)  # noqa: S311 - as below
        mine = volatile[number::2]
        with pymongo.MongoClient(uri) as client:
            while not over.wait(0.3):
                coll = client.bench[dice.choice(names)]
                with suppress(BulkWriteError):  # what is there already
                    coll.insert_many([{"_id": e} for e in dice.sample(mine, 20)], ordered=False)
                coll.delete_many({"_id": {"$in": dice.sample(mine, 20)}})

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
        with pymongo.MongoClient(uri) as client:
            for name in names:
                client.bench[name].delete_many({"_id": {"$in": volatile}})


def fill(uri: str, names: list[str], documents: int) -> list[bytes]:
    """The keys of the documents of each collection, in the server's own order."""
    every = [{"_id": each} for each in (*SINGLE, *made(0, documents - len(SINGLE)))]
    random.Random(0).shuffle(every)  # noqa: S311 - an order that can be repeated
    with pymongo.MongoClient(uri) as client:
        for name in names:
            for at in range(0, documents, 5000):
                client.bench[name].insert_many(every[at : at + 5000], ordered=False)
        return [key(each) for each in client.bench[names[0]].find({}, sort={"_id": 1})]


def measure(given: argparse.Namespace) -> bool:
    size = given.documents // given.collections
    names = [f"coll{number}" for number in range(given.collections)]
    kept = True
    with EmbeddedServer() as server, ReplicaSet(server.address) as members:
        expected = fill(server.uri, names, size)
        for writing, side, seed in itertools.product(given.ways, given.sides, range(given.seeds)):
            dice = random.Random(seed)  # noqa: S311 - as above
            most_more = math.inf if given.quick else MORE
            run = Run(members, dice, given.faults // given.collections, most_more)
            began = time.monotonic()
            with writers(server.uri, names, size) if writing else nullcontext():
                if side == "sync":
                    scan(run, names, expected)
                else:
                    asyncio.run(scan_async(run, names, expected))
            kept &= run.kept
            sent = ", ".join(f"{count} {name}" for name, count in run.commands.sent.items())
            print(
                f"{side}, {'with writers' if writing else 'alone'}, seed {seed}: "
                f"{run.missing} missing, {run.doubled} doubled, in order: {run.ordered}; "
                f"{run.struck} faults, {run.batches} batches, {sent}: {run.more:+.1%}; "
                f"{time.monotonic() - began:.0f} s: {'kept' if run.kept else 'MISSED'}",
                flush=True,
            )
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--collections", type=int, default=1)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--side", choices=("sync", "async"))
    parser.add_argument("--only", choices=("alone", "writers"))
    given = parser.parse_args()
    if given.quick:
        given.documents, given.faults, given.seeds = 4_000, 20, 1
    given.ways = (given.only == "writers",) if given.only else (False, True)
    given.sides = (given.side,) if given.side else ("sync", "async")
    logging.disable(logging.CRITICAL)
    instrument(Config(traces=False, metrics=False))
    try:
        sys.exit(0 if measure(given) else 1)
    finally:
        uninstrument()


if __name__ == "__main__":
    main()
