"""What hedged reads do to the slowest reads, and what they cost.

    python bench/hedging.py [SECONDS] [--rate READS] [--only SIDE] [--canned] [--quick]
                            [--json FILE]

A replica set of three and a client in a process of its own that reads with ``nearest``: 8 threads,
then 100 tasks, 200 reads a second either way, or as many as ``--rate`` says. After a healthy phase
of so many seconds (10) one of two troubles lasts as long: every member answers 2 % of its reads
after half a second, or one of them answers each read after half a second. Of that the first two
seconds are left out, in which latencies become known. Then the percentiles of a read's time, the
commands for each read, the part of the reads that the slow member was sent, and what is left at the
end: cursors, sessions, tasks, threads; and the processor time of the client for each read. The last
column has the bars that are missed. Needs the extra ``demo``.

The servers are written in Python, and are busy with 1000 reads a second. With ``--canned`` they are
those of canned_server.c, so that what is measured is the client, on a core of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pymongo
from canned import cores, slowed_server
from pymongo import ReadPreference
from pymongo_resilience_instrumentation.tools.testbed.fault import Delay, Interception
from rich.console import Console
from rich.table import Table

from pymongo_resilience import Config, Policy, instrument, status, uninstrument
from pymongo_resilience.testbed import EmbeddedServer, ReplicaSet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from canned import SlowedServer
    from pymongo.client_session import ClientSession
    from pymongo_resilience_instrumentation.tools.testbed.fault import Verdict
    from pymongo_resilience_instrumentation.tools.testbed.relay import Connection
    from pymongo_resilience_instrumentation.tools.testbed.wire import Message

RATE = 200
SLOW_S = 0.5
SHARE = 0.02
SETTLED_S = 2.0
SEED = 21
SLOWER, COSTLIER = 2.5, 1.05
"""The bars: the 99th percentile to that of healthy reads, commands for each read, and the part of
the reads that a slow member gets."""
CURSOR_EVERY = 20
"""One read in so many opens a cursor, which is closed after its first batch."""
WORKERS = {"8 threads": 8, "100 tasks": 100}
SIDES: dict[str, dict[str, Any]] = {
    "driver": {},
    "hedge": {"hedge": True},
}
FEW, ONE = "2 % of all", "one of three"
CASES = (
    (FEW, "driver"),
    (FEW, "hedge"),
    (ONE, "driver"),
)


class SlowReads(Interception):
    """Answers that part of the reads late, and counts them all."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self._share = share
        self._dice = random.Random(SEED)  # noqa: S311 - no secrets
        self.finds = 0

    def on_request(self, request: Message, connection: Connection) -> Verdict | None:
        del connection
        if request.command_name != "find":
            return None
        self.finds += 1
        return Delay(SLOW_S) if self._dice.random() < self._share else None


