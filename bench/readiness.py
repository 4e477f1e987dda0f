"""What ``readiness(client)`` answers while the primary hangs, during an election, and if waiting
cannot help; and how long it takes.

    python bench/readiness.py                     on the emulator
    python bench/readiness.py mongod=PATH         a primary that hangs, of three mongods

A thread or task asks every 5 ms while others run operations; the deployment has a process of its
own. Another thread sends a ping with a deadline of one second every second, as many health checks
do.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pymongo
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import PyMongoError

from pymongo_resilience import instrument, readiness
from pymongo_resilience.testbed import Election, RealReplicaSet, ReplicaSet, SilentPrimary

sys.path.append(str(Path(__file__).parent))
from fail_fast import Trouble, troubles

HANGS, ELECTION, STOP = "the primary hangs", "an election of 10 s", "stop"
HANGS_S = 20.0
ELECTION_S = 10.0
SETTLED_S = 12.0
"""Seconds until every client has found the primary again."""
READERS = 4
INTERVAL = 0.005
"""Seconds between two answers."""
NO_ANSWER_YET = "has not responded so far"
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


def deploy(server: str | None, to_parent: Connection) -> None:
    """Run a deployment, and inject the faults that the other process names."""
    with RealReplicaSet(server, members=3) if server else ReplicaSet() as deployment:
        to_parent.send(deployment.uri)
        while (name := to_parent.recv()) != STOP:
            hangs = name == HANGS
            deployment.inject(SilentPrimary(HANGS_S) if hangs else Election(gap=ELECTION_S))
            to_parent.send(name)


def watch(to_deployment: Connection, uri: str, fault: str, seconds: float) -> None:
    """Ask with both APIs while the fault lasts and until all is well again."""

    def inject() -> None:
        to_deployment.send(fault)
        to_deployment.recv()

    for api in ("sync", "async"):
        answers, pings = Answers(), list[bool]()
        with MongoClient[Any](uri) as other:
            other.shop.bench.find_one()
            work = [partial(read, other)] * READERS
            with background(*work, partial(ping, other, pings)):
                if api == "sync":
                    ask(uri, inject, answers, seconds)
                else:
                    asyncio.run(ask_async(uri, inject, answers, seconds))
        answers.show(f"{fault}, {api}", pings)


def ask(uri: str, inject: Callable[[], None], answers: Answers, seconds: float) -> None:
    with MongoClient[Any](uri) as client:
        client.shop.bench.find_one()
        inject()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            answers.ask(client)
            time.sleep(INTERVAL)


async def ask_async(uri: str, inject: Callable[[], None], answers: Answers, seconds: float) -> None:
    async with AsyncMongoClient[Any](uri) as client:
        await client.shop.bench.find_one()
        inject()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            answers.ask(client)
            await asyncio.sleep(INTERVAL)


def time_to_reason(trouble: Trouble) -> tuple[float, str, bool]:
    """Return the seconds until the reason is known, the reason, and whether the client was ready at
    any time before."""
    client: MongoClient[Any] = MongoClient(trouble.uri, **trouble.options)
    began = time.monotonic()
    thread = threading.Thread(target=partial(read, client))
    thread.start()
    was_ready = False
    try:
        while True:
            found = readiness(client)
            was_ready |= found.ready_to_write
            is_known = found.why_not and NO_ANSWER_YET not in found.why_not
            if is_known or time.monotonic() - began > ELECTION_S:
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
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=deploy, args=(arguments.server, theirs))
    process.start()
    uri = ours.recv()
    instrument(timeout_ms=60_000)
    watch(ours, uri, HANGS, HANGS_S + SETTLED_S)
    if not arguments.server:  # mongods elect when they want to
        watch(ours, uri, ELECTION, ELECTION_S + SETTLED_S)
    ours.send(STOP)
    process.join()
    with tempfile.TemporaryDirectory() as directory, troubles(directory) as met:
        for trouble in met:
            if trouble.name in HOPELESS:
                seconds, why_not, was_ready = time_to_reason(trouble)
                state = "ready until then" if was_ready else "never ready"
                print(f"{trouble.name}: {state}; the reason after {seconds:.2f} s: {why_not}")


if __name__ == "__main__":
    main()
