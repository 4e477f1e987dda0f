"""What a person sees while the demonstration runs: a live picture, or plain lines."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from .contenders import Side
from .tables import phase_cell, sides_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from .tally import Tally
    from .timeline import Phase

_REFRESHES_PER_SECOND = 5


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
