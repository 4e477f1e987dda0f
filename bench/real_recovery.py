"""How fast writes go on after a real election, beside plain pymongo in the same run.

    python bench/real_recovery.py mongod=PATH [--only NAME] [--side sync|async] [--times 3]

Three mongods, each behind a proxy. Four workers insert one document after the other, and four read
one, while the primary steps down, is killed or is stopped (SIGSTOP, twelve seconds); plain pymongo
has its own ``timeoutMS`` of 20 s, the library its default settings and the same deadline. The times
begin when a member that was elected calls itself the primary, and end when every reader has had an
answer, and when every writer has had an insert acknowledged by a majority, which includes the time
that the other members take to follow: medians of all runs, in milliseconds. What was acknowledged
is counted in the end. Needs the extra ``demo``.
"""

from __future__ import annotations

import argparse
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from statistics import median
from typing import Any, NamedTuple

from pymongo import MongoClient
from pymongo.errors import PyMongoError
from recovery import DEADLINE_S, KINDS, Api
from rich.console import Console
from rich.table import Table

from pymongo_resilience import Config, instrument, uninstrument
from pymongo_resilience.testbed import Election, Fault, RealReplicaSet, Restart, SilentPrimary

WRITERS, READERS, STOPPED_S, DOWN_S = 4, 4, 12.0, 3.0
AFTER_S = 1.5
"""How long the workers go on after every one of them has succeeded once."""
LONGEST_S = 40.0
POLL_S = 0.005
FAULTS: dict[str, tuple[str, Callable[[], Fault]]] = {
    "step-down": ("the primary steps down", Election),
    "kill": ("the primary is killed (SIGKILL)", lambda: Restart(DOWN_S)),
    "stop": (f"the primary is stopped for {STOPPED_S:.0f} s", lambda: SilentPrimary(STOPPED_S)),
}
"""All strike the primary."""


class Run(NamedTuple):
    read_ms: float
    """From the election to the last reader's first answer."""
    written_ms: float
    """The same, to the last writer's first acknowledged insert."""
    errors: int
    acknowledged: int
    lost: int
    """Acknowledged, and not stored."""
    doubled: int


class Watch:
    """Asks each member, beside all clients, for the election it was made the primary by."""

    def __init__(self, addresses: Sequence[str], before: object) -> None:
        self.elected = float("inf")
        self._before = before
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(each,)) for each in addresses]

    def __enter__(self) -> Watch:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for each in self._threads:
            each.join()

    def _ask(self, address: str) -> None:
        client: MongoClient[Any] = MongoClient(address, directConnection=True, socketTimeoutMS=500)
        with client:
            while not self._ended.is_set() and self.elected == float("inf"):
                try:
                    found = client.admin.command("isMaster")
                    # One that is elected takes up what it lacks before it is the primary.
                    if found["ismaster"] and found.get("electionId") != self._before:
                        self.elected = min(self.elected, time.perf_counter())
                except PyMongoError:
                    pass
                time.sleep(POLL_S)


class Workers:
    """Insert or read until they are told to stop; each writer has numbers of its own."""

    def __init__(self, coll: Any) -> None:
        self._coll = coll
        self.succeeded: list[list[float]] = [[] for _ in range(WRITERS + READERS)]
        """When, by worker: the writers first."""
        self.numbers: list[int] = []
        self.errors = 0
        self.stop = threading.Event()

    def _next(self, worker: int) -> int:
        return worker + WRITERS * (len(self.succeeded[worker]) + self.errors * 1_000_000)

    def sync(self, worker: int) -> None:
        while not self.stop.is_set():
            number = self._next(worker)
            try:
                if worker < WRITERS:
                    self._coll.insert_one({"_id": number})
                else:
                    self._coll.find_one({"_id": 0})
            except PyMongoError:
                self.errors += 1
                continue
            self._note(worker, number)

    async def asynchronous(self, worker: int) -> None:
        while not self.stop.is_set():
            number = self._next(worker)
            try:
                if worker < WRITERS:
                    await self._coll.insert_one({"_id": number})
                else:
                    await self._coll.find_one({"_id": 0})
            except PyMongoError:
                self.errors += 1
                continue
            self._note(worker, number)

    def _note(self, worker: int, number: int) -> None:
        if worker < WRITERS:
            self.numbers.append(number)
        self.succeeded[worker].append(time.perf_counter())

    def went_on(self, since: float) -> tuple[float, float] | None:
        """When the last reader, and the last writer, had succeeded once more; None before."""
        first = [next((each for each in times if each > since), None) for times in self.succeeded]
        found = [each for each in first if each is not None]
        if len(found) < len(first):
            return None
        return max(found[WRITERS:]), max(found[:WRITERS])


