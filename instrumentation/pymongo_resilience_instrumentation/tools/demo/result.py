"""The results of the sides: a table, a verdict, and figures as JSON."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

DEADLINE_MS: Final = 20_000
"""The timeout of both sides that have one: pymongo's own, and the library's."""
_BAD: Final = "bold red"


class Side(enum.Enum):
    """One of the sides. The value is its name in JSON, and ``demo_<value>`` is its database."""

    PLAIN = "plain"
    TIMEOUT = "timeout"
    NAIVE = "naive"
    OURS = "ours"

    @property
    def title(self) -> str:
        titles = {
            "plain": "plain pymongo",
            "timeout": f"timeoutMS={DEADLINE_MS}",
            "naive": "naive retry loop",
        }
        return titles.get(self.value, "pymongo-resilience")

    @property
    def database(self) -> str:
        return f"demo_{self.value}"


class Outcome(NamedTuple):
    """One operation as its application saw it."""

    seconds: float
    error: str | None
    """The class of the exception that reached the application, if one did."""
    retries: Counter[str]
    """The retried attempts, counted by the failure that pymongo reported."""


@dataclass(slots=True)
class Record:
    """The results of one side's operations, and the contents of its database at the end."""

    seconds: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    """Failed operations, counted by the class of the exception."""
    retries: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    """How often each fault acted, by its class."""
    duplicated: int = 0
    lost: int = 0

    def add(self, outcome: Outcome) -> None:
        self.seconds.append(outcome.seconds)
        self.retries += outcome.retries
        self.errors.update([outcome.error] if outcome.error else [])

    def quantile(self, share: float) -> float:
        """Return a quantile of the operations' durations in seconds; ``nan`` if there are none."""
        ordered = sorted(self.seconds)
        return ordered[math.ceil(share * len(ordered)) - 1] if ordered else math.nan

    def as_json(self) -> dict[str, Any]:
        return {
            "operations": len(self.seconds),
            "errors": self.errors.total(),
            "errors_by_class": dict(sorted(self.errors.items())),
            "retries": dict(sorted(self.retries.items())),
            "p50": round(self.quantile(0.5), 6),
            "p99": round(self.quantile(0.99), 6),
            "duplicated": self.duplicated,
            "lost": self.lost,
            "faults": dict(sorted(self.faults.items())),
        }


@dataclass(frozen=True, slots=True)
class Result:
    """One run of the demonstration."""

    server: str
    seed: int
    seconds: float
    duration: float
    """How long the workload really took, in seconds."""
    sides: dict[Side, Record]

    def problems(self) -> list[str]:
        """Return what our side did wrong, in words: lost or duplicated writes, and errors."""
        ours = self.sides[Side.OURS]
        names = ", ".join(sorted(ours.errors))
        found = {
            f"lost {_count(ours.lost, 'write')}": ours.lost,
            f"duplicated {_count(ours.duplicated, 'write')}": ours.duplicated,
            f"showed {_count(ours.errors.total(), 'error')} ({names})": ours.errors,
            "ran no operation": not ours.seconds,
        }
        return [problem for problem, is_so in found.items() if is_so]

    def verdict(self) -> list[str]:
        """Describe the run in sentences, our side first."""
        ours, title, problems = self.sides[Side.OURS], Side.OURS.title, self.problems()
        sentence = (
            f"{title} FAILED: it " + " and ".join(problems) + "."
            if problems
            else f"{title} lost nothing, duplicated nothing and showed the application no error in "
            f"{_count(len(ours.seconds), 'operation')}, through "
            f"{_count(ours.faults.total(), 'injected fault')}, on {self.server}."
        )
        others = (
            f"{side.title}, same faults: "
            f"{_count(record.errors.total(), 'error')} reached the application, "
            f"{_count(record.duplicated, 'write')} duplicated, "
            f"{_count(record.lost, 'acknowledged write')} lost without an error."
            for side, record in self.sides.items()
            if side is not Side.OURS
        )
        return [sentence, *others]

    def as_json(self) -> dict[str, Any]:
        """Return the result for ``--json``. Durations are seconds."""
        return {
            "server": self.server,
            "seed": self.seed,
            "seconds": self.seconds,
            "duration": round(self.duration, 3),
            "sides": {side.value: record.as_json() for side, record in self.sides.items()},
            "ok": not self.problems(),
            "verdict": " ".join(self.verdict()),
        }

    def report(self) -> RenderableType:
        """Return our side's result, and a table with the same rows for each side."""
        table = Table("", *(side.title for side in Side), box=None, padding=(0, 1))
        records = [self.sides[side] for side in Side]

        def row(name: str, values: Iterable[object], style: str = "") -> None:
            zero = "green" if style == _BAD else "dim"
            table.add_row(name, *(Text(str(each), style if each else zero) for each in values))

        def rows(name: str, counters: Sequence[Counter[str]], style: str) -> None:
            row(name, [each.total() for each in counters], style)
            for kind in sorted(sum(counters, Counter[str]())):
                row(f"  {kind}", [each[kind] for each in counters], style)

        row("operations", [len(each.seconds) for each in records])
        row("lost writes", [each.lost for each in records], _BAD)
        row("duplicated writes", [each.duplicated for each in records], _BAD)
        rows("errors the application saw", [each.errors for each in records], _BAD)
        rows("failed attempts, retried", [each.retries for each in records], "yellow")
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            row(name, [f"{each.quantile(share) * 1000:.1f} ms" for each in records])
        return Group(Text(self.verdict()[0], "bold red" if self.problems() else "green"), table)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
