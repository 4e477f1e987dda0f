"""How fast operations go on after a fault, beside plain pymongo in the same run.

    python bench/recovery.py [--only NAME] [--side sync|async] [--clients 100]

Each row is one fault, met by plain pymongo and by the library with default settings and a deadline
of 20 s, sync and async: a connection that is cut twenty times, a primary that falls silent before
another one is elected, a path that swallows packets (two network namespaces, where the machine
allows them), a server that restarts, 200 tasks whose connections are cut every quarter of a
second, and the hellos that a server that restarts gets from many clients. Times in milliseconds but
where they say otherwise. Needs the extra ``demo``.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pymongo
import restart_hellos
from pymongo.errors import PyMongoError
from rich.console import Console
from rich.table import Table

from pymongo_resilience import Config, instrument, uninstrument
from pymongo_resilience.testbed import (
    BlackHole,
    CutAfter,
    Election,
    EmbeddedServer,
    ReplicaSet,
    Restart,
)

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support.severable_path import INSIDE, SeverablePath, can_sever

DEADLINE_S = 20
CUTS, IN_FLIGHT, TASKS, RESTARTS = 20, 8, 200, 7
SILENT_S, DOWN_S, CUT_EVERY_S, CUTTING_S = 1.2, 1.0, 0.25, 5.0
DEAD_PEER_S = 5
CUT_MS, WORST_CUT_MS, ELECTED_MS, RESTART_MS = 15, 60, 500, 50
MORE_HELLOS = 2
"""The bars."""
CLIENTS = 100
"""Whose hellos are counted: as many as two cores bear while the server is down, when each looks for
it twenty times a second."""


class Outcome(NamedTuple):
    text: str
    kept: bool
    """Whether it is within the bar."""
    compared: float = 0.0
    """Where the bar is a multiple of plain pymongo's: what is compared."""


class Api:
    """pymongo's sync or async one, called in the same way."""

    def __init__(self, asynchronous: bool) -> None:
        self.runner = asyncio.Runner() if asynchronous else None

    def client(self, uri: str, **options: Any) -> Any:
        cls: Any = pymongo.MongoClient if self.runner is None else pymongo.AsyncMongoClient
        return self.all([lambda: cls(uri, **options)])[0]

    def all(self, calls: list[Callable[[], Any]]) -> list[Any]:
        """What they return or raise, at the same time."""
        if self.runner is not None:
            return self.runner.run(_gathered(calls))
        with ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(_outcome, calls))

    def one(self, call: Callable[[], Any]) -> Any:
        if self.runner is not None:
            return self.runner.run(_gathered([call]))[0]
        return _outcome(call)

    def sleep(self, seconds: float) -> None:
        if self.runner is not None:
            self.runner.run(asyncio.sleep(seconds))  # its monitors run on its loop
        else:
            time.sleep(seconds)

    def close(self, client: Any) -> None:
        self.one(client.close)
        if self.runner is not None:
            self.runner.close()


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except PyMongoError as error:
        return error


async def _awaited(call: Callable[[], Any]) -> Any:
    try:
        result = call()
        return await result if inspect.isawaitable(result) else result
    except PyMongoError as error:
        return error


async def _gathered(calls: list[Callable[[], Any]]) -> list[Any]:
    return list(await asyncio.gather(*map(_awaited, calls)))


def _failed(results: list[Any]) -> int:
    return sum(isinstance(each, Exception) for each in results)


def cut(api: Api, server: EmbeddedServer) -> Outcome:
    with ReplicaSet(server.address) as replica_set:
        client = api.client(replica_set.uri)
        coll, took = client.bench.cut, []
        api.one(lambda: coll.insert_one({}))
        api.sleep(1)
        for _ in range(CUTS):
            replica_set.inject(CutAfter("insert"))
            began = time.perf_counter()
            api.one(lambda: coll.insert_one({}))
            took.append((time.perf_counter() - began) * 1000)
            api.sleep(0.05)
        api.close(client)
    kept = median(took) <= CUT_MS and max(took) <= WORST_CUT_MS
    return Outcome(f"{median(took):.0f} / {max(took):.0f}", kept)


