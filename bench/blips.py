"""Errors during outages of 10 ms to 30 s, with plain pymongo, the defaults, and a timeout.

    python bench/blips.py [--kind refused ...] [--seconds 0.05 ...] [--api sync|async] [--json]

A replica set of one member fails in one way for so long, and twelve operations, inserts and finds
in turn, begin during that time, at the latest after a second. Each cell is the number of those that
failed, of all outages of that length, without a timeout and, last, with a timeout of 20 s. Every
kind has a replica set and a process of its own, so they run side by side. The outages:

    refused      connections are reset, new ones refused
    reset        each connection is closed at its first message, monitors' too
    cut          each command's connection is closed; hello is answered
    silent       nothing is answered; then connections are closed
    not primary  commands are refused as by a secondary; hello says primary
    election     the member steps down, and is elected again
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymongo
from pymongo.errors import PyMongoError
from pymongo_resilience_instrumentation.tools.testbed.fault import Cut, Verdict
from rich.console import Console
from rich.table import Table

from pymongo_resilience import Config, instrument
from pymongo_resilience.testbed import (
    BlackHole,
    CutBefore,
    Election,
    Fault,
    Interception,
    NotPrimary,
    Refuse,
    ReplicaSet,
)

SIDES = ("plain", "bare", "timeout")
APIS = ("sync", "async")
OPERATIONS = 12
LENGTHS = (0.01, 0.03, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 2.0, 5.0, 12.0, 29.0)
"""Seconds. After 30 s a server selection fails, by default."""
SHORT, ROUNDS = 1.0, 5
"""Outages of up to so many seconds are repeated so many times."""
TIMEOUT_MS = 20_000


class ResetAll(Interception):
    """Closes every connection at its next message, hellos too."""

    def on_request(self, request: Any, connection: Any) -> Verdict | None:  # noqa: ARG002
        self.injected += 1
        return Cut()


KINDS: dict[str, Callable[[float], Fault]] = {
    "refused": Refuse,
    "reset": ResetAll,
    "cut": lambda _: CutBefore(times=10**6),
    "silent": BlackHole,
    "not primary": lambda _: NotPrimary(times=10**6),
    "election": Election,
}


def begin_times(seconds: float) -> list[float]:
    """When each operation begins, in seconds from the beginning of the outage."""
    spread = min(seconds, 1.0)
    return [0.9 * spread * number / OPERATIONS for number in range(OPERATIONS)]


def outage(replica_set: ReplicaSet, kind: str, seconds: float) -> threading.Timer:
    replica_set.inject(KINDS[kind](seconds))
    end = threading.Timer(seconds, replica_set.clear)
    end.start()
    return end


def run_sync(replica_set: ReplicaSet, kind: str, seconds: float, rounds: int) -> tuple[int, float]:
    failed, slowest = 0, 0.0
    with (
        pymongo.MongoClient[Any](replica_set.uri) as client,
        ThreadPoolExecutor(OPERATIONS) as pool,
    ):
        coll = client.bench[f"blips{time.monotonic_ns()}"]

        def call(number: int, begin: float) -> tuple[bool, float]:
            time.sleep(max(0.0, begin - time.perf_counter()))
            began = time.perf_counter()
            try:
                _ = coll.find_one() if number % 2 else coll.insert_one({})
            except PyMongoError:
                return False, 0.0
            return True, time.perf_counter() - began

        for number in range(rounds):
            list(pool.map(lambda _: client.admin.command("ping"), range(OPERATIONS)))
            time.sleep(0.6 + 0.07 * number)  # the driver looks twice a second: not in step with it
            end, now = outage(replica_set, kind, seconds), time.perf_counter()
            begins = [now + each for each in begin_times(seconds)]
            found = list(pool.map(call, range(OPERATIONS), begins))
            failed += sum(not each for each, _ in found)
            slowest = max(slowest, *(took for _, took in found))
            end.join()
            _settled(lambda: client.admin.command("ping"))
    return failed, slowest


def _settled(ping: Callable[[], Any]) -> None:
    for _ in range(100):
        try:
            ping()
        except PyMongoError:
            time.sleep(0.05)
        else:
            return


async def run_async(
    replica_set: ReplicaSet, kind: str, seconds: float, rounds: int
) -> tuple[int, float]:
    failed, slowest = 0, 0.0
    async with pymongo.AsyncMongoClient[Any](replica_set.uri) as client:
        coll = client.bench[f"blips{time.monotonic_ns()}"]

        async def call(number: int, begin: float) -> tuple[bool, float]:
            await asyncio.sleep(max(0.0, begin - time.perf_counter()))
            began = time.perf_counter()
            try:
                await (coll.find_one() if number % 2 else coll.insert_one({}))
            except PyMongoError:
                return False, 0.0
            return True, time.perf_counter() - began

        for number in range(rounds):
            await asyncio.gather(*(client.admin.command("ping") for _ in range(OPERATIONS)))
            await asyncio.sleep(0.6 + 0.07 * number)
            end, now = outage(replica_set, kind, seconds), time.perf_counter()
            calls = [call(i, now + each) for i, each in enumerate(begin_times(seconds))]
            found = await asyncio.gather(*calls)
            failed += sum(not each for each, _ in found)
            slowest = max(slowest, *(took for _, took in found))
            await asyncio.to_thread(end.join)
            for _ in range(100):
                try:
                    await client.admin.command("ping")
                    break
                except PyMongoError:
                    await asyncio.sleep(0.05)
    return failed, slowest


def inside(side: str, api: str, kind: str, lengths: Sequence[float]) -> dict[str, list[float]]:
    """What one process measures."""
    logging.disable(logging.CRITICAL)
    if side != "plain":
        timeout = TIMEOUT_MS if side == "timeout" else None
        instrument(Config(timeout_ms=timeout, traces=False, metrics=False))
    found = {}
    with ReplicaSet(members=1) as replica_set:
        for seconds in lengths:
            rounds = ROUNDS if seconds <= SHORT else 1
            if api == "sync":
                failed, slowest = run_sync(replica_set, kind, seconds, rounds)
            else:
                work: Coroutine[Any, Any, tuple[int, float]]
                work = run_async(replica_set, kind, seconds, rounds)
                failed, slowest = asyncio.run(work)
            found[str(seconds)] = [failed, OPERATIONS * rounds, slowest]
    return found


def measured(
    kinds: Sequence[str], lengths: Sequence[float], apis: Sequence[str], *, at_once: int = 12
) -> list[dict[str, Any]]:
    """A row for each kind, length and API."""

    def process(api: str, kind: str, side: str) -> dict[str, list[float]]:
        command = [sys.executable, __file__, "--inside", side, api, kind, *map(str, lengths)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - our own
        return dict(json.loads(done.stdout))

    cases = [(api, kind, side) for kind in kinds for api in apis for side in SIDES]
    with ThreadPoolExecutor(at_once) as pool:
        found = dict(zip(cases, pool.map(lambda case: process(*case), cases), strict=True))
    return [
        {"kind": kind, "api": api, "seconds": seconds,
         **{side: found[api, kind, side][str(seconds)] for side in SIDES}}
        for kind in kinds for api in apis for seconds in lengths
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=list(KINDS), action="append")
    parser.add_argument("--api", choices=APIS, action="append")
    parser.add_argument("--seconds", type=float, action="append")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--inside", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        side, api, kind, *lengths = given.inside
        sys.stdout.write(json.dumps(inside(side, api, kind, [float(each) for each in lengths])))
        return
    rows = measured(given.kind or list(KINDS), given.seconds or LENGTHS, given.api or APIS)
    if given.json:
        sys.stdout.write(json.dumps(rows))
        return
    table = Table("outage", "", "seconds", *SIDES, "")
    for row in rows:
        cells = [f"{row[side][0]}/{row[side][1]} ({row[side][2]:.2f} s)" for side in SIDES]
        worse = "WORSE" if row["bare"][0] > row["plain"][0] else ""
        table.add_row(row["kind"], row["api"], f"{row['seconds']:g}", *cells, worse)
    Console().print(table)


if __name__ == "__main__":
    main()
