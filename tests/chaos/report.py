"""What the chaos runs found, as a table and as JSON."""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lengths import SEED
from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from campaign import Result

_WIDTH: Final = 200

RESULTS: list[Result] = []
"""Of this session, in the order of the runs."""


def row(result: Result) -> dict[str, Any]:
    """The figures of one run."""
    durations = sorted(result.journal.durations)
    balance, recovery = result.balance, result.recovery
    return {
        "run": result.title,
        "side": result.side.value,
        "api": result.api.value,
        "operations": len(durations),
        "strikes": result.strikes,
        "acts": sum(result.faults.values()),
        "repeats": result.repeats,
        "lost": len(balance.lost),
        "doubled": len(balance.doubled),
        "torn": len(balance.torn) + len(balance.unknown),
        "wrong": len(result.journal.wrong),
        "errors": sum(result.journal.errors.values()),
        "applied, raised": balance.applied_though_raised,
        "p50 s": round(_share(durations, 0.5), 3),
        "p99 s": round(_share(durations, 0.99), 3),
        "longest s": round(_share(durations, 1.0), 3),
        "recovery s, first": None if recovery is None else round(recovery.first, 3),
        "last": None if recovery is None else round(recovery.last, 3),
    }


def tables() -> list[str]:
    """The runs of this session line by line: their figures, what was injected and what raised."""
    if not RESULTS:
        return []
    rows = [row(result) for result in RESULTS]
    figures = Table(title=f"the ledger, seed {SEED}", box=box.SIMPLE)
    for name in rows[0]:
        figures.add_column(name, justify="left" if name in {"run", "side", "api"} else "right")
    for each in rows:
        figures.add_row(*("" if value is None else str(value) for value in each.values()))
    details = Table(
        title="faults injected, and errors that reached the application", box=box.SIMPLE
    )
    for name in ("run", "side", "api", "faults", "errors"):
        details.add_column(name)
    for result in RESULTS:
        faults, errors = _counted(result.faults), _counted(result.journal.errors)
        details.add_row(result.title, result.side, result.api, faults, errors)
    return [_text(figures), _text(details)]


def write_json() -> None:
    """Write all figures to the file that ``CHAOS_JSON`` names, if it names one."""
    path = os.environ.get("CHAOS_JSON")
    if not path:
        return
    runs = [
        row(result)
        | {"faults by kind": result.faults, "errors by kind": dict(result.journal.errors)}
        | {"samples": result.journal.samples}
        for result in RESULTS
    ]
    Path(path).write_text(json.dumps({"seed": SEED, "runs": runs}, indent=2) + "\n")


def _text(table: Table) -> str:
    console = Console(width=_WIDTH, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


def _share(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def _counted(counts: dict[str, int] | Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"
