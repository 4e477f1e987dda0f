"""Whether resumable finds give each document once, in order, whatever strikes, and what that costs.

    python bench/resumable.py [--quick] [--documents N] [--faults N] [--seeds N ...]
                              [--side sync|async] [--only alone|writers] [--survival N]

200,000 documents, whose ``_id`` has ten types of BSON and each single value beside, are read in
batches of 100 from a replica set, while 100 faults strike: connections cut before and after a
getMore, elections in which the old primary cuts it, and cursors that the server has lost. With
seeds 1 to 3, sync and async, once alone and once with writers that insert and delete other
documents meanwhile: twelve runs, a line for each. The bar: each document that exists throughout
once, in order; no more than 2 % more commands than the batches of an undisturbed scan and three for
each fault that struck: the getMore that failed, the question which collection it is, and the
killCursors.

``--quick``: 4,000 documents, 20 faults, one seed; too few to judge the commands by.

``--survival N``: only counts how many of N scans with two faults each come to their end with each
document once, as finds and as aggregates: with plain pymongo, and with ``resumable="if_possible"``.
"""

from __future__ import annotations

import argparse
import asyncio
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pymongo
from pymongo.errors import BulkWriteError, PyMongoError
from pymongo.monitoring import CommandListener
from pymongo_resilience_instrumentation.tools.testbed import processes

from pymongo_resilience import Config, instrument, override, uninstrument
from pymongo_resilience.testbed import (
    CutAfter,
    CutBefore,
    Election,
    EmbeddedServer,
    Fail,
    ReplicaSet,
)
from pymongo_resilience.testing import set_active

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "tests"))
from support.resumable_finds import ids, keys  # noqa: E402 - the tests' ten types

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATCH = 100
MORE = 0.02
"""The bar: commands beyond the batches and the faults."""
SENT = ("find", "getMore", "killCursors", "listCollections", "aggregate")
PLENTY_MS = 120_000
CURSOR_NOT_FOUND = 43
VOLATILE = 0.1
"""Documents that writers insert and delete anywhere between the others, as a part of those."""
AT_ONCE = 100
FAULTS: dict[str, Callable[[random.Random], list[Any]]] = {
    "cuts before": lambda _: [CutBefore("getMore")],
    "cuts after": lambda _: [CutAfter("getMore")],
    "elections": lambda rng: [Election(gap=rng.uniform(0.05, 0.3)), CutBefore("getMore")],
    "lost cursors": lambda _: [Fail("getMore", code=CURSOR_NOT_FOUND, name="CursorNotFound")],
}


class Commands(CommandListener):
    """How many were sent, failed, and were finds that succeeded."""

    def __init__(self) -> None:
        self.sent = self.failures = self.finds = 0

    def started(self, event: Any) -> None:
        self.sent += event.command_name in SENT

    def succeeded(self, event: Any) -> None:
        self.finds += event.command_name == "find"

    def failed(self, event: Any) -> None:
        self.failures += event.command_name in ("find", "getMore")


