"""The state of an operation's span until the operation ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from .command_spans import SentCommand


class SpanState:
    """The span of an operation, and the commands that were sent for it.

    Written only by ``telemetry/``, in the operation's thread or task. The defaults are class
    attributes, so that creating a state is cheap.
    """

    only_command: SentCommand | None = None
    """The command that the operation's own span may show."""
    shows_each_command: bool = False
    """Each command has its own span; see the option ``command_spans``."""
    withholds: bool = False
    """A command with credentials was sent, so no text of an error may be exported."""

    def __init__(self, span: Span, *, records: bool) -> None:
        self.span = span
        self.records = records
        """False if the sampler has dropped the span. Then no attributes are computed for it."""
        self.commands: dict[int, SentCommand] = {}
        """The commands in flight, by request ID."""

    def for_another_try(self) -> SpanState:
        """Return the state of a try that runs beside another one, with the same parent span.

        If the operation already shows each command as a span, so does the try.
        """
        state = SpanState(self.span, records=self.records)
        state.shows_each_command = self.shows_each_command
        return state

    def show_each_command(self) -> None:
        """Give each command its own span from now on."""
        self.shows_each_command, self.only_command = True, None
