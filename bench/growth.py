"""Whether the added cost of an operation grows with threads, tasks and known servers.

    python bench/growth.py [--bursts 40] [--json FILE]

CPU of the client for find_one with and without the library, bursts in turn. Growth is that of the
ratio to raw, since plain pymongo itself needs more with more of them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import states
from bars import GROWTH, verdict
from canned import canned_server
from healthy import Row, compared, measure
from rich.console import Console
from rich.table import Table
from workloads import FIND

OURS = f"{states.OURS}, {states.API}"
CASES = (
    ("1 thread, 1 server", False, 1, 1),
    ("8 threads", False, 8, 1),
    ("3 servers", False, 1, 3),
    ("50 servers", False, 1, 50),
    ("1 task, 1 server", True, 1, 1),
    ("1,000 tasks", True, 1000, 1),
)
"""What it is, whether it is async, how many at once, and how many servers."""


def rows(bursts: int) -> list[Row]:
    found = []
    base = {False: 0.0, True: 0.0}
    for name, asynchronous, at_once, members in CASES:
        with canned_server(members) as uri:
            chosen = [states.RAW, states.CONTROL, OURS]
            raw, control, ours = compared(
                measure(
                    uri, FIND, chosen, asynchronous=asynchronous, at_once=at_once, bursts=bursts
                )
            )
        ratio = 1 + ours["of_raw"]
        base[asynchronous] = base[asynchronous] or ratio
        found.append(
            {
                "case": name,
                "raw": raw["quartiles"][0],
                "control": control["of_raw"],
                "added": ours["added"],
                "ratio": ratio,
                "growth": ratio / base[asynchronous] - 1,
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bursts", type=int, default=40)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    found = rows(given.bursts)
    made = Table(title="find_one, API only, us CPU per operation", title_justify="left")
    made.add_column("")
    for heading in ("raw", "raw again", "added", "ratio to raw", "growth", "bar"):
        made.add_column(heading, justify="right")
    for row in found:
        made.add_row(
            row["case"],
            f"{row['raw']:.1f}",
            f"{row['control']:+.1%}",
            f"{row['added']:+.1f}",
            f"{row['ratio']:.2f}",
            f"{row['growth']:+.1%}",
            verdict(row["growth"], GROWTH, f"<= {GROWTH:.0%}"),
        )
    Console(width=120).print(made)
    if given.json is not None:
        given.json.write_text(json.dumps({"rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
