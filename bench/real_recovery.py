"""How fast writes go on after a real election, beside plain pymongo in the same run.

    python bench/real_recovery.py mongod=PATH [--only NAME] [--side sync|async] [--times 3]

Three mongods, each behind a proxy. Eight workers insert one document after the other while the
primary steps down, is killed or is stopped (SIGSTOP, twelve seconds); plain pymongo has its own
``timeoutMS`` of 20 s, the library its default settings and the same deadline. The time is that from
the moment at which a member calls itself the primary by a new election until every worker has had
an insert acknowledged: median and worst of all runs, in milliseconds. What was acknowledged
(``w=majority``) is counted in the end. Needs the extra ``demo``.
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

WORKERS, STOPPED_S, DOWN_S = 8, 12.0, 3.0
AFTER_S = 1.5
"""How long inserts go on after every worker has had one acknowledged."""
LONGEST_S = 40.0
POLL_S = 0.005
FAULTS: dict[str, tuple[str, Callable[[], Fault]]] = {
    "step-down": ("the primary steps down", Election),
    "kill": ("the primary is killed (SIGKILL)", lambda: Restart(DOWN_S)),
    "stop": (f"the primary is stopped for {STOPPED_S:.0f} s", lambda: SilentPrimary(STOPPED_S)),
}


class Run(NamedTuple):
    after_ms: float
    """From the election to the last worker's first acknowledged insert."""
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
                    found = client.admin.command("isMaster").get("electionId")
                    if found not in (None, self._before):
                        self.elected = min(self.elected, time.perf_counter())
                except PyMongoError:
                    pass
                time.sleep(POLL_S)


class Workers:
    """Insert until they are told to stop; each has numbers of its own."""

    def __init__(self, coll: Any) -> None:
        self._coll = coll
        self.acknowledged: dict[int, list[float]] = {worker: [] for worker in range(WORKERS)}
        self.numbers: list[int] = []
        self.errors = 0
        self.stop = threading.Event()

    def _next(self, worker: int) -> int:
        return worker + WORKERS * (len(self.acknowledged[worker]) + self.errors * 1_000_000)

    def sync(self, worker: int) -> None:
        while not self.stop.is_set():
            number = self._next(worker)
            try:
                self._coll.insert_one({"_id": number})
            except PyMongoError:
                self.errors += 1
                continue
            self._note(worker, number)

    async def asynchronous(self, worker: int) -> None:
        while not self.stop.is_set():
            number = self._next(worker)
            try:
                await self._coll.insert_one({"_id": number})
            except PyMongoError:
                self.errors += 1
                continue
            self._note(worker, number)

    def _note(self, worker: int, number: int) -> None:
        self.numbers.append(number)
        self.acknowledged[worker].append(time.perf_counter())

    def went_on(self, since: float) -> float | None:
        """When the last of them had an insert acknowledged; None before."""
        first = [
            next((each for each in times if each > since), None)
            for times in self.acknowledged.values()
        ]
        found = [each for each in first if each is not None]
        return max(found) if len(found) == WORKERS else None


def run(api: Api, members: RealReplicaSet, fault: Fault) -> Run:
    client = api.client(members.uri, timeoutMS=DEADLINE_S * 1000, w="majority")
    coll = client.get_database("bench").get_collection(f"election{time.monotonic_ns()}")
    workers = Workers(coll)
    one = workers.sync if api.runner is None else workers.asynchronous
    addresses = [f"{host}:{port}" for host, port in (each.address for each in members.members)]
    before = api.one(lambda: client.admin.command("isMaster"))["electionId"]
    found: list[float] = []

    def strike() -> None:
        time.sleep(1.0)
        with Watch(addresses, before) as watch:
            injected: Future[Any] = members.inject(fault)
            end = time.monotonic() + LONGEST_S
            while time.monotonic() < end:
                ended = workers.went_on(watch.elected)
                if ended is not None:
                    found.append(ended - watch.elected)
                    break
                time.sleep(POLL_S)
        injected.result(timeout=LONGEST_S)
        time.sleep(AFTER_S)
        workers.stop.set()

    striking = threading.Thread(target=strike)
    striking.start()
    api.all([lambda worker=worker: one(worker) for worker in range(WORKERS)])
    striking.join()
    api.close(client)
    looking: MongoClient[Any] = MongoClient(members.uri, timeoutMS=60_000)
    with looking:
        stored = [each["_id"] for each in looking.bench[coll.name].find({}, {"_id": 1})]
    return Run(
        (found[0] if found else float("inf")) * 1000,
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
    after = [each.after_ms for each in runs]
    counts = [sum(each[number] for each in runs) for number in range(1, len(Run._fields))]
    errors, acknowledged, lost, doubled = counts
    return (
        f"{median(after):.0f} / {max(after):.0f}; of {acknowledged:,} {errors} errors, "
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