def silent_primary(api: Api, server: EmbeddedServer) -> Outcome:
    with ReplicaSet(server.address) as replica_set:
        client = api.client(replica_set.uri, timeoutMS=DEADLINE_S * 1000)
        coll, elected, ended = client.bench[f"silent{time.monotonic_ns()}"], [], []
        api.all([lambda: client.admin.command("ping")] * IN_FLIGHT)
        api.sleep(1)

        def strike() -> None:
            time.sleep(SILENT_S)
            elected.append(time.perf_counter())
            replica_set.inject(Election(0.01))

        def insert(number: int) -> Callable[[], Any]:
            def sync() -> Any:
                result = coll.insert_one({"_id": number})
                ended.append(time.perf_counter())
                return result

            async def asynchronous() -> Any:
                result = await coll.insert_one({"_id": number})
                ended.append(time.perf_counter())
                return result

            return sync if api.runner is None else asynchronous

        replica_set.inject(BlackHole(DEADLINE_S * 2), on="primary")
        striking = threading.Thread(target=strike)
        striking.start()
        failed = _failed(api.all([insert(number) for number in range(IN_FLIGHT)]))
        striking.join()
        replica_set.clear()
        stored = api.one(lambda: coll.count_documents({}))
        api.close(client)
    after = max(ended, default=float("inf")) - elected[0]
    clean = stored == IN_FLIGHT - failed
    text = f"{failed} errors" if failed else f"all, {after * 1000:.0f} after the election"
    return Outcome(
        text + ("" if clean else f", {stored} stored"), not failed and after <= ELECTED_MS / 1000
    )


