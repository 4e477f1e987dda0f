"""What the span of one operation needs until the operation ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from .command_spans import SentCommand


@dataclass(slots=True, eq=False)
class SpanState:
    """The span of an operation, and the commands that were sent for it.

    Written by ``telemetry/`` alone, in the thread or task of the operation.
    """

    span: Span
    commands: dict[int, SentCommand] = field(default_factory=dict)
    """Those in flight, by request id."""
    only_command: SentCommand | None = None
    """The one that the operation's own span may show."""
    shows_each_command: bool = False
    """Each command has a span of its own; see the option ``command_spans``."""
    withholds: bool = False
    """A command with credentials was sent: no text of an error may leave."""

    def for_another_try(self) -> SpanState:
        """Return the state of a try that runs beside others, below the same span. There are several
        commands, so each has a span of its own."""
        return SpanState(self.span, shows_each_command=self.shows_each_command)

    def show_each_command(self) -> None:
        """Give each command a span of its own from now on."""
        self.shows_each_command, self.only_command = True, None
