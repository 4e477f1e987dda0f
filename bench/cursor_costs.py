"""What iterating a cursor costs per batch and per document: cursors that differ in one of them.

    python bench/cursor_costs.py [--json FILE]

1,000 documents in ten batches, 1,000 in one and ten in one, beside a find_one. Thousands of
instructions, counted by callgrind. Needs a C compiler, valgrind, and the extra ``dev``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import configurations
from bars import BATCH, DOCUMENT, verdict
from canned import canned_server
from measuring import INSTRUCTIONS, SIDES, Row, measure
from workloads import BATCH_SIZE, CURSOR, CURSORS, DOCUMENTS, FEW, FIND, ONE_BATCH, TEN_DOCUMENTS

CHOSEN = [
    configurations.RAW,
    configurations.CONTROL,
    configurations.EXECUTOR,
    *(f"{configurations.OURS}, {what}" for what in (configurations.API, configurations.ON)),
]
BATCHES = DOCUMENTS // BATCH_SIZE


def cursors(*, quick: bool = False) -> dict[str, Any]:
    """``quick``: too little of it to tell anything."""
    rows: list[Row] = []
    with canned_server(heartbeats=False) as uri:
        for side in SIDES:
            rows += measure(
                uri,
                [FIND, *CURSORS],
                CHOSEN,
                asynchronous=side == SIDES[True],
                bursts=2 if quick else None,
                processes=1 if quick else None,
                instructions=True,
            )
    return {"unit": INSTRUCTIONS, "rows": rows}


def parts(rows: list[Row]) -> list[dict[str, Any]]:
    """For each side and state, what it adds to a find_one, to a batch and to a document."""
    cost = {(row["side"], row["state"], row["workload"]): row["cost"] for row in rows}
    found = []
    for side, state in dict.fromkeys((row["side"], row["state"]) for row in rows):
        if state == configurations.RAW:
            continue
        added = {
            each: cost[side, state, each] - cost[side, configurations.RAW, each]
            for each in (FIND, *CURSORS)
        }
        raw = (
            cost[side, configurations.RAW, ONE_BATCH]
            - cost[side, configurations.RAW, TEN_DOCUMENTS]
        )
        document = added[ONE_BATCH] - added[TEN_DOCUMENTS]
        found.append(
            {
                "side": side,
                "state": state,
                "find_one": added[FIND],
                "batch": (added[CURSOR] - added[ONE_BATCH]) / (BATCHES - 1),
                "document": document / (DOCUMENTS - FEW),
                "raw_document": raw / (DOCUMENTS - FEW),
            }
        )
    return found


def batch_judged(part: dict[str, Any]) -> str:
    """Empty for the control, which adds nothing that could be too much."""
    if part["state"] == configurations.CONTROL:
        return ""
    return verdict(part["batch"] / part["find_one"], BATCH, f"<= {BATCH:g} of find_one's")


def document_judged(part: dict[str, Any]) -> str:
    if part["state"] == configurations.CONTROL:
        return ""
    return verdict(part["document"] / part["raw_document"], DOCUMENT, f"<= {DOCUMENT:.0%} of raw's")


def show(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    made = Table(title="instructions added", title_justify="left")
    for heading in ("", "", "find_one", "a batch", "bar", "a document", "raw's document", "bar"):
        made.add_column(heading, justify="right")
    for each in parts(rows):
        made.add_row(
            each["side"],
            each["state"],
            *(f"{1000 * each[name]:,.0f}" for name in ("find_one", "batch")),
            batch_judged(each),
            *(f"{1000 * each[name]:,.0f}" for name in ("document", "raw_document")),
            document_judged(each),
        )
    Console(width=140).print(made)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    found = cursors()
    show(found["rows"])
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
