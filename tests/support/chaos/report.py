"""What the chaos runs found, as a table and as JSON."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from support.chaos.lengths import SEED

if TYPE_CHECKING:
    from support.chaos.ledger_run import Result

_WIDTH: Final = 200

Row = dict[str, Any]
RESULTS: list[Row] = []
"""Of the test that runs."""


def row(result: Result) -> Row:
    """The figures of one run, and what was injected and what raised."""
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
        "faults by kind": dict(result.faults),
        "errors by kind": dict(result.journal.errors),
        "samples": result.journal.samples,
    }


DETAILS: Final = ("faults by kind", "errors by kind", "samples")


def tables(rows: list[Row]) -> list[str]:
    """The runs of this session line by line: their figures, what was injected and what raised."""
    names = [name for name in rows[0] if name not in DETAILS]
    figures = Table(title=f"the ledger, seed {SEED}", box=box.SIMPLE)
    for name in names:
        figures.add_column(name, justify="left" if name in {"run", "side", "api"} else "right")
    for each in rows:
        figures.add_row(*("" if each[name] is None else str(each[name]) for name in names))
    details = Table(
        title="faults injected, and errors that reached the application", box=box.SIMPLE
    )
    for name in ("run", "side", "api", "faults", "errors"):
        details.add_column(name)
    for each in rows:
        faults, errors = _counted(each["faults by kind"]), _counted(each["errors by kind"])
        details.add_row(each["run"], each["side"], each["api"], faults, errors)
    return [_text(figures), _text(details)]


def write_json(rows: list[Row]) -> None:
    """Write all figures to the file that ``CHAOS_JSON`` names, if it names one."""
    path = os.environ.get("CHAOS_JSON")
    if path:
        Path(path).write_text(json.dumps({"seed": SEED, "runs": rows}, indent=2) + "\n")


def _text(table: Table) -> str:
    console = Console(width=_WIDTH, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


def _share(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"
