"""The table of the three sides: in the live picture while it fills, in the report complete."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from .contenders import Side
from .timeline import TIMELINE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .ledger import Balance
    from .tally import Record, Tally

_NOTE = (
    "Retries: failed attempts that were tried again, by the driver, the loop or the library. "
    "On our side by the library's own reasons, elsewhere by the server's code names and the "
    "driver's exception classes."
)


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
