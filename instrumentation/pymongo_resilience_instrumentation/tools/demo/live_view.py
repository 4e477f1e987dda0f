"""What a person sees of the demonstration: the table of the three sides, live while it fills."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .contenders import Side
from .fault_script import TIMELINE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import RenderableType

    from .fault_script import Phase
    from .tally import Record, Tally
    from .workload import Balance

_REFRESHES_PER_SECOND = 5
_NOTE = (
    "Retries: failed attempts that were tried again, by the driver, the loop or the library. "
    "On our side by the library's own reasons, elsewhere by the server's code names and the "
    "driver's exception classes."
)


class Display(Protocol):
    """Shows each phase; the numbers are in the tally."""

    def begin(self, phase: Phase) -> None:
        """A phase begins."""

    def end(self, phase: Phase) -> None:
        """A phase is over."""


class _Picture:
    """Drawn anew several times a second, by a thread of rich."""

    def __init__(self, tally: Tally, seconds: float) -> None:
        self._tally = tally
        self._seconds = seconds
        self._started = time.monotonic()

    def begin(self, phase: Phase) -> None: ...

    def end(self, phase: Phase) -> None: ...

    def __rich__(self) -> RenderableType:
        elapsed = time.monotonic() - self._started
        head = Text(f"{elapsed:5.1f} of about {self._seconds:g} s   ", style="bold")
        head.append(self._tally.phase or "starting", style="bold cyan")
        bar = ProgressBar(total=self._seconds, completed=min(elapsed, self._seconds))
        return Group(head, bar, sides_table(self._tally))


class _Lines:
    """One line per phase and side, for logs and pipes."""

    def __init__(self, tally: Tally, console: Console) -> None:
        self._tally = tally
        self._console = console

    def begin(self, phase: Phase) -> None: ...

    def end(self, phase: Phase) -> None:
        for side in Side:
            cell = phase_cell(self._tally.of(side, phase.name)).plain.strip()
            self._console.print(f"{phase.name:<14} {side.title:<19} {cell}", highlight=False)


@contextlib.contextmanager
def shown(tally: Tally, seconds: float, console: Console) -> Iterator[Display]:
    """Show the tally while the block runs: live on a terminal, otherwise in lines."""
    if not console.is_terminal:
        yield _Lines(tally, console)
        return
    picture = _Picture(tally, seconds)
    with Live(picture, console=console, refresh_per_second=_REFRESHES_PER_SECOND, transient=True):
        yield picture


def sides_table(tally: Tally, balances: Mapping[Side, Balance] | None = None) -> Table:
    """One column per side; with duplicated and lost writes once the ledger was read."""
    table = Table(box=SIMPLE_HEAD, caption=_NOTE, caption_justify="left")
    table.add_column(overflow="ellipsis", no_wrap=True)
    for side in Side:
        table.add_column(side.title)
    for phase in TIMELINE:
        running = phase.name == tally.phase
        name = Text(("> " if running else "  ") + phase.name, style="bold" if running else "")
        cells = [phase_cell(tally.of(side, phase.name)) for side in Side]
        table.add_row(name, *cells, end_section=phase is TIMELINE[-1])
    records = [tally.of(side) for side in Side]
    table.add_row("operations", *(str(record.operations) for record in records))
    table.add_row("errors seen", *(_bad(record.errors.total()) for record in records))
    if balances is not None:
        table.add_row("duplicated writes", *(_bad(balances[side].duplicated) for side in Side))
        table.add_row("lost writes", *(_bad(balances[side].lost) for side in Side))
    for label, share in (("p50", 0.5), ("p99", 0.99)):
        table.add_row(label, *(milliseconds(record.quantile(share)) for record in records))
    table.add_section()
    table.add_row("retries", *(str(record.repeated.total()) for record in records))
    for reason in sum((record.repeated for record in records), Counter()):
        counts = (record.repeated[reason] for record in records)
        table.add_row(f"  {reason}", *(str(count or "-") for count in counts))
    return table


def phase_cell(record: Record) -> Text:
    """What happened in one phase on one side."""
    if not record.operations:
        return Text("-", style="dim")
    errors, repeated = record.errors.total(), record.repeated.total()
    cell = Text(f"{record.operations} ops")
    if errors:
        cell.append(", ").append(f"{errors} error" + "s" * (errors > 1), "bold red")
    if repeated:
        cell.append(", ").append(f"{repeated} retr" + ("y" if repeated == 1 else "ies"), "yellow")
    return cell


def milliseconds(seconds: float) -> str:
    """A duration (seconds) for people; a dash for none."""
    return "-" if math.isnan(seconds) else f"{seconds * 1000:.1f} ms"


def _bad(number: int) -> Text:
    return Text(str(number), style="bold red" if number else "green")
