"""What the sides report, as plain data that is safe to pickle; its sum, and the verdict."""

from __future__ import annotations

import enum
import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .workload import Balance


class Side(enum.Enum):
    """Who runs the workload; the value names it in JSON and, as ``demo_*``, its database."""

    PLAIN = "plain"
    NAIVE = "naive"
    OURS = "ours"

    @property
    def title(self) -> str:
        titles = {"plain": "plain pymongo", "naive": "naive retry loop"}
        return titles.get(self.value, "pymongo-resilience")

    @property
    def database(self) -> str:
        return f"demo_{self.value}"


class Outcome(NamedTuple):
    """One operation as its application saw it."""

    seconds: float
    error: str | None
    """The class of the exception that reached the application, if one did."""
    repeated: dict[str, int]
    """The library's retries, counted by reason."""


class Branch(NamedTuple):
    """One line of a trace: a span or an event of a span."""

    name: str
    start: float
    """Seconds since the operation began."""
    seconds: float | None
    """How long the span took; an event takes no time."""
    failed: bool
    attributes: dict[str, str]


@dataclass(slots=True)
class Record:
    """The sum of many operations."""

    errors: Counter[str] = field(default_factory=Counter)
    """Operations that raised, by the class of their exception."""
    repeated: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    @property
    def operations(self) -> int:
        return len(self.seconds)

    def quantile(self, share: float) -> float:
        """The shortest duration (seconds) that this share did not exceed; ``nan`` without any."""
        ordered = sorted(self.seconds)
        return ordered[math.ceil(share * len(ordered)) - 1] if ordered else math.nan


class Tally:
    def __init__(self) -> None:
        self._outcomes: defaultdict[tuple[Side, str], list[Outcome]] = defaultdict(list)

    def add(self, phase: str, outcomes: Mapping[Side, Outcome]) -> None:
        for side, outcome in outcomes.items():
            self._outcomes[side, phase].append(outcome)

    def of(self, side: Side, phase: str | None = None) -> Record:
        total = Record()
        for (owner, name), outcomes in self._outcomes.items():
            if owner is side and phase in {None, name}:
                for each in outcomes:
                    total.seconds.append(each.seconds)
                    total.repeated.update(each.repeated)
                    total.errors.update([each.error] if each.error else [])
        return total


@dataclass(frozen=True, slots=True)
class Result:
    server: str
    seed: int
    seconds: float
    duration: float
    """The time that the workload took (seconds)."""
    tally: Tally
    balances: dict[Side, Balance]
    trace: tuple[Branch, ...]
    """One retried operation of our side: its span, and what is below it in the order of time."""
    faults: dict[Side, Counter[str]]
    """How often each fault acted, by its class."""

    def problems(self) -> list[str]:
        """What our side did wrong, in words; empty if it lost, doubled and showed nothing."""
        record, balance = self.tally.of(Side.OURS), self.balances[Side.OURS]
        problems = []
        if balance.lost:
            problems.append(f"lost {_count(balance.lost, 'write')}")
        if balance.duplicated:
            problems.append(f"duplicated {_count(balance.duplicated, 'write')}")
        if record.errors:
            names = ", ".join(sorted(record.errors))
            problems.append(f"showed {_count(record.errors.total(), 'error')} ({names})")
        if not record.operations:
            problems.append("ran no operation")
        return problems

    def verdict(self) -> list[str]:
        """The run in plain sentences, ours first."""
        ours, others = Side.OURS, [side for side in Side if side is not Side.OURS]
        problems = self.problems()
        faults = _count(self.faults[ours].total(), "injected fault")
        sentence = (
            f"{ours.title} FAILED: it " + " and ".join(problems) + "."
            if problems
            else f"{ours.title} lost nothing, duplicated nothing and showed the application no "
            f"error in {_count(self.tally.of(ours).operations, 'operation')}, through {faults}, "
            f"on {self.server}."
        )
        return [sentence, *(self._counts_of(side) for side in others)]

    def _counts_of(self, side: Side) -> str:
        record, balance = self.tally.of(side), self.balances[side]
        return (
            f"{side.title}, same faults: "
            f"{_count(record.errors.total(), 'error')} reached the application, "
            f"{_count(balance.duplicated, 'write')} duplicated, "
            f"{_count(balance.lost, 'acknowledged write')} lost without an error."
        )

    def as_json(self) -> dict[str, Any]:
        """For ``--json``; durations are seconds."""
        return {
            "server": self.server,
            "seed": self.seed,
            "seconds": self.seconds,
            "duration": round(self.duration, 3),
            "sides": {side.value: self._side(side) for side in Side},
            "retries": dict(sorted(self.tally.of(Side.OURS).repeated.items())),
            "ok": not self.problems(),
            "verdict": " ".join(self.verdict()),
        }

    def _side(self, side: Side) -> dict[str, Any]:
        record, balance = self.tally.of(side), self.balances[side]
        return {
            "operations": record.operations,
            "errors": record.errors.total(),
            "errors_by_class": dict(sorted(record.errors.items())),
            "p50": round(record.quantile(0.5), 6),
            "p99": round(record.quantile(0.99), 6),
            "duplicated": balance.duplicated,
            "lost": balance.lost,
            "faults": dict(sorted(self.faults[side].items())),
        }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
