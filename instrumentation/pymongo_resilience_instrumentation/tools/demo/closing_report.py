"""The end of the demonstration: a table, one trace as a tree, and the verdict."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group
from rich.panel import Panel
from rich.text import Text
from rich.tree import Tree

from pymongo_resilience_instrumentation.telemetry import semconv

from .contenders import Side
from .live_view import milliseconds, sides_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from .result import Result
    from .tally import Branch

_WIDTH: Final = 116
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


def report(result: Result) -> RenderableType:
    """All of it, for a console of any width from 100 on."""
    parts: list[RenderableType] = [
        sides_table(result.tally, result.balances),
    ]
    final_message = result.final_messages[Side.OURS]
    if final_message.trace is not None:
        title = f"One retried operation of {Side.OURS.title}, phase {final_message.trace_phase!r}"
        parts += [Text(), Text(title, style="bold"), tree(final_message.trace), Text()]
    parts += [Text(f"note from {side.title}: {note}") for side, note in _notes(result)]
    style = "red" if result.problems() else "green"
    parts.append(Panel("\n".join(result.verdict()), title="verdict", border_style=style))
    return Group(*parts)


def tree(operation: Branch) -> Tree:
    """A trace with the start and the duration of each span, and the retries in between."""
    root = Tree(_line(operation))
    for branch in operation.below:
        root.add(_line(branch))
    return root


def _line(branch: Branch) -> Text:
    is_span = branch.seconds is not None
    line = Text()
    line.append(branch.name, "bold" if is_span else "yellow")
    line.append(f"  at {milliseconds(branch.start)}", "dim")
    if branch.seconds is not None:
        line.append(f"  took {milliseconds(branch.seconds)}", "cyan")
        line.append("  failed" if branch.failed else "  ok", "red" if branch.failed else "green")
    for name, value in branch.attributes.items():
        if name in _LABELS:
            line.append("  " + _LABELS[name](value), "dim")
    return line


def _notes(result: Result) -> list[tuple[Side, str]]:
    return [(side, note) for side in Side for note in result.final_messages[side].notes]


def save_svg(result: Result, path: str) -> None:
    """Draw the report as a picture; raises ``OSError`` where the file cannot be written."""
    canvas = Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True)
    canvas.print(report(result))
    canvas.save_svg(path, title="pymongo-resilience demo")
