"""What one operation does in a fault: plain pymongo, its own timeoutMS, and this library.

    python bench/faults.py [--write] [--runs 3]

Prints the table of README.md; ``--write`` writes it there. Each side runs in its own process, and
each fault meets a new client. Durations are medians. Needs the extra ``testbed``.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

from pymongo import InsertOne, MongoClient, UpdateOne
from pymongo.collection import Collection
from pymongo.errors import PyMongoError
from pymongo.monitoring import CommandListener, CommandStartedEvent

from pymongo_resilience import instrument
from pymongo_resilience.testbed import (
    CutAfter,
    CutAtHandshake,
    Fault,
    NotPrimary,
    Overload,
    ReplicaSet,
    SilentPrimary,
)

README: Final = Path(__file__).parent.parent / "README.md"
BEGIN: Final = "<!-- faults: begin (written by `python bench/faults.py --write`) -->\n"
END: Final = "<!-- faults: end -->\n"
SIDES: Final = {
    "plain": "plain pymongo",
    "timeout": "pymongo, `timeoutMS=20000`",
    "ours": "this library, 20 s",
}
DEADLINE_MS: Final = 20_000
LASTING: Final = 2.0
"""How long a fault lasts that ends by itself (seconds)."""
ENDLESS: Final = 1_000_000
SHOWN_IN_SECONDS: Final = 10
"""Shorter durations are shown in milliseconds."""
FIRST: Final = {"_id": 1}

Document = dict[str, Any]
Orders = Collection[Document]


@dataclass(frozen=True)
class Row:
    """One fault, and the one operation that meets it."""

    name: str
    run: Callable[[Orders], object]
    faults: Callable[[], list[Fault]] = list
    is_applied: Callable[[Document], bool] = lambda _: True
    """Whether the document shows everything that a successful operation must have done."""
    counts_attempts: bool = False
    """Whether the attempts are more telling than the time."""
    options: tuple[tuple[str, Any], ...] = ()
    """Further options of the client."""
    on: Literal["all", "primary"] = "all"
    """Which members the faults hit."""
    has_server: bool = True
    """Whether the client finds a server. If not, the operation takes up to half a minute."""


def _bulk(orders: Orders) -> None:
    orders.bulk_write([InsertOne({}), UpdateOne(FIRST, {"$inc": {"n": 1}})])


def _increment(orders: Orders) -> None:
    orders.update_one(FIRST, {"$inc": {"n": 1}})


def _once(found: Document) -> bool:
    return bool(found["n"] == 1)


ROWS: Final = (
    Row(
        "a mixed `bulk_write` whose connection is cut at the handshake",
        _bulk,
        lambda: [CutAtHandshake()],
        _once,
        # The cut must not hit a monitor: a streaming one makes a second connection, and those of
        # the secondaries may still connect.
        options=(("serverMonitoringMode", "poll"),),
        on="primary",
    ),
    Row(
        "an `update_one` that loses three replies in a row",
        _increment,
        lambda: [CutAfter("update", times=3)],
        _once,
    ),
    Row(
        "an `update_many` of one `_id`, as sent by Django's `save()`, that loses a reply",
        lambda orders: orders.update_many(FIRST, {"$inc": {"n": 1}}),
        lambda: [CutAfter("update")],
        _once,
    ),
    Row(
        'a server that answers "not primary" for two seconds',
        _increment,
        lambda: [NotPrimary(times=ENDLESS)],
        _once,
        counts_attempts=True,
    ),
    Row(
        "a primary that falls silent for two seconds while another one is elected",
        _increment,
        lambda: [SilentPrimary(LASTING, gap=0.2)],
        _once,
    ),
    Row(
        "three rejections in a row by an overloaded server",
        _increment,
        lambda: [Overload("update", times=3)],
        _once,
    ),
    Row(
        "a wrong replica set name in the URI",
        lambda orders: orders.find_one(),
        options=(("replicaSet", "other"),),
        has_server=False,
    ),
)


class _Attempts(CommandListener):
    """Counts the commands of the operation."""

    def __init__(self) -> None:
        self.count = 0

    def started(self, event: CommandStartedEvent) -> None:  # noqa: ARG002 - only counted
        self.count += 1

    def _ignore(self, event: Any) -> None:
        """Not needed here."""

    succeeded = failed = _ignore


def meet(row: Row, replica_set: ReplicaSet, options: Document) -> Document:
    """Run the operation of a row once, and report how it ended."""
    attempts = _Attempts()
    with MongoClient[Document](replica_set.uri) as direct:
        direct.shop.orders.replace_one(FIRST, {"n": 0}, upsert=True)
    with MongoClient[Document](
        replica_set.uri, event_listeners=[attempts], **options, **dict(row.options)
    ) as client:
        if row.has_server:
            # Wait for the primary, so that the operation makes the first connection of the pool.
            _ = client.address
        for fault in row.faults():
            replica_set.inject(fault, on=row.on)
        end = threading.Timer(LASTING, replica_set.clear)
        end.start()
        began = time.perf_counter()
        error = ""
        try:
            row.run(client.shop.orders)
        except PyMongoError as exc:
            error = type(exc).__name__
        seconds = time.perf_counter() - began
        end.cancel()
        end.join()
        replica_set.clear()
    with MongoClient[Document](replica_set.uri) as direct:
        found = direct.shop.orders.find(FIRST).next()
    is_lost = not error and not row.is_applied(found)
    return {"error": error, "lost": is_lost, "seconds": seconds, "attempts": attempts.count}


def play(side: str, runs: int, *, is_quick: bool) -> list[list[Document]]:
    """Play all rows on one side. The slow ones run once, or not at all if it must be quick."""
    logging.disable(logging.ERROR)
    if side == "ours":
        instrument(timeout_ms=DEADLINE_MS)
    options = {"timeoutMS": DEADLINE_MS} if side == "timeout" else {}
    with ReplicaSet() as replica_set:
        return [
            [meet(row, replica_set, options) for _ in range(runs if row.has_server else 1)]
            for row in ROWS
            if row.has_server or not is_quick
        ]


def cell(row: Row, met: Sequence[Document]) -> str:
    """How the operation ended, the same in every run, and what it took."""
    endings = {(each["error"], each["lost"]) for each in met}
    if len(endings) > 1:
        return f"not always the same: {sorted(endings)}"
    ((error, lost),) = endings
    if lost:
        return "**reports success, but never sends the update**"
    seconds = median(each["seconds"] for each in met)
    took = f"{seconds:.0f} s" if seconds >= SHOWN_IN_SECONDS else f"{seconds * 1000:,.0f} ms"
    if row.counts_attempts:
        took = f"{round(median(each['attempts'] for each in met)):,} attempts"
    return f"`{error}`, {took}" if error else f"works, {took}"


def table(runs: int = 3, *, is_quick: bool = False) -> str:
    """The table as Markdown; a quick one leaves the slow rows out."""
    met = {}
    for side in SIDES:
        command = [sys.executable, __file__, "--side", side, "--runs", str(runs)]
        done = subprocess.run(  # noqa: S603 - this file
            [*command, *(["--quick"] if is_quick else [])],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        met[side] = json.loads(done.stdout)
    lines = ["| fault | " + " | ".join(SIDES.values()) + " |", "|---|" + "---|" * len(SIDES)]
    shown = [row for row in ROWS if row.has_server or not is_quick]
    for number, row in enumerate(shown):
        cells = [cell(row, met[side][number]) for side in SIDES]
        lines.append(f"| {row.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3, help="how often each fault is played")
    parser.add_argument("--quick", action="store_true", help="without what takes half a minute")
    parser.add_argument("--write", action="store_true", help="write the table into README.md")
    parser.add_argument("--side", choices=list(SIDES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(play(options.side, options.runs, is_quick=options.quick)))
        return
    made = table(options.runs, is_quick=options.quick)
    print(made)
    if options.write:
        before, rest = README.read_text().split(BEGIN)
        _, after = rest.split(END)
        README.write_text(before + BEGIN + made + END + after)


if __name__ == "__main__":
    main()