@dataclass
class Run:
    """A scan, and what came of it."""

    members: ReplicaSet
    rng: random.Random
    expected: list[bytes]
    """The keys of the documents that exist throughout, in order."""
    faults: int
    most_more: float
    commands: Commands = field(default_factory=Commands)
    found: list[bytes] = field(default_factory=list)
    struck: Counter[str] = field(default_factory=Counter)
    """Faults that failed a command, by kind."""

    def __post_init__(self) -> None:
        # One that would meet the last batch finds no getMore.
        batches = range(1, len(self.expected) // BATCH - 1)
        self._places = frozenset(self.rng.sample(batches, self.faults))

    @contextmanager
    def batch(self, number: int) -> Iterator[None]:
        """Before some batches a fault begins; one at a time, so that each strikes."""
        if number not in self._places:
            yield
            return
        failures, kind = self.commands.failures, self.rng.choice(list(FAULTS))
        over = [self.members.inject(each) for each in FAULTS[kind](self.rng)]
        yield
        for each in over:
            each.result(PLENTY_MS / 1000)
        self.struck[kind] += self.commands.failures > failures

    def verdict(self) -> tuple[bool, str]:
        stable, times = set(self.expected), Counter(self.found)
        missing = len(stable - times.keys())
        doubled = sum(count > 1 for count in times.values())
        ordered = [each for each in self.found if each in stable] == self.expected
        batches, faults = -(-len(self.found) // BATCH), self.struck.total()
        more = self.commands.sent / (batches + 3 * faults) - 1
        kept = not (missing or doubled) and ordered and more <= self.most_more
        kinds = ", ".join(f"{self.struck[kind]} {kind}" for kind in FAULTS)
        return kept and faults == self.faults, (
            f"{len(self.found):,} documents; {faults} faults ({kinds}), "
            f"{self.commands.finds - 1} resumptions; {self.commands.sent:,} commands for "
            f"{batches:,} batches and three a fault: {more:+.1%}; {missing} missing, "
            f"{doubled} doubled, {'in' if ordered else 'OUT OF'} order"
        )


def resumable() -> override:
    return override(resumable=True, timeout_ms=PLENTY_MS, timeout_mode="iteration")


def scan(run: Run) -> None:
    with pymongo.MongoClient(run.members.uri, event_listeners=[run.commands]) as client:
        with resumable():
            cursor = client.bench.coll.find({}, batch_size=BATCH)
        for number in itertools.takewhile(lambda _: cursor.alive, itertools.count()):
            with run.batch(number):
                run.found += keys(cursor.to_list(BATCH))


async def scan_async(run: Run) -> None:
    async with pymongo.AsyncMongoClient(run.members.uri, event_listeners=[run.commands]) as client:
        with resumable():
            cursor = client.bench.coll.find({}, batch_size=BATCH)
        for number in itertools.takewhile(lambda _: cursor.alive, itertools.count()):
            with run.batch(number):
                run.found += keys(await cursor.to_list(BATCH))


@contextmanager
def writers(uri: str, volatile: list[Any]) -> Iterator[Counter[str]]:
    """Two threads that insert and delete documents which a scan need not see."""
    over, done = threading.Event(), Counter[str]()

    def write(number: int) -> None:
        rng = random.Random(number)  # noqa: S311 - as below
        mine = volatile[number::2]
        with pymongo.MongoClient(uri) as client:
            while not over.wait(0.1):
                new = [{"_id": each} for each in rng.sample(mine, AT_ONCE)]
                with suppress(BulkWriteError):  # some are there already
                    client.bench.coll.insert_many(new, ordered=False)
                old = {"_id": {"$in": rng.sample(mine, AT_ONCE)}}
                done["deleted"] += client.bench.coll.delete_many(old).deleted_count

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        over.set()
        for thread in threads:
            thread.join()
        with pymongo.MongoClient(uri) as client:
            for at in range(0, len(volatile), AT_ONCE):
                some = volatile[at : at + AT_ONCE]
                client.bench.coll.delete_many({"_id": {"$in": some}})


def fill(uri: str, every: list[Any]) -> list[bytes]:
    """The keys of all documents, in the server's own order."""
    with pymongo.MongoClient(uri) as client:
        for at in range(0, len(every), 5000):
            documents = [{"_id": each} for each in every[at : at + 5000]]
            client.bench.coll.insert_many(documents, ordered=False)
        return keys(client.bench.coll.find({}, sort={"_id": 1}))


def measure(given: argparse.Namespace) -> bool:
    others, kept = int(given.documents * VOLATILE), True
    every = ids(given.documents + others)
    random.Random(0).shuffle(every)  # noqa: S311 - an order that can be repeated
    processes.PROGRAM = HERE / "index_server.py"
    with EmbeddedServer() as server, ReplicaSet(server.address) as members:
        expected, volatile = fill(server.uri, every[others:]), every[:others]
        for writing, side, seed in itertools.product(given.ways, given.sides, given.seeds):
            rng = random.Random(seed)  # noqa: S311 - as above
            run = Run(members, rng, expected, given.faults, math.inf if given.quick else MORE)
            began = time.monotonic()
            with writers(server.uri, volatile) if writing else nullcontext() as written:
                if side == "sync":
                    scan(run)
                else:
                    asyncio.run(scan_async(run))
            kept_here, what = run.verdict()
            kept &= kept_here
            way = f"writers ({written['deleted']:,} deleted)" if written is not None else "alone"
            print(
                f"{side}, {way}, seed {seed}: {what}; {time.monotonic() - began:.0f} s: "
                f"{'kept' if kept_here else 'MISSED'}",
                flush=True,
            )
    return kept


SCAN, FAULTS_OF_A_SCAN = 2_000, 2


def survives(members: ReplicaSet, rng: random.Random, expected: list[bytes], how: str) -> bool:
    """Whether one scan comes to its end with each document once."""
    places = rng.sample(range(1, SCAN // BATCH - 1), FAULTS_OF_A_SCAN)
    found: list[bytes] = []
    with pymongo.MongoClient(members.uri) as client:
        coll = client.bench.coll
        with override(resumable="if_possible", timeout_ms=PLENTY_MS, timeout_mode="iteration"):
            if how == "aggregate":
                cursor: Any = coll.aggregate([{"$match": {}}], batchSize=BATCH)
            else:
                cursor = coll.find({}, batch_size=BATCH)
        for number in itertools.takewhile(lambda _: cursor.alive, itertools.count()):
            kind = rng.choice(list(FAULTS)) if number in places else None
            over = [members.inject(each) for each in (FAULTS[kind](rng) if kind else ())]
            try:
                found += keys(cursor.to_list(BATCH))
            except PyMongoError:
                return False
            finally:
                for each in over:
                    each.result(PLENTY_MS / 1000)
                members.clear()
    return sorted(found) == sorted(expected)


def survival(scans: int) -> bool:
    """Print how many scans come to their end. Returns whether all with the library do."""
    kept = True
    with EmbeddedServer() as server, ReplicaSet(server.address) as members:
        expected = fill(server.uri, ids(SCAN))
        for how, plain in itertools.product(("find", "aggregate"), (True, False)):
            rng = random.Random(1)  # noqa: S311 - the same faults on both sides
            with set_active(False) if plain else nullcontext():
                ended = sum(survives(members, rng, expected, how) for _ in range(scans))
            way = "plain pymongo" if plain else 'resumable="if_possible"'
            print(f"{how}, {way}: {ended} of {scans} scans came to their end", flush=True)
            kept &= plain or ended == scans
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2, 3))
    parser.add_argument("--side", choices=("sync", "async"))
    parser.add_argument("--only", choices=("alone", "writers"))
    parser.add_argument("--survival", type=int, metavar="N")
    given = parser.parse_args()
    if given.quick:
        given.documents, given.faults, given.seeds = 4_000, 20, given.seeds[:1]
    given.ways = (given.only == "writers",) if given.only else (False, True)
    given.sides = (given.side,) if given.side else ("sync", "async")
    logging.disable(logging.CRITICAL)
    instrument(Config(traces=False, metrics=False))
    try:
        sys.exit(0 if (survival(given.survival) if given.survival else measure(given)) else 1)
    finally:
        uninstrument()


if __name__ == "__main__":
    main()
