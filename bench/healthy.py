"""What a healthy operation costs: CPU of the client, in each state, beside pymongo and others.

    python bench/healthy.py [--workloads find_one,cursor] [--sides sync,async] [--bursts 60]
            [--states 'executor alone;ours, API only'] [--json FILE]
    python bench/healthy.py --instructions    callgrind counts instead: the numbers that repeat

One process for each state, a server of canned replies on another core, bursts in turn; what counts
is the lower quartile. Needs a C compiler, and the extra ``dev``.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import pymongo
import states
from bars import judged
from bursts import Spec, interleaved, quartiles, workers
from canned import canned_server
from rich.console import Console
from rich.table import Table
from workloads import CURSOR, WORKLOADS

OPERATIONS = 150
"""Of a burst; a tenth where one of them is a cursor with ten batches."""
OPERATIONS_COUNTED = 10
BURSTS_COUNTED = 20

Row = dict[str, Any]


def measure(
    uri: str,
    workload: str,
    chosen: list[str],
    *,
    asynchronous: bool = False,
    at_once: int = 1,
    bursts: int = 60,
    instructions: bool = False,
) -> list[Row]:
    """A row for each state: quartiles of what one operation takes, scaled as in the table."""
    count = OPERATIONS_COUNTED if instructions else OPERATIONS
    warm_up = 2 * count
    if workload == CURSOR:
        count //= 10
    count = max(at_once, count)
    specs = [
        Spec(state, uri, workload, asynchronous, at_once, max(at_once, warm_up)) for state in chosen
    ]
    with workers(specs, instructions=instructions) as begun:
        costs = interleaved(begun, bursts=BURSTS_COUNTED if instructions else bursts, count=count)
    scale = 1e-3 if instructions else 1e6
    return [
        {
            "workload": workload,
            "side": "async" if asynchronous else "sync",
            "at_once": at_once,
            "state": state,
            "quartiles": [scale * each for each in quartiles(cost)],
        }
        for state, cost in zip(chosen, costs, strict=True)
    ]


def compared(rows: list[Row]) -> list[Row]:
    """The same rows with what each adds to raw, as ratios: to raw, and to what contrib adds."""
    low = {row["state"]: row["quartiles"][0] for row in rows}
    raw = low[states.RAW]
    for row in rows:
        who, *what = row["state"].split(", ")
        row["added"] = row["quartiles"][0] - raw
        row["of_raw"] = row["added"] / raw
        contrib = low.get(f"{states.CONTRIB}, {what[0]}") if what else None
        if who == states.OURS and contrib is not None:
            row["of_contrib"] = row["added"] / (contrib - raw)
    return rows


def table(rows: list[Row], unit: str) -> Table:
    first = rows[0]
    title = f"{first['workload']}, {first['side']}, {unit} per operation"
    made = Table(title=title, title_justify="left")
    made.add_column("")
    for heading in ("lower quartile", "median", "upper", "added", "of raw", "of contrib's", "bar"):
        made.add_column(heading, justify="right")
    for row in rows:
        ratio = row.get("of_contrib")
        made.add_row(
            row["state"],
            *(f"{each:.1f}" for each in row["quartiles"]),
            f"{row['added']:+.1f}",
            f"{row['of_raw']:+.1%}",
            "" if ratio is None else f"{ratio:.2f}",
            judged(row),
        )
    return made


def chosen_from(text: str, of: tuple[str, ...], separator: str = ",") -> list[str]:
    names = list(of) if text == "all" else text.split(separator)
    unknown = set(names) - set(of)
    if unknown:
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(of)}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default="all")
    parser.add_argument("--sides", default="all")
    parser.add_argument(
        "--states", default="all", help="separated by semicolons; raw is always there"
    )
    parser.add_argument("--bursts", type=int, default=60)
    parser.add_argument("--instructions", action="store_true", help="count with callgrind")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    chosen = chosen_from(given.states, states.STATES, ";")
    chosen = list(dict.fromkeys([states.RAW, *chosen]))
    unit = "thousand instructions" if given.instructions else "us CPU"
    console = Console(width=120)
    console.print(f"pymongo {pymongo.version}, Python {platform.python_version()}")
    gathered: list[Row] = []
    with canned_server() as uri:
        for workload in chosen_from(given.workloads, WORKLOADS):
            for side in chosen_from(given.sides, ("sync", "async")):
                rows = compared(
                    measure(
                        uri,
                        workload,
                        chosen,
                        asynchronous=side == "async",
                        bursts=given.bursts,
                        instructions=given.instructions,
                    )
                )
                console.print(table(rows, unit))
                gathered += rows
    if given.json is not None:
        given.json.write_text(json.dumps({"unit": unit, "rows": gathered}, indent=1) + "\n")


if __name__ == "__main__":
    main()
