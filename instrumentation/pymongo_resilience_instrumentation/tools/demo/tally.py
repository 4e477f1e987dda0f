"""What the contenders report, as plain data that is safe to pickle, and the sum of it."""

from __future__ import annotations

import math
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .contenders import Side


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


@dataclass(slots=True)
class Record:
    """The sum of many operations."""

    errors: Counter[str] = field(default_factory=Counter)
    """Operations that raised, by the class of their exception."""
    repeated: Counter[str] = field(default_factory=Counter)
    """Failed attempts that were repeated, by reason."""
    seconds: list[float] = field(default_factory=list)
    """How long each operation took."""

    @property
    def operations(self) -> int:
        """How many operations ran."""
        return len(self.seconds)

    def add(self, outcome: Outcome) -> None:
        """Add one operation."""
        self.seconds.append(outcome.seconds)
        self.repeated.update(outcome.repeated)
        if outcome.error is not None:
            self.errors[outcome.error] += 1

    def quantile(self, share: float) -> float:
        """The smallest duration (seconds) that this share of the operations did not exceed.

        ``nan`` without operations.
        """
        ordered = sorted(self.seconds)
        return ordered[math.ceil(share * len(ordered)) - 1] if ordered else math.nan


class Tally:
    """The records of all sides; written by one thread, read by the picture's."""

    def __init__(self) -> None:
        self.phase = ""
        self._lock = threading.Lock()
        self._records: defaultdict[tuple[Side, str], Record] = defaultdict(Record)

    def add(self, phase: str, outcomes: Mapping[Side, Outcome]) -> None:
        """Add the outcomes of one step."""
        with self._lock:
            for side, outcome in outcomes.items():
                self._records[side, phase].add(outcome)

    def of(self, side: Side, phase: str | None = None) -> Record:
        """A copy of a side's record, of one phase or of all."""
        total = Record()
        with self._lock:
            for (owner, name), record in self._records.items():
                if owner is side and phase in {None, name}:
                    total.errors.update(record.errors)
                    total.repeated.update(record.repeated)
                    total.seconds.extend(record.seconds)
        return total
