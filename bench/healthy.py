"""What a healthy operation costs: CPU of the client, in each state, beside pymongo and others.

    python bench/healthy.py [--workloads find_one,cursor] [--sides sync,async] [--bursts 60]
            [--states 'executor alone;ours, API only'] [--json FILE]
    python bench/healthy.py --instructions    callgrind counts instead: the numbers that repeat

A process for each state, a server of canned replies on another core, bursts in turn; what counts
is the lower quartile. Of instructions it is the least of a process, and of three processes the
median. Needs a C compiler, and the extra ``dev``; valgrind for ``--instructions``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import configurations
from bars import judged
from canned import canned_server
from measuring import (
    CPU,
    INSTRUCTIONS,
    SIDES,
    Row,
    chosen_from,
    compared,
    groups,
    measure,
    versions,
)
from workloads import CURSORS, WORKLOADS

STATES_HELP = "separated by semicolons; raw is always there"


def healthy(
    *,
    instructions: bool,
    workloads: list[str] | None = None,
    sides: list[str] | None = None,
    chosen: list[str] | None = None,
    bursts: int | None = None,
    processes: int | None = None,
    progress: Callable[[list[Row]], None] = lambda _: None,
) -> dict[str, Any]:
    """What the rows mean and the rows; ``progress`` is called with those of a side as they come."""
    rows: list[Row] = []
    with canned_server(heartbeats=False) as uri:
        for side in sides or SIDES:
            found = measure(
                uri,
                workloads or list(WORKLOADS),
                list(dict.fromkeys([configurations.RAW, *(chosen or configurations.STATES)])),
                asynchronous=side == SIDES[True],
                bursts=bursts,
                processes=processes,
                instructions=instructions,
            )
            progress(found)
            rows += found
    return {"unit": INSTRUCTIONS if instructions else CPU, "rows": rows}


def show(rows: list[Row], unit: str) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=120)
    for group in groups(rows):
        title = f"{group[0]['workload']}, {group[0]['side']}, {unit} per operation"
        made = Table(title=title, title_justify="left")
        made.add_column("")
        for heading in ("lower quartile", "median", "upper", "added", "of raw", "of contrib's"):
            made.add_column(heading, justify="right")
        made.add_column("bar", justify="right")
        for row in compared(group):
            ratio = row.get("of_contrib")
            made.add_row(
                row["state"],
                *(f"{each:.1f}" for each in row["quartiles"]),
                f"{row['added']:+.1f}",
                f"{row['of_raw']:+.1%}",
                "" if ratio is None else f"{ratio:.2f}",
                judged(row),
            )
        console.print(made)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = (*WORKLOADS, *CURSORS[1:])
    parser.add_argument(
        "--workloads", help=f"of {', '.join(every)}; the first {len(WORKLOADS)} if not given"
    )
    parser.add_argument("--sides", default="all", help=f"of {', '.join(SIDES)}")
    parser.add_argument("--states", default="all", help=STATES_HELP)
    parser.add_argument("--bursts", type=int, help="of each process")
    parser.add_argument("--processes", type=int, help="for each state, one after the other")
    parser.add_argument("--instructions", action="store_true", help="count with callgrind")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    workloads = given.workloads and chosen_from(given.workloads, every, "workload")
    sides = chosen_from(given.sides, SIDES, "side")
    chosen = chosen_from(given.states, configurations.STATES, "state", ";")
    unit = INSTRUCTIONS if given.instructions else CPU
    print(", ".join(f"{name} {number}" for name, number in versions().items()))
    found = healthy(
        instructions=given.instructions,
        workloads=workloads,
        sides=sides,
        chosen=chosen,
        bursts=given.bursts,
        processes=given.processes,
        progress=lambda rows: show(rows, unit),
    )
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
