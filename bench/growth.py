"""Whether the added cost of an operation grows with threads, tasks and known servers.

    python bench/growth.py [--bursts 40] [--json FILE]
    python bench/growth.py --instructions    callgrind counts instead: the numbers that repeat

find_one, in three states, bursts in turn. Growth is that of what is added. Where CPU is measured
it is also that of the ratio to raw, which tells of the machine: plain pymongo itself needs more
with many of them. Needs a C compiler, and the extra ``dev``; valgrind for ``--instructions``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import configurations
from bars import GROWTH, verdict
from canned import canned_server
from measuring import CPU, INSTRUCTIONS, Row, compared, measure
from workloads import FIND

MEASURED = [
    configurations.EXECUTOR,
    *(f"{configurations.OURS}, {what}" for what in (configurations.API, configurations.ON)),
]
BASE_SYNC, BASE_ASYNC = "1 thread, 1 server", "1 task, 1 server"
CASES = (
    (BASE_SYNC, False, 1, 1),
    ("8 threads", False, 8, 1),
    ("3 servers", False, 1, 3),
    ("50 servers", False, 1, 50),
    (BASE_ASYNC, True, 1, 1),
    ("1,000 tasks", True, 1000, 1),
)
"""What it is, whether it is async, how many at once, and how many servers."""
BURSTS = 40
MANY = 100
BURSTS_COUNTED_OF_MANY = 2
"""Of one process: a thousand tasks are a thousand operations in each burst, more than all others
together."""


def growth(
    *,
    instructions: bool,
    bursts: int | None = None,
    quick: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """``quick``: too little of it to tell anything."""
    rows: list[Row] = []
    if quick:
        bursts = 2
    for case, asynchronous, at_once, members in CASES[: 2 if quick else None]:
        many = instructions and at_once > MANY
        with canned_server(members, heartbeats=False) as uri:
            found = measure(
                uri,
                [FIND],
                [configurations.RAW, configurations.CONTROL, *MEASURED],
                asynchronous=asynchronous,
                at_once=at_once,
                bursts=bursts
                or (BURSTS_COUNTED_OF_MANY if many else None if instructions else BURSTS),
                processes=1 if quick or many else None,
                instructions=instructions,
            )
        rows += [{"case": case, **row} for row in found]
        progress(case)
    return {"unit": INSTRUCTIONS if instructions else CPU, "rows": rows}


def growing(rows: list[Row]) -> list[Row]:
    """For each case and state what is added, and how it grew from the first case of its side."""
    cases: dict[str, list[Row]] = {}
    for row in rows:
        cases.setdefault(row["case"], []).append(row)
    base: dict[tuple[str, str], Row] = {}
    made = []
    for some in cases.values():
        for row in compared(some):
            if row["state"] == configurations.RAW:
                continue
            first = base.setdefault((row["side"], row["state"]), row)
            more: Row = (
                {}
                if first is row
                else {
                    "growth": row["added"] / first["added"] - 1,
                    "growth_of_ratio": (1 + row["of_raw"]) / (1 + first["of_raw"]) - 1,
                }
            )
            made.append(row | more)
    return made


def judged(row: Row) -> str:
    """The control has no added cost that could grow."""
    if "growth" not in row or row["state"] == configurations.CONTROL:
        return ""
    return verdict(row["growth"], GROWTH, f"<= {GROWTH:.0%}")


def show(rows: list[Row], unit: str) -> None:
    from rich.console import Console
    from rich.table import Table

    made = Table(title=f"find_one, {unit} per operation", title_justify="left")
    for heading in ("", ""):
        made.add_column(heading)
    for heading in ("added", "of raw", "growth", "of the ratio", "bar"):
        made.add_column(heading, justify="right")
    for row in growing(rows):
        grew = "growth" in row and row["state"] != configurations.CONTROL
        made.add_row(
            row["case"],
            row["state"],
            f"{row['added']:+.1f}",
            f"{row['of_raw']:+.1%}",
            f"{row['growth']:+.1%}" if grew else "",
            f"{row['growth_of_ratio']:+.1%}" if grew else "",
            judged(row),
        )
    Console(width=120).print(made)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bursts", type=int, help="of each process")
    parser.add_argument("--instructions", action="store_true", help="count with callgrind")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    found = growth(
        instructions=given.instructions,
        bursts=given.bursts,
        progress=lambda case: print(f"{case}: measured", flush=True),
    )
    show(found["rows"], found["unit"])
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
