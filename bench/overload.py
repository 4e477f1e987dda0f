"""What an overloaded server gets done, by how its clients retry what it rejects.

    python bench/overload.py [--seed N] [--json FILE] [--svg FILE] [--slower N] [--quick]

Clients in two processes, async and sync, send as much as a server admits and more, in an open
loop. The server rejects like MongoDB's ingress request rate limiter. Then the bars: goodput beside
pymongo without retries, servers that become Unknown, blips, a server that pays for rejections,
random rejections, the time to be normal after a pulse, a restart, errors of bursts. Takes about
25 minutes; ``--quick`` only shows that everything runs. Needs the extra ``bench``, and Linux.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import overload_bars as bars
import overload_runs as runs
import pymongo
from overload_bars import Bar, Point
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator


def table_of(points: list[Point]) -> Table:
    made = Table(title=f"a server under load, pymongo {pymongo.version}")
    made.add_column("load", justify="right")
    made.add_column("")
    for heading in (
        *("cold", "warm", "attempts", "errors", "p99 ms", "unknown", "handshakes rejected"),
        *("first ms", "client CPU", "late ms"),
    ):
        made.add_column(heading, justify="right")
    for index, each in enumerate(points):
        made.add_row(
            f"{each.load:g}",
            each.side,
            f"{each.cold:.1%}",
            f"{each.goodput:.1%}",
            f"{each.attempts:.2f}",
            f"{each.errors:.1%}",
            "-" if each.p99_ms is None else f"{each.p99_ms:.0f}",
            str(each.unknown),
            str(each.rejected_handshakes),
            "failed" if each.first_ms is None else f"{each.first_ms:.0f}",
            f"{each.busy:.0%}",
            f"{each.late_ms:.0f}",
            end_section=index + 1 == len(points) or points[index + 1].load != each.load,
        )
    return made


VERDICTS = {True: "met", False: "MISSED", None: ""}


def table_of_bars(some: list[Bar]) -> Table:
    made = Table(title="bars", show_lines=True)
    for heading in ("", "bar", "measured", ""):
        made.add_column(heading)
    for each in some:
        made.add_row(each.what, each.bar, each.measured, VERDICTS[each.met])
    return made


def asked_for() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=8)
    parser.add_argument("--json", type=Path, help="write what was measured")
    parser.add_argument("--svg", type=Path, help="draw it")
    parser.add_argument("--slower", type=float, help="how much slower the burst is; default 4")
    parser.add_argument("--quick", action="store_true", help="so small that the bars mean little")
    return parser.parse_args()


def main() -> None:
    asked = asked_for()
    sizes = runs.QUICK if asked.quick else runs.Sizes()
    if asked.slower is not None:
        sizes = replace(sizes, slower=asked.slower)
    # Every process is forked from one that has imported what they need, and nothing else.
    multiprocessing.set_forkserver_preload(["overload_clients", "overload_server"])
    console = Console(width=120)
    could = runs.closed_loop(sizes)
    console.print(
        f"seed {asked.seed}; {sizes.processes * sizes.clients} clients in {sizes.processes} "
        f"processes; a server of {sizes.capacity:g} requests/s; the same clients and server could "
        f"do {could:.0f} operations/s on these {os.cpu_count()} cores"
    )
    points = []
    for load in sizes.loads:
        for side in runs.sides(sizes):
            points.append(bars.point(sizes, load, side, asked.seed))
            console.print(f"{load:g} times the capacity, {side.name}: measured", style="dim")
    found: list[Bar] = []
    # Written again after each bar: what was measured survives an interruption.
    for bar in measured_bars(points, sizes, asked.seed):
        found.append(bar)
        if asked.json is not None:
            save(asked.json, seed=asked.seed, sizes=sizes, could=could, points=points, found=found)
        console.print(f"{bar.what}: {bar.measured}", style="dim")
    console.print(table_of(points))
    console.print(table_of_bars(found))
    console.print("load average", *(f"{each:.2f}" for each in os.getloadavg()))
    if asked.svg is not None:
        from overload_figure import draw

        draw([asdict(each) for each in points], asked.svg)


def save(
    file: Path, *, seed: int, sizes: runs.Sizes, could: float, points: list[Point], found: list[Bar]
) -> None:
    measured = {
        "pymongo": pymongo.version,
        "seed": seed,
        "sizes": asdict(sizes),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "could_do": could,
        "points": [asdict(each) for each in points],
        "bars": [asdict(each) for each in found],
    }
    file.write_text(json.dumps(measured, indent=2) + "\n")


def measured_bars(points: list[Point], sizes: runs.Sizes, seed: int) -> Iterator[Bar]:
    yield from bars.goodput(points)
    yield from bars.steadiness(points)
    yield from bars.blips(sizes, seed)
    yield from bars.costly(sizes, seed)
    yield bars.random_rejections(sizes, seed)
    yield bars.recovery(sizes, seed)
    yield from bars.restarts(sizes, seed)
    yield bars.attempts_when_rejected(sizes, seed)
    for clients in (sizes.burst_operations, sizes.processes * sizes.clients):
        yield bars.errors_of_bursts(sizes, seed, clients)


if __name__ == "__main__":
    main()
