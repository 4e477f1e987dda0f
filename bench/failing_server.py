"""What one bad secondary costs, with circuit breakers or without.

    python bench/failing_server.py [SECONDS]

A replica set of three, eight threads that read with ``nearest`` under a deadline of half a
second, with a pause of 20 ms on average between two reads. After a healthy second one secondary
goes bad for so many seconds (15): once it answers every read with an error, once it answers after
two seconds. Then the errors that the threads see, the time of a read, and the reads that the bad
secondary was still sent. Quick breakers have a window of two seconds in place of ten: what was
well before the trouble is out of it sooner. The pauses are thrown from one seed, the same for every
row. Needs the extra ``demo``.
"""

from __future__ import annotations

import argparse
import logging
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pymongo
from pymongo import ReadPreference
from pymongo.errors import PyMongoError
from rich.console import Console
from rich.table import Table

from pymongo_resilience import Config, ConfigurationError, instrument, uninstrument
from pymongo_resilience.events import BreakerOpened, Event
from pymongo_resilience.testbed import EmbeddedServer, Fail, ReplicaSet, Slow

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo_resilience_instrumentation.tools.testbed.fault import Interception

THREADS = 8
HEALTHY_S = 1.0
PAUSE_S = 0.02
DEADLINE_MS = 500
SLOW_S = 2.0
HOST_UNREACHABLE = 6
FOR_GOOD = 10**9
SEED = 6
SECONDARY = 1
SIDES: dict[str, dict[str, Any]] = {
    "none": {},
    "breakers": {"circuit_breaker": "on"},
    "quick breakers": {
        "circuit_breaker": "on",
        "circuit_breaker_window_s": 2.0,
        "circuit_breaker_minimum_calls": 5,
    },
}
TROUBLES: dict[str, Callable[[], Interception]] = {
    "errors": lambda: Fail("find", FOR_GOOD, code=HOST_UNREACHABLE),
    "slow": lambda: Slow(SLOW_S),
}


class Openings:
    """When the first circuit breaker opened."""

    first: float | None = None

    def on_event(self, event: Event) -> None:
        if isinstance(event, BreakerOpened) and self.first is None:
            self.first = time.perf_counter()


@dataclass
class Run:
    """What the threads saw from the moment the secondary went bad."""

    times_ms: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    """By the name of their class."""
    sent_to_it: int = 0
    opened_after: float | None = None

    def percentile(self, share: float) -> float:
        ordered = sorted(self.times_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def read(
    coll: Any,
    number: int,
    bad: threading.Event,
    end: threading.Event,
    run: Run,
) -> None:
    rng = random.Random(SEED * THREADS + number)  # noqa: S311 - pauses, no secrets
    while not end.is_set():
        time.sleep(rng.expovariate(1 / PAUSE_S))
        counted, began, failed = bad.is_set(), time.perf_counter(), None
        try:
            coll.find_one()
        except PyMongoError as error:
            failed = type(error).__name__
        seconds = time.perf_counter() - began
        if counted:
            run.times_ms.append(seconds * 1000)
            if failed is not None:
                run.errors[failed] += 1


def measure(
    servers: ReplicaSet,
    config: Config,
    trouble: Interception,
    seconds: float,
) -> Run:
    run, openings = Run(), Openings()
    bad, end = threading.Event(), threading.Event()
    random.seed(SEED)  # the driver's own choice among servers
    instrument(config, listeners=[openings])
    try:
        with (
            pymongo.MongoClient[Any](servers.uri, localThresholdMS=1000) as client,
            ThreadPoolExecutor(THREADS) as threads,
        ):
            coll = client.get_database("bench", read_preference=ReadPreference.NEAREST).coll
            while len(client.nodes) < len(servers.members):
                coll.find_one()
            reads = [threads.submit(read, coll, number, bad, end, run) for number in range(THREADS)]
            time.sleep(HEALTHY_S)
            servers.inject(trouble, on=SECONDARY)
            began = time.perf_counter()
            bad.set()
            time.sleep(seconds)
            end.set()
            for each in reads:
                each.result()
            run.sent_to_it = trouble.injected
            servers.clear()
    finally:
        uninstrument()
    if openings.first is not None:
        run.opened_after = openings.first - began
    return run


def configured(options: dict[str, Any]) -> Config | None:
    try:
        return Config(timeout_ms=DEADLINE_MS, metrics=False, traces=False, **options)
    except (TypeError, ConfigurationError):
        return None


def table(results: dict[tuple[str, str], Run], seconds: float) -> Table:
    made = Table(
        title=f"one bad secondary of three for {seconds:g} s, {THREADS} threads, nearest, "
        f"deadline {DEADLINE_MS} ms, pymongo {pymongo.version}"
    )
    made.add_column("it")
    made.add_column("breakers")
    for heading in ("reads", "errors", "p50 ms", "p99 ms", "sent to it", "open after s"):
        made.add_column(heading, justify="right")
    for (trouble, side), run in results.items():
        made.add_row(
            trouble,
            side,
            str(len(run.times_ms)),
            "\n".join(f"{count} {name}" for name, count in run.errors.items()) or "0",
            f"{run.percentile(0.5):.1f}",
            f"{run.percentile(0.99):.1f}",
            str(run.sent_to_it),
            "" if run.opened_after is None else f"{run.opened_after:.1f}",
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "seconds", nargs="?", type=float, default=15.0, help="how long the secondary is bad"
    )
    seconds = parser.parse_args().seconds
    # What it says of each retry is not what is measured here.
    for name in ("pymongo_resilience", "pymongo_resilience.retry"):
        logging.getLogger(name).disabled = True
    logging.getLogger("pymongo_resilience.circuit_breaker").disabled = True
    console = Console(width=120)
    results = {}
    with EmbeddedServer() as server, ReplicaSet(server.address) as servers:
        for side, options in SIDES.items():
            config = configured(options)
            if config is None:
                console.print(f"left out, since this version does not have it: {side}")
                continue
            for name, trouble in TROUBLES.items():
                results[name, side] = measure(servers, config, trouble(), seconds)
    console.print(table(dict(sorted(results.items())), seconds))


if __name__ == "__main__":
    main()