@dataclass
class Phase:
    """What the client saw."""

    times_ms: list[float] = field(default_factory=list)
    reads: int = 0
    """Those whose times are left out included."""
    cpu_s: float = 0.0

    def percentile(self, share: float) -> float:
        ordered = sorted(self.times_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@dataclass
class Row:
    trouble: str
    workers: str
    side: str
    healthy_p99: float
    p50: float
    p99: float
    cpu_us: float
    commands_per_read: float
    to_the_slow_one: float | None
    hedges: list[int]
    """Reads, hedges, wins."""
    left: dict[str, int]
    """Cursors, sessions, tasks and threads, where there are any."""

    def missed(self, healthy_p99: float) -> Iterator[str]:
        """``healthy_p99``: without hedges."""
        if "hedge" in self.side:
            if self.p99 > SLOWER * healthy_p99:
                yield f"p99 {self.p99 / healthy_p99:.1f} > {SLOWER:g} x"
            if self.commands_per_read > COSTLIER:
                yield f"commands {self.commands_per_read:.3f} > {COSTLIER:g}"
        for what, count in self.left.items():
            yield f"{count} {what} left"


# The client's process: what it does in a phase is one line on its standard output.


def pauses(number: int, mean: float) -> Iterator[float]:
    dice = random.Random(SEED * 1000 + number)  # noqa: S311 - pauses, no secrets
    while True:
        yield dice.expovariate(1 / mean)


def read_in_threads(coll: Any, asked: dict[str, Any], seconds: float, settled: float) -> Phase:
    phase, began, workers = Phase(), time.perf_counter(), asked["workers"]

    def read(number: int) -> None:
        for count, pause in enumerate(pauses(number, workers / asked["rate"])):
            time.sleep(pause)
            start = time.perf_counter()
            if start - began > seconds:
                return
            phase.reads += 1
            if count % CURSOR_EVERY == 0:
                with coll.find(batch_size=2) as cursor:
                    cursor.next()
            else:
                coll.find_one()
            if start - began >= settled:
                phase.times_ms.append((time.perf_counter() - start) * 1000)

    with ThreadPoolExecutor(workers) as pool:
        cpu = time.process_time()
        for each in [pool.submit(read, number) for number in range(workers)]:
            each.result()
    phase.cpu_s = time.process_time() - cpu
    return phase


async def read_in_tasks(coll: Any, asked: dict[str, Any], seconds: float, settled: float) -> Phase:
    phase, began, workers = Phase(), time.perf_counter(), asked["workers"]

    async def read(number: int) -> None:
        for count, pause in enumerate(pauses(number, workers / asked["rate"])):
            await asyncio.sleep(pause)
            start = time.perf_counter()
            if start - began > seconds:
                return
            phase.reads += 1
            if count % CURSOR_EVERY == 0:
                async with coll.find(batch_size=2) as cursor:
                    await cursor.next()
            else:
                await coll.find_one()
            if start - began >= settled:
                phase.times_ms.append((time.perf_counter() - start) * 1000)

    cpu = time.process_time()
    await asyncio.gather(*(read(number) for number in range(workers)))
    phase.cpu_s = time.process_time() - cpu
    return phase


def tell(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)
    sys.stdin.readline()


def sessions_left() -> int:
    found: list[ClientSession] = [
        each for each in gc.get_objects() if type(each).__name__.endswith("ClientSession")
    ]
    return sum(not each.has_ended for each in found)


def client_options(asked: dict[str, Any]) -> dict[str, Any]:
    options = dict(asked["options"])
    hedge = options.pop("hedge", None)
    policies = {"*.*": Policy(hedge=hedge)} if hedge else {}
    instrument(Config(metrics=False, traces=False, policies=policies, **options))
    return {"localThresholdMS": 1000, "maxPoolSize": 200}


def hedges_of(client: Any) -> list[int]:
    counts = status(client).hedges
    return [0, 0, 0] if counts is None else [counts.reads, counts.sent, counts.won]


def run_in_threads(asked: dict[str, Any]) -> None:
    client: Any = pymongo.MongoClient(asked["uri"], **client_options(asked))
    coll = client.get_database("bench", read_preference=ReadPreference.NEAREST).coll
    while len(client.nodes) < 3:  # noqa: PLR2004 - members
        coll.find_one()
    read_in_threads(coll, asked, asked["warm_up"], 0)
    for settled in (0.0, asked["settled"]):
        tell({"ready": True})
        tell(asdict(read_in_threads(coll, asked, asked["seconds"], settled)))
    time.sleep(2 * SLOW_S)  # the losers finish, and the background task kills their cursors
    time.sleep(1)
    hedges, sessions = hedges_of(client), sessions_left()
    client.close()
    uninstrument()
    time.sleep(0.1)
    threads = [each for each in threading.enumerate() if "hedge" in each.name]
    tell({"hedges": hedges, "left": {"sessions": sessions, "threads": len(threads)}})


async def run_in_tasks(asked: dict[str, Any]) -> None:
    client: Any = pymongo.AsyncMongoClient(asked["uri"], **client_options(asked))
    coll = client.get_database("bench", read_preference=ReadPreference.NEAREST).coll
    while len(client.nodes) < 3:  # noqa: PLR2004 - members
        await coll.find_one()
    await read_in_tasks(coll, asked, asked["warm_up"], 0)
    for settled in (0.0, asked["settled"]):
        tell({"ready": True})
        tell(asdict(await read_in_tasks(coll, asked, asked["seconds"], settled)))
    await asyncio.sleep(2 * SLOW_S + 1)  # as above
    hedges, sessions = hedges_of(client), sessions_left()
    await client.close()
    uninstrument()
    await asyncio.sleep(0.1)
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    tell({"hedges": hedges, "left": {"sessions": sessions, "tasks": len(tasks)}})


# The other one, with the servers.


class Client:
    """The client's process."""

    def __init__(self, **asked: Any) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - this file
            [sys.executable, str(Path(__file__)), "--client", json.dumps(asked)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def told(self) -> dict[str, Any]:
        line = "" if self._process.stdout is None else self._process.stdout.readline()
        if not line:
            raise RuntimeError("the client's process has ended")
        found: dict[str, Any] = json.loads(line)
        return found

    def go_on(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def phase(self) -> Phase:
        self.told()
        self.go_on()
        return Phase(**self.told())

    def end(self) -> None:
        self.go_on()
        self._process.wait(30)


class TestBed:
    """The servers of the test bed, through which each message passes in Python."""

    def __init__(self, servers: ReplicaSet) -> None:
        self._servers = servers
        self._members = [SlowReads(0.0) for _ in range(3)]
        self.uri = servers.uri

    def slow(self, shares: Sequence[float]) -> None:
        self._servers.clear()
        self._members = [SlowReads(each) for each in shares]
        for at, each in enumerate(self._members):
            self._servers.inject(each, on=at)

    def finds(self) -> list[int]:
        return [each.finds for each in self._members]

    def open_cursors(self) -> int:
        with pymongo.MongoClient[Any](self.uri) as client:
            metrics = client.admin.command("serverStatus").get("metrics", {})
        open_ones: int = metrics.get("cursor", {}).get("open", {}).get("total", 0)
        return open_ones


class Canned:
    """The same of the canned server."""

    def __init__(self, server: SlowedServer) -> None:
        self._server = server
        self.uri = server.uri

    def slow(self, shares: Sequence[float]) -> None:
        for at, share in enumerate(shares):
            self._server.slow(at, share, SLOW_S)

    def finds(self) -> list[int]:
        return self._server.counts()[:-1]

    def open_cursors(self) -> int:
        return self._server.counts()[-1]


@contextmanager
def servers(*, canned: bool) -> Iterator[TestBed | Canned]:
    if canned:
        with slowed_server(3) as server:
            yield Canned(server)
        return
    with EmbeddedServer() as server, ReplicaSet(server.address) as members:
        with pymongo.MongoClient[Any](members.uri) as client:
            client.bench.coll.insert_many([{"_id": each, "x": 1} for each in range(9)])
        yield TestBed(members)


def measure(
    servers: TestBed | Canned,
    trouble: str,
    workers: str,
    side: str,
    *,
    seconds: float,
    rate: float,
) -> Row:
    settled = min(SETTLED_S, seconds / 2)
    client = Client(
        uri=servers.uri,
        options=SIDES[side],
        workers=WORKERS[workers],
        canned=isinstance(servers, Canned),
        rate=rate,
        tasks="tasks" in workers,
        seconds=seconds,
        settled=settled,
        warm_up=min(2.0, seconds),
    )
    healthy = client.phase()
    client.go_on()
    servers.slow([SHARE if trouble == FEW else float(at == 1) for at in range(3)])
    began, counted = servers.finds(), []
    timer = threading.Timer(settled, lambda: counted.append(servers.finds()))
    timer.start()
    sick = client.phase()
    timer.join()
    ended = servers.finds()
    servers.slow([0.0] * 3)
    client.go_on()
    rest = client.told()
    client.end()
    late = [end - begin for begin, end in zip(counted[0], ended, strict=True)]
    left = rest["left"] | {"cursors": servers.open_cursors()}
    return Row(
        trouble=trouble,
        workers=workers,
        side=side,
        healthy_p99=healthy.percentile(0.99),
        p50=sick.percentile(0.5),
        p99=sick.percentile(0.99),
        cpu_us=sick.cpu_s / max(1, sick.reads) * 1e6,
        commands_per_read=(sum(ended) - sum(began)) / max(1, sick.reads),
        to_the_slow_one=late[1] / max(1, sum(late)) if trouble == ONE else None,
        hedges=rest["hedges"],
        left={what: count for what, count in left.items() if count},
    )


def results(
    seconds: float, rate: float, cases: Sequence[tuple[str, str]], *, canned: bool
) -> list[Row]:
    rows = []
    with servers(canned=canned) as ours:
        for workers in WORKERS:
            for trouble, side in cases:
                rows.append(measure(ours, trouble, workers, side, seconds=seconds, rate=rate))
                print(".", end="", file=sys.stderr, flush=True)
    return rows


def all_missed(rows: list[Row]) -> list[list[str]]:
    """To healthy reads without hedges of the same case, which was measured just before."""
    healthy = {
        (each.workers, each.trouble): each.healthy_p99 for each in rows if each.side == "driver"
    }
    return [
        list(row.missed(healthy.get((row.workers, row.trouble), row.healthy_p99))) for row in rows
    ]


def table(rows: list[Row], seconds: float, rate: float) -> Table:
    made = Table(
        title=f"slow reads for {seconds:g} s, three members, nearest, "
        f"{rate:g} reads/s, pymongo {pymongo.version}"
    )
    for heading in ("slow", "workers", "selection"):
        made.add_column(heading)
    for heading in ("healthy p99", "p50", "p99 ms", "cpu us", "commands", "to it", "hedges (won)"):
        made.add_column(heading, justify="right")
    made.add_column("missed")
    for row, missed in zip(rows, all_missed(rows), strict=True):
        made.add_row(
            row.trouble,
            row.workers,
            row.side,
            f"{row.healthy_p99:.1f}",
            f"{row.p50:.1f}",
            f"{row.p99:.1f}",
            f"{row.cpu_us:.0f}",
            f"{row.commands_per_read:.3f}",
            "" if row.to_the_slow_one is None else f"{row.to_the_slow_one:.2%}",
            f"{row.hedges[1]} ({row.hedges[2]})" if "hedge" in row.side else "",
            ", ".join(missed),
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seconds", nargs="?", type=float, default=10.0, help="of each phase")
    parser.add_argument("--rate", type=float, default=RATE, help="reads a second; 200")
    parser.add_argument("--only", choices=SIDES, help="with or without hedges alone")
    parser.add_argument("--canned", action="store_true", help="servers that cost no time")
    parser.add_argument("--quick", action="store_true", help="too short to tell anything")
    parser.add_argument("--json", metavar="FILE", help="write the rows to this file")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client is not None:
        asked = json.loads(given.client)
        if asked["canned"]:
            os.sched_setaffinity(0, {cores()[0]})
        with suppress(KeyboardInterrupt):
            if asked["tasks"]:
                asyncio.run(run_in_tasks(asked))
            else:
                run_in_threads(asked)
        return
    seconds = 0.5 if given.quick else given.seconds
    cases = CASES[1:2] if given.quick else CASES
    cases = tuple(each for each in cases if given.only in {None, each[1]})
    rows = results(seconds, given.rate, cases, canned=given.canned)
    if given.json is not None:
        Path(given.json).write_text(json.dumps([asdict(each) for each in rows], indent=1))
    Console(width=140).print(table(rows, seconds, given.rate))


if __name__ == "__main__":
    main()