def restart(api: Api, server: EmbeddedServer) -> Outcome:
    with ReplicaSet(server.address, members=1) as replica_set:
        client = api.client(replica_set.uri, timeoutMS=DEADLINE_S * 1000)
        coll, took = client.bench.restart, []
        api.one(lambda: coll.insert_one({}))
        for number in range(RESTARTS):
            api.sleep(0.7)
            # Not always when the driver looks by chance.
            down = DOWN_S + (number - RESTARTS // 2) * 0.04
            back: list[float] = []
            future = replica_set.inject(Restart(down))
            future.add_done_callback(lambda _, back=back: back.append(time.perf_counter()))
            api.one(lambda: coll.insert_one({}))
            ended = time.perf_counter()
            future.result()
            took.append(max(0.0, ended - back[0]) * 1000)
        api.close(client)
    return Outcome(f"{median(took):.0f} / {max(took):.0f}", median(took) <= RESTART_MS)


def tasks(api: Api, server: EmbeddedServer) -> Outcome:
    with ReplicaSet(server.address) as replica_set:
        client = api.client(replica_set.uri, maxPoolSize=TASKS)
        coll = client.bench[f"tasks{time.monotonic_ns()}"]
        end, done = time.monotonic() + CUTTING_S, [0]

        def cutting() -> None:
            while time.monotonic() < end:
                replica_set.inject(CutAfter("update"))
                time.sleep(CUT_EVERY_S)

        async def work(number: int) -> int:
            failed = 0
            while time.monotonic() < end:
                try:
                    await coll.update_one({"_id": number}, {"$inc": {"n": 1}}, upsert=True)
                    done[0] += 1
                except PyMongoError:
                    failed += 1
            return failed

        def work_sync(number: int) -> int:
            failed = 0
            while time.monotonic() < end:
                try:
                    coll.update_one({"_id": number}, {"$inc": {"n": 1}}, upsert=True)
                    done[0] += 1
                except PyMongoError:
                    failed += 1
            return failed

        one = work_sync if api.runner is None else work
        thread = threading.Thread(target=cutting)
        thread.start()
        failed = api.all([lambda number=number: one(number) for number in range(TASKS)])
        thread.join()
        replica_set.clear()
        api.close(client)
    errors = sum(each for each in failed if isinstance(each, int))
    return Outcome(f"{errors} errors of {done[0] + errors}", errors == 0)


def path_inside(asynchronous: bool) -> Outcome:
    """In a network namespace of its own."""
    api = Api(asynchronous)
    with SeverablePath() as path:
        client = api.client(path.uri, timeoutMS=DEADLINE_S * 1000)
        api.one(lambda: client.bench.path.insert_one({"_id": 0}))
        path.forget_connections()
        began = time.perf_counter()
        result = api.one(lambda: client.bench.path.insert_one({"_id": 1}))
        took = time.perf_counter() - began
        api.close(client)
    error = isinstance(result, Exception)
    what = "error" if error else "acknowledged"
    return Outcome(f"{what} after {took:.1f} s", not error and took <= DEAD_PEER_S + 1)


def hellos(clients: int, *, ours: bool, asynchronous: bool, server: EmbeddedServer) -> Outcome:
    found = restart_hellos.measured(clients, ours=ours, asynchronous=asynchronous, server=server)
    text = f"{found.total} / {found.busiest_second}"
    if found.errors:
        text += f", {found.errors} errors"
    return Outcome(text, not found.errors, found.busiest_second)


ROWS: dict[str, tuple[str, str, Callable[[Api, EmbeddedServer], Outcome] | None]] = {
    "cut": ("one cut, 20 times: median / worst", f"{CUT_MS} / {WORST_CUT_MS}", cut),
    "silent": (
        "primary silent, another elected, 8 in flight",
        f"all, {ELECTED_MS}",
        silent_primary,
    ),
    "path": ("path swallows packets, no election", f"{DEAD_PEER_S + 1} s", None),
    "restart": ("server down 1 s: median / worst after it accepts", f"{RESTART_MS}", restart),
    "tasks": ("200 tasks, a cut every 0.25 s", "0 errors", tasks),
    "hellos": (
        "server down 1 s: hellos of {} clients / those of the busiest second",
        f"< {MORE_HELLOS} times pymongo's",
        None,
    ),
}
KINDS = ("sync", "async")


def measured(
    name: str, clients: int, *, ours: bool, asynchronous: bool, server: EmbeddedServer
) -> Outcome:
    if name == "hellos":
        return hellos(clients, ours=ours, asynchronous=asynchronous, server=server)
    run = ROWS[name][2]
    if run is None:
        side = ["ours" if ours else "plain", "async" if asynchronous else "sync"]
        command = [*INSIDE, sys.executable, __file__, "--inside", *side]
        found = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - our own
        return Outcome(*json.loads(found.stdout))
    if ours:
        instrument(Config(timeout_ms=DEADLINE_S * 1000, traces=False, metrics=False))
    try:
        return run(Api(asynchronous), server)
    finally:
        if ours:
            uninstrument()


def recovery(
    names: Sequence[str] = tuple(ROWS),
    kinds: Sequence[str] = KINDS,
    *,
    clients: int = CLIENTS,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Every fault, plain pymongo and the library."""
    rows = []
    with EmbeddedServer() as server:
        for name in names:
            title, bar, _ = ROWS[name]
            title = title.format(clients)
            if name == "path" and not can_sever():
                progress(f"{title}: no leave to make network namespaces here")
                continue
            for kind in kinds:
                progress(f"{title}, {kind}")
                plain, ours = (
                    measured(name, clients, ours=ours, asynchronous=kind == "async", server=server)
                    for ours in (False, True)
                )
                more = plain.compared and ours.compared >= MORE_HELLOS * plain.compared
                kept = ours.kept and not more
                rows.append({"fault": title, "kind": kind, "plain": plain.text,
                             "ours": ours.text, "bar": bar, "kept": kept})  # fmt: skip
    return {"rows": rows}


def judged(row: dict[str, Any]) -> str:
    return "met" if row["kept"] else "MISSED"


def main() -> None:
    logging.getLogger("pymongo_resilience").setLevel(logging.CRITICAL)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(ROWS), action="append")
    parser.add_argument("--side", choices=KINDS, action="append")
    parser.add_argument("--clients", type=int, default=CLIENTS, help="whose hellos are counted")
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        side, kind = given.inside
        if side == "ours":
            instrument(Config(timeout_ms=DEADLINE_S * 1000, traces=False, metrics=False))
        sys.stdout.write(json.dumps(path_inside(kind == "async")))
        return
    console = Console()
    found = recovery(
        given.only or tuple(ROWS),
        given.side or KINDS,
        clients=given.clients,
        progress=lambda text: console.print(text, style="dim"),
    )
    table = Table("fault", "", "pymongo", "with the library", "bar", "")
    for row in found["rows"]:
        values = (row[name] for name in ("fault", "kind", "plain", "ours", "bar"))
        table.add_row(*values, judged(row))
    console.print(table)


if __name__ == "__main__":
    main()
