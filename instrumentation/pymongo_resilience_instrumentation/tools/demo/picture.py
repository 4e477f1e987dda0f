"""What a person sees: lines after each phase; a table of the sides, a trace, the verdict."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from pymongo_resilience_instrumentation.telemetry import semconv

from .fault_script import TIMELINE
from .result import Branch, Record, Result, Side, Tally
from .workload import Balance

_WIDTH: Final = 116


def milliseconds(seconds: float) -> str:
    """A duration (seconds) for people; a dash for none."""
    return "-" if math.isnan(seconds) else f"{seconds * 1000:.1f} ms"


_LABELS: Final[dict[str, Callable[[str], str]]] = {
    semconv.TXN_NUMBER: "txnNumber {}".format,
    semconv.EXCEPTION_TYPE: lambda name: name.rpartition(".")[2],
    semconv.ATTEMPTS: "{} attempts".format,
    semconv.OUTCOME: str,
    semconv.DEADLINE: "deadline {} s".format,
    semconv.REASON: str,
    semconv.DELAY: lambda delay: f"delay {milliseconds(float(delay))}",
    semconv.RULE: str,
}
"""How a span's attributes read, in a few words."""


def phase_lines(tally: Tally, phase: str) -> str:
    cells = {side: _phase_cell(tally.of(side, phase)).plain.strip() for side in Side}
    return "\n".join(f"{phase:<14} {side.title:<19} {cell}" for side, cell in cells.items())


def _sides_table(tally: Tally, balances: Mapping[Side, Balance]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column(overflow="ellipsis", no_wrap=True)
    for side in Side:
        table.add_column(side.title)
    for phase in TIMELINE:
        cells = [_phase_cell(tally.of(side, phase.name)) for side in Side]
        table.add_row(f"  {phase.name}", *cells, end_section=phase is TIMELINE[-1])
    records = [tally.of(side) for side in Side]
    table.add_row("operations", *(str(record.operations) for record in records))
    table.add_row("errors seen", *(_bad(record.errors.total()) for record in records))
    table.add_row("duplicated writes", *(_bad(balances[side].duplicated) for side in Side))
    table.add_row("lost writes", *(_bad(balances[side].lost) for side in Side))
    for label, share in (("p50", 0.5), ("p99", 0.99)):
        table.add_row(label, *(milliseconds(record.quantile(share)) for record in records))
    table.add_section()
    retries = tally.of(Side.OURS).repeated
    table.add_row("retries of the library", "", "", str(retries.total()))
    for reason, count in retries.items():
        table.add_row(f"  {reason}", "", "", str(count))
    return table


def _phase_cell(record: Record) -> Text:
    if not record.operations:
        return Text("-", style="dim")
    errors, repeated = record.errors.total(), record.repeated.total()
    cell = Text(f"{record.operations} ops")
    if errors:
        cell.append(", ").append(f"{errors} error" + "s" * (errors > 1), "bold red")
    if repeated:
        cell.append(", ").append(f"{repeated} retr" + ("y" if repeated == 1 else "ies"), "yellow")
    return cell


def _bad(number: int) -> Text:
    return Text(str(number), style="bold red" if number else "green")


def report(result: Result) -> RenderableType:
    """Table, trace and verdict, for a console of any width from 100 on."""
    parts: list[RenderableType] = [_sides_table(result.tally, result.balances)]
    if result.trace:
        title = f"One retried operation of {Side.OURS.title}"
        tree = Tree(_line(result.trace[0]))
        for branch in result.trace[1:]:
            tree.add(_line(branch))
        parts += [Text(), Text(title, style="bold"), tree, Text()]
    style = "red" if result.problems() else "green"
    parts.append(Panel("\n".join(result.verdict()), title="verdict", border_style=style))
    return Group(*parts)


def _line(branch: Branch) -> Text:
    """The start and the duration of a span, or an event between them."""
    line = Text()
    line.append(branch.name, "yellow" if branch.seconds is None else "bold")
    line.append(f"  at {milliseconds(branch.start)}", "dim")
    if branch.seconds is not None:
        line.append(f"  took {milliseconds(branch.seconds)}", "cyan")
        line.append("  failed" if branch.failed else "  ok", "red" if branch.failed else "green")
    for name, value in branch.attributes.items():
        if name in _LABELS:
            line.append("  " + _LABELS[name](value), "dim")
    return line


def save_svg(result: Result, path: str) -> None:
    """Draw the report as a picture; raises ``OSError`` where the file cannot be written."""
    canvas = Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True)
    canvas.print(report(result))
    canvas.save_svg(path, title="pymongo-resilience demo")
