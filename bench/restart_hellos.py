"""How many hellos a server that restarts gets from many clients that wait for it.

A member of the test bed counts them. The clients are in processes of their own, plain pymongo's or
the library's, with monitors as an application has them, and one operation each that begins within
half a second of the outage; then one more every second.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import pymongo
from pymongo.errors import PyMongoError
from pymongo_resilience_instrumentation.tools.testbed.fault import HELLO_COMMANDS, Interception

from pymongo_resilience import Config, instrument
from pymongo_resilience.testbed import EmbeddedServer, ReplicaSet, Restart

DOWN_S, WATCHED_S, SPREAD_S, PROCESSES = 1.0, 5.0, 0.5, 4
DEADLINE_MS = 20_000


class Hellos(NamedTuple):
    """Of all clients, from the beginning of the outage on."""

    total: int
    busiest_second: int
    errors: int
    """Operations that failed."""


class _Count(Interception):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def on_request(self, request: Any, connection: Any) -> None:
        del connection
        if request.command_name in HELLO_COMMANDS:
            self.seen.append(time.monotonic())


def measured(clients: int, *, ours: bool, asynchronous: bool, server: EmbeddedServer) -> Hellos:
    with ReplicaSet(server.address, members=1) as replica_set:
        count = _Count()
        replica_set.inject(count)
        with _processes(replica_set.uri, clients, ours, asynchronous) as processes:
            for each in processes:
                _line(each)
            began = time.monotonic()
            replica_set.inject(Restart(DOWN_S))
            for each in processes:
                _go_on(each)
            errors = sum(int(_line(each)) for each in processes)
            seen = [at - began for at in count.seen if began <= at <= began + WATCHED_S]
            for each in processes:
                _go_on(each)
    return Hellos(len(seen), _busiest(seen), errors)


def _busiest(seen: list[float]) -> int:
    """Hellos of the second with the most."""
    ordered, first, most = sorted(seen), 0, 0
    for last, at in enumerate(ordered):
        while ordered[first] < at - 1:
            first += 1
        most = max(most, last - first + 1)
    return most


@contextmanager
def _processes(
    uri: str, clients: int, ours: bool, asynchronous: bool
) -> Iterator[list[subprocess.Popen[str]]]:
    started = []
    try:
        for number in range(PROCESSES):
            some = clients // PROCESSES + (number < clients % PROCESSES)
            command = [sys.executable, __file__, uri, str(some), str(number)]
            command += ["--ours"] * ours + ["--async"] * asynchronous
            started.append(
                subprocess.Popen(  # noqa: S603 - our own
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
        yield started
    finally:
        for each in started:
            each.kill()
            each.wait()


def _line(process: subprocess.Popen[str]) -> str:
    return process.stdout.readline() if process.stdout is not None else ""


def _go_on(process: subprocess.Popen[str]) -> None:
    if process.stdin is not None:
        process.stdin.write("go\n")
        process.stdin.flush()


def _report(what: object) -> None:
    print(what, flush=True)
    sys.stdin.readline()


def _delays(rng: random.Random) -> Iterator[float]:
    yield rng.uniform(0, SPREAD_S)
    while True:
        yield 1.0


def _threads(uri: str, count: int, rng: random.Random) -> None:
    clients = [pymongo.MongoClient[Any](uri, timeoutMS=DEADLINE_MS) for _ in range(count)]
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(lambda each: each.admin.command("ping"), clients))
        time.sleep(1)
        _report("ready")
        end = time.monotonic() + WATCHED_S

        def work(number: int) -> int:
            failed = 0
            for delay in _delays(random.Random(rng.random() + number)):  # noqa: S311 - times
                time.sleep(delay)
                if time.monotonic() > end:
                    return failed
                try:
                    clients[number].bench.coll.find_one()
                except PyMongoError:
                    failed += 1
            return failed

        _report(sum(pool.map(work, range(count))))


async def _tasks(uri: str, count: int, rng: random.Random) -> None:
    clients = [pymongo.AsyncMongoClient[Any](uri, timeoutMS=DEADLINE_MS) for _ in range(count)]
    await asyncio.gather(*(each.admin.command("ping") for each in clients))
    await asyncio.sleep(1)
    await asyncio.to_thread(_report, "ready")
    end = time.monotonic() + WATCHED_S

    async def work(client: Any) -> int:
        failed = 0
        for delay in _delays(rng):
            await asyncio.sleep(delay)
            if time.monotonic() > end:
                return failed
            try:
                await client.bench.coll.find_one()
            except PyMongoError:
                failed += 1
        return failed

    await asyncio.to_thread(_report, sum(await asyncio.gather(*map(work, clients))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("uri")
    parser.add_argument("clients", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--ours", action="store_true")
    parser.add_argument("--async", dest="asynchronous", action="store_true")
    given = parser.parse_args()
    if given.ours:
        instrument(Config(timeout_ms=DEADLINE_MS, traces=False, metrics=False))
    rng = random.Random(given.seed)  # noqa: S311 - times, no secrets
    if given.asynchronous:
        asyncio.run(_tasks(given.uri, given.clients, rng))
    else:
        _threads(given.uri, given.clients, rng)


if __name__ == "__main__":
    main()
