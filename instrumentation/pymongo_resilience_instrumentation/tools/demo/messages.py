"""Messages of the contenders to the parent process; plain data, safe to pickle."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Outcome:
    """One operation as its application saw it."""

    seconds: float
    error: str | None
    """The class of the exception that reached the application, if one did."""
    repeated: dict[str, int]
    """Failed attempts that were repeated, counted by reason."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One line of a trace: a span or an event of a span, with what is below it."""

    name: str
    start: float
    """Seconds since the operation began."""
    seconds: float | None
    """How long the span took; an event takes no time."""
    failed: bool = False
    attributes: dict[str, str] = field(default_factory=dict)
    below: tuple[Branch, ...] = ()
    """In the order of time."""


@dataclass(frozen=True, slots=True)
class FinalMessage:
    """What a side sends at the end."""

    spans: dict[str, int] = field(default_factory=dict)
    """How many spans of each name ended."""
    trace: Branch | None = None
    """One retried operation."""
    trace_phase: str = ""
    notes: tuple[str, ...] = ()
    """Warnings that were logged on the way."""
