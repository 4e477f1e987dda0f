"""How far past its deadline an operation comes back, with plain pymongo and with the library.

    python bench/deadlines.py [RUNS]

Each operation expires in one of five ways: no server to select, no place in the pool, a connection
that is not made, a reply that does not come, a failure for good that is retried. The deadlines are
thrown from one seed, the same for every row, since pymongo's overrun depends on their length. Needs
the extra ``demo``, and a kernel that drops what does not fit into a listening socket's queue, as
Linux does.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pymongo
from pymongo.errors import PyMongoError
from pymongo_resilience_instrumentation.tools.testbed.command_faults import OnCommand
from pymongo_resilience_instrumentation.tools.testbed.fault import Hang
from rich.console import Console
from rich.table import Table

from pymongo_resilience import Config, instrument, uninstrument
from pymongo_resilience.testbed import EmbeddedServer, Fail, ReplicaSet

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support.fake_servers import BlackHolePort

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from pymongo_resilience_instrumentation.tools.testbed.wire import Message

    Address = tuple[str, int]

FOR_GOOD = 10**9
SHORTEST_S, LONGEST_S = 0.05, 0.55
SEED = 5
CONFIG = Config(metrics=False, traces=False)


class Silent(OnCommand):
    """Never answers the command."""

    def verdict(self, request: Message) -> Hang:
        del request
        return Hang(600)


@dataclass
class Trouble:
    """A deployment, and what makes every operation on it expire."""

    uri: str
    options: dict[str, Any] = field(default_factory=dict)
    begin: Callable[[], Any] | None = None
    """Called once the client is connected; None where it never is."""
    end: Callable[[], Any] = lambda: None
    holds: Silent | None = None
    """Who pings then has the pool's only connection."""


@contextmanager
def selection(_: Address) -> Iterator[Trouble]:
    yield Trouble("mongodb://127.0.0.1:1/")


@contextmanager
def checkout(server: Address) -> Iterator[Trouble]:
    with ReplicaSet(server, members=1) as servers:
        silent = Silent("ping")
        yield Trouble(
            servers.uri,
            {"maxPoolSize": 1},
            begin=lambda: servers.inject(silent),
            end=servers.clear,
            holds=silent,
        )


@contextmanager
def connect(server: Address) -> Iterator[Trouble]:
    with BlackHolePort(server) as gate:
        yield Trouble(gate.uri, {"maxIdleTimeMS": 1}, begin=gate.shut, end=gate.open)


@contextmanager
def read(server: Address) -> Iterator[Trouble]:
    with ReplicaSet(server, members=1) as servers:
        silent = Silent("find", times=FOR_GOOD)
        yield Trouble(servers.uri, begin=lambda: servers.inject(silent), end=servers.clear)


@contextmanager
def between_retries(server: Address) -> Iterator[Trouble]:
    with ReplicaSet(server, members=1) as servers:
        failing = Fail("find", code=6, times=FOR_GOOD)
        yield Trouble(servers.uri, begin=lambda: servers.inject(failing))


KINDS: dict[str, Callable[[Address], AbstractContextManager[Trouble]]] = {
    "selection": selection,
    "checkout": checkout,
    "connect": connect,
    "read": read,
    "between retries": between_retries,
}


def in_thread(trouble: Trouble, deadlines: list[float]) -> list[float]:
    client: Any = pymongo.MongoClient(trouble.uri, **trouble.options)
    if trouble.begin is not None:
        client.admin.command("ping")
        trouble.begin()
    with ThreadPoolExecutor() as threads:
        if trouble.holds is not None:
            threads.submit(client.admin.command, "ping")
            while not trouble.holds.injected:
                time.sleep(0.01)
        overruns = []
        for deadline in deadlines:
            began = time.perf_counter()
            try:
                with pymongo.timeout(deadline):
                    client.bench.coll.find_one()
            except PyMongoError:
                overruns.append(time.perf_counter() - began - deadline)
        trouble.end()
    client.close()
    return overruns


def in_task(trouble: Trouble, deadlines: list[float]) -> list[float]:
    return asyncio.run(_in_task(trouble, deadlines))


async def _in_task(trouble: Trouble, deadlines: list[float]) -> list[float]:
    client: Any = pymongo.AsyncMongoClient(trouble.uri, **trouble.options)
    if trouble.begin is not None:
        await client.admin.command("ping")
        trouble.begin()
    holder = None
    if trouble.holds is not None:
        holder = asyncio.create_task(client.admin.command("ping"))
        while not trouble.holds.injected:  # noqa: ASYNC110 - set in the test bed's thread
            await asyncio.sleep(0.01)
    overruns = []
    for deadline in deadlines:
        began = time.perf_counter()
        try:
            with pymongo.timeout(deadline):
                await client.bench.coll.find_one()
        except PyMongoError:
            overruns.append(time.perf_counter() - began - deadline)
    trouble.end()
    if holder is not None:
        await asyncio.gather(holder, return_exceptions=True)
    await client.close()
    return overruns


def measure(
    run: Callable[[Trouble, list[float]], list[float]], server: Address, deadlines: list[float]
) -> dict[str, list[float]]:
    found = {}
    for kind, place in KINDS.items():
        with place(server) as trouble:
            found[kind] = run(trouble, deadlines)
    return found


def add_rows(made: Table, name: str, overruns: dict[str, list[float]]) -> None:
    everything = [each for kind in overruns.values() for each in kind]
    for kind, some in {**overruns, "all": everything}.items():
        # One that ends early, since nothing more would fit, has not overrun.
        late = sorted(max(0.0, each) * 1000 for each in some)
        figures = (late[len(late) // 2], late[-(-len(late) * 99 // 100) - 1], late[-1])
        made.add_row(name, kind, str(len(late)), *(f"{each:.1f}" for each in figures))
    made.add_section()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="?", type=int, default=40, help="operations of each row")
    runs = parser.parse_args().runs
    # What is said of each retry is not what is measured here.
    logging.getLogger("pymongo_resilience").disabled = True
    logging.getLogger("pymongo_resilience.retry").disabled = True
    rng = random.Random(SEED)  # noqa: S311 - lengths of time, no secrets
    deadlines = [rng.uniform(SHORTEST_S, LONGEST_S) for _ in range(runs)]
    made = Table(title=f"overrun of a deadline in ms, pymongo {pymongo.version}")
    for heading in ("", "expires in"):
        made.add_column(heading)
    for heading in ("operations", "p50", "p99", "max"):
        made.add_column(heading, justify="right")
    with EmbeddedServer() as server:
        for api, run in {"sync": in_thread, "async": in_task}.items():
            for side, config in {"plain pymongo": None, "with the library": CONFIG}.items():
                if config is not None:
                    instrument(config)
                overruns = measure(run, server.address, deadlines)
                if config is not None:
                    uninstrument()
                add_rows(made, f"{side}, {api}", overruns)
    Console(width=100).print(made)
    print("load average", *(f"{each:.2f}" for each in os.getloadavg()))


if __name__ == "__main__":
    main()
