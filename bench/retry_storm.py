"""How often a permanent failure is repeated, and when the operation gives up.

    python bench/retry_storm.py [RUNS]

A real server answers every ``find`` with code 6 (HostUnreachable). The operation has half a second;
the row without an end has half a second of ``serverSelectionTimeoutMS``, after which the library
stops. Plain pymongo never stops there, so it has no such row. Needs the extra ``demo``.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pymongo
from pymongo.errors import PyMongoError
from pymongo.monitoring import CommandListener
from rich.console import Console
from rich.table import Table

from pymongo_resilience import Config, OperationTimeoutError, instrument, uninstrument
from pymongo_resilience.testbed import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_S = 0.5
NAME = "retry-storm"
SIDES = {
    "plain pymongo": None,
    "fast_fail": Config(strategy="fast_fail", metrics=False, traces=False),
    "best_effort": Config(strategy="best_effort", metrics=False, traces=False),
    "mongodb": Config(strategy="mongodb", metrics=False, traces=False),
    "fast_fail, timeout 0": Config(strategy="fast_fail", metrics=False, traces=False, timeout_ms=0),
}


class Attempts(CommandListener):
    count = 0

    def started(self, event: Any) -> None:
        self.count += event.command_name == "find"

    def succeeded(self, event: Any) -> None: ...

    def failed(self, event: Any) -> None: ...


@dataclass
class Run:
    attempts: int
    elapsed_ms: float
    error: str


@contextmanager
def broken(control: pymongo.MongoClient[Any]) -> Iterator[None]:
    data = {"failCommands": ["find"], "errorCode": 6, "appName": NAME}
    control.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=data)
    try:
        yield
    finally:
        control.admin.command("configureFailPoint", "failCommand", mode="off")


def measure(uri: str, config: Config | None, runs: int) -> list[Run]:
    attempts = Attempts()
    control: pymongo.MongoClient[Any] = pymongo.MongoClient(uri)
    if config is not None:
        instrument(config)
    endless = config is not None and config.timeout_ms == 0
    client: pymongo.MongoClient[Any] = pymongo.MongoClient(
        uri,
        appname=NAME,
        event_listeners=[attempts],
        serverSelectionTimeoutMS=int(LIMIT_S * 1000),
    )
    coll = client.bench.coll
    coll.find_one()
    found = []
    try:
        with broken(control):
            for _ in range(runs):
                attempts.count = 0
                began = time.perf_counter()
                try:
                    with pymongo.timeout(None if endless else LIMIT_S):
                        coll.find_one()
                except PyMongoError as error:
                    elapsed = (time.perf_counter() - began) * 1000
                    timed_out = isinstance(error, OperationTimeoutError)
                    kind = OperationTimeoutError if timed_out else type(error)
                    found.append(Run(attempts.count, elapsed, kind.__name__))
    finally:
        client.close()
        if config is not None:
            uninstrument()
        control.close()
    return found


def table(results: dict[str, list[Run]]) -> Table:
    made = Table(title=f"find with code 6 for good, {LIMIT_S:g} s, pymongo {pymongo.version}")
    made.add_column("")
    for heading in ("runs", "attempts min", "p50", "max", "ms min", "p50", "max"):
        made.add_column(heading, justify="right")
    made.add_column("error")
    for side, runs in results.items():
        counts = [run.attempts for run in runs]
        times = [run.elapsed_ms for run in runs]
        made.add_row(
            side,
            str(len(runs)),
            *(f"{pick(counts):.0f}" for pick in (min, statistics.median, max)),
            *(f"{pick(times):.0f}" for pick in (min, statistics.median, max)),
            ", ".join(sorted({run.error for run in runs})),
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="?", type=int, default=20, help="operations of each row")
    runs = parser.parse_args().runs
    # What it says of each retry is not what is measured here.
    logging.getLogger("pymongo_resilience").disabled = True
    logging.getLogger("pymongo_resilience.retry").disabled = True
    with EmbeddedServer() as server:
        results = {side: measure(server.uri, config, runs) for side, config in SIDES.items()}
    Console(width=110).print(table(results))


if __name__ == "__main__":
    main()
