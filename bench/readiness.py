"""What ``readiness(client)`` answers while the primary hangs, during an election, and if waiting
cannot help; and how long it takes.

    python bench/readiness.py                     on the emulator
    python bench/readiness.py mongod=PATH         the first two on a replica set of three mongods

A thread asks every 5 ms while others run operations. Beside it, another one sends a ping with a
deadline of one second every second, as many health checks do with plain pymongo.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pymongo
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import PyMongoError

from pymongo_resilience import instrument, readiness
from pymongo_resilience.testbed import Election, RealReplicaSet, ReplicaSet, Restart, SilentPrimary

sys.path.append(str(Path(__file__).parent))
from fail_fast import Trouble, troubles

HANGS = 20.0
ELECTION = 10.0
"""Seconds."""
SETTLED = 12.0
"""Seconds until every client has found the primary again."""
READERS = 4
INTERVAL = 0.005
"""Seconds between two answers."""
HOPELESS = (
    "unknown authority", "another host's", "no TLS, answers", "another set", "wrong password",
)  # fmt: skip


class Answers:
    """What ``readiness`` has answered, and how long each answer took."""

    def __init__(self) -> None:
        self.took: list[float] = []
        self.changes = 0
        self.reasons: list[str] = []
        self._last: bool | None = None

    def ask(self, client: Any) -> None:
        began = time.perf_counter()
        found = readiness(client)
        self.took.append(time.perf_counter() - began)
        self.changes += self._last not in (None, found.ready_to_write)
        self._last = found.ready_to_write
        reason = found.why_not.partition("(")[0].strip()
        if reason and reason not in self.reasons:
            self.reasons.append(reason)

    def show(self, name: str, pings: list[bool]) -> None:
        took = sorted(self.took)
        print(
            f"{name}: {len(took)} answers, median {statistics.median(took) * 1e6:.0f} us, "
            f"99.9 % within {took[int(len(took) * 0.999)] * 1e3:.2f} ms, at most "
            f"{took[-1] * 1e3:.2f} ms; {self.changes} changes of ready_to_write; "
            f"{pings.count(False)} of {len(pings)} pings failed",
            flush=True,
        )
        for each in self.reasons:
            print(f"    {each}")


@contextmanager
def background(*functions: Callable[[], object]) -> Iterator[None]:
    """Call the functions again and again in threads of their own."""
    is_over = threading.Event()

    def run(function: Callable[[], object]) -> None:
        while not is_over.is_set():
            function()

    threads = [threading.Thread(target=run, args=(each,)) for each in functions]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def read(client: MongoClient[Any]) -> None:
    with suppress(PyMongoError), pymongo.timeout(1):
        client.shop.bench.find_one()
    time.sleep(0.01)


def ping(client: MongoClient[Any], pings: list[bool]) -> None:
    """A health check as plain pymongo's users write it: without a declaration."""
    began = time.monotonic()
    try:
        with pymongo.timeout(1):
            client.admin.command("ping")
    except PyMongoError:
        pings.append(False)
    else:
        pings.append(True)
    time.sleep(max(0.0, began + 1 - time.monotonic()))


def watch(deployment: Any, name: str, fault: Callable[[], Any], seconds: float, on: Any) -> None:
    """Ask with both APIs while the fault lasts and until all is well again."""
    for api in ("sync", "async"):
        answers, pings = Answers(), list[bool]()
        with MongoClient[Any](deployment.uri) as other:
            other.shop.bench.find_one()
            work = [partial(read, other)] * READERS
            with background(*work, partial(ping, other, pings)):
                if api == "sync":
                    ask(deployment, answers, fault(), seconds, on)
                else:
                    asyncio.run(ask_async(deployment, answers, fault(), seconds, on))
        answers.show(f"{name}, {api}", pings)


def ask(deployment: Any, answers: Answers, fault: Any, seconds: float, on: Any) -> None:
    with MongoClient[Any](deployment.uri) as client:
        client.shop.bench.find_one()
        deployment.inject(fault, on)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            answers.ask(client)
            time.sleep(INTERVAL)


async def ask_async(deployment: Any, answers: Answers, fault: Any, seconds: float, on: Any) -> None:
    async with AsyncMongoClient[Any](deployment.uri) as client:
        await client.shop.bench.find_one()
        deployment.inject(fault, on)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            answers.ask(client)
            await asyncio.sleep(INTERVAL)


def time_to_reason(trouble: Trouble) -> tuple[float, str, bool]:
    """Return the seconds until the reason is known, the reason, and whether the client was ready at
    any time before."""
    client: MongoClient[Any] = MongoClient(trouble.uri, **trouble.options)
    began = time.monotonic()
    thread = threading.Thread(target=lambda: read(client))
    thread.start()
    was_ready = False
    try:
        while True:
            found = readiness(client)
            was_ready |= found.ready_to_write
            if "(" in found.why_not or time.monotonic() - began > ELECTION:
                return time.monotonic() - began, found.why_not, was_ready
            time.sleep(INTERVAL)
    finally:
        thread.join()
        client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(";")[0])
    parser.add_argument("server", nargs="?")
    arguments = parser.parse_args()
    logger = logging.getLogger("pymongo_resilience")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    instrument()
    with tempfile.TemporaryDirectory() as directory, troubles(directory) as met:
        for trouble in met:
            if trouble.name in HOPELESS:
                seconds, why_not, was_ready = time_to_reason(trouble)
                state = "READY" if was_ready else "never ready"
                print(f"{trouble.name}: {state}; the reason after {seconds:.2f} s: {why_not}")
    is_real = arguments.server is not None
    with RealReplicaSet(arguments.server, members=3) if is_real else ReplicaSet() as deployment:
        watch(deployment, "the primary hangs", lambda: SilentPrimary(HANGS), HANGS + SETTLED, "all")
        # Without a majority, the mongods have no primary until two of them are back.
        fault = (lambda: Restart(ELECTION)) if is_real else (lambda: Election(gap=ELECTION))
        on = "secondary" if is_real else "all"
        watch(deployment, "an election of 10 s", fault, ELECTION + SETTLED, on)


if __name__ == "__main__":
    main()