def run(api: Api, members: RealReplicaSet, fault: Fault) -> Run:
    client = api.client(members.uri, timeoutMS=DEADLINE_S * 1000, w="majority")
    coll = client.get_database("bench").get_collection(f"election{time.monotonic_ns()}")
    workers = Workers(coll)
    one = workers.sync if api.runner is None else workers.asynchronous
    addresses = [f"{host}:{port}" for host, port in (each.address for each in members.members)]
    before = api.one(lambda: client.admin.command("isMaster"))["electionId"]
    found: list[tuple[float, float]] = []

    def strike() -> None:
        try:
            time.sleep(1.0)
            with Watch(addresses, before) as watch:
                injected: Future[Any] = members.inject(fault, "primary")
                end = time.monotonic() + LONGEST_S
                while time.monotonic() < end:
                    ended = workers.went_on(watch.elected)
                    if ended is not None:
                        found.append((ended[0] - watch.elected, ended[1] - watch.elected))
                        break
                    time.sleep(POLL_S)
            injected.result(timeout=LONGEST_S)
            time.sleep(AFTER_S)
        finally:
            workers.stop.set()

    striking = threading.Thread(target=strike)
    striking.start()
    api.all([lambda worker=worker: one(worker) for worker in range(WRITERS + READERS)])
    striking.join()
    api.close(client)
    looking: MongoClient[Any] = MongoClient(members.uri, timeoutMS=60_000)
    with looking:
        stored = [each["_id"] for each in looking.bench[coll.name].find({}, {"_id": 1})]
    read, written = found[0] if found else (float("inf"), float("inf"))
    return Run(
        read * 1000,
        written * 1000,
        workers.errors,
        len(workers.numbers),
        len(set(workers.numbers) - set(stored)),
        len(stored) - len(set(stored)),
    )


def measured(
    server: str,
    names: Sequence[str] = tuple(FAULTS),
    kinds: Sequence[str] = KINDS,
    *,
    times: int = 3,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Every fault, plain pymongo and the library, in turn; each run has a set of its own."""
    rows: list[dict[str, str]] = []
    described = ""
    for name in names:
        title, fault = FAULTS[name]
        for kind in kinds:
            runs: dict[str, list[Run]] = {"plain": [], "ours": []}
            for number in range(times):
                for side, made in runs.items():
                    progress(f"{title}, {kind}, {side}, {number + 1} of {times}")
                    with RealReplicaSet(server) as members:
                        described = members.server_description
                        if side == "ours":
                            instrument(
                                Config(timeout_ms=DEADLINE_S * 1000, traces=False, metrics=False)
                            )
                        try:
                            made.append(run(Api(kind == "async"), members, fault()))
                        finally:
                            if side == "ours":
                                uninstrument()
            rows.append({"fault": title, "kind": kind} | {s: _text(m) for s, m in runs.items()})
    return {"rows": rows, "server": described}


def _text(runs: Sequence[Run]) -> str:
    read = median(each.read_ms for each in runs)
    written = median(each.written_ms for each in runs)
    counts = [sum(each[number] for each in runs) for number in range(2, len(Run._fields))]
    errors, acknowledged, lost, doubled = counts
    return (
        f"reads {read:.0f}, inserts {written:.0f}; {errors} errors; of {acknowledged:,} inserts "
        f"{lost} lost, {doubled} doubled"
    )


def main() -> None:
    logging.getLogger("pymongo_resilience").setLevel(logging.CRITICAL)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server", help="mongod=PATH")
    parser.add_argument("--only", choices=list(FAULTS), action="append")
    parser.add_argument("--side", choices=KINDS, action="append")
    parser.add_argument("--times", type=int, default=3)
    given = parser.parse_args()
    console = Console()
    found = measured(
        given.server,
        given.only or tuple(FAULTS),
        given.side or KINDS,
        times=given.times,
        progress=lambda text: console.print(text, style="dim"),
    )
    table = Table("fault", "", "pymongo", "with the library")
    for row in found["rows"]:
        table.add_row(*(row[name] for name in ("fault", "kind", "plain", "ours")))
    console.print(table)


if __name__ == "__main__":
    main()
