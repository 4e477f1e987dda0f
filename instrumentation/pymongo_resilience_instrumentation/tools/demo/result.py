"""What a run of the demonstration found, and what follows from it."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

import pymongo

import pymongo_resilience

from .contenders import Side

if TYPE_CHECKING:
    from collections import Counter

    from .tally import FinalMessage, Record, Tally
    from .workload import Balance


@dataclass(frozen=True, slots=True)
class Result:
    """Everything measured in one run."""

    server: str
    """Its name and version."""
    seed: int
    seconds: float
    """The time that was asked for."""
    duration: float
    """The time that the workload took (seconds)."""
    tally: Tally
    balances: dict[Side, Balance]
    final_messages: dict[Side, FinalMessage]
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
            "versions": versions(),
            "sides": {side.value: self._side(side) for side in Side},
            "spans": dict(sorted(self.final_messages[Side.OURS].spans.items())),
            "ok": not self.problems(),
            "verdict": " ".join(self.verdict()),
        }

    def _side(self, side: Side) -> dict[str, Any]:
        record, balance = self.tally.of(side), self.balances[side]
        return {
            **_numbers(record),
            "duplicated": balance.duplicated,
            "lost": balance.lost,
            "faults": dict(sorted(self.faults[side].items())),
            "notes": list(self.final_messages[side].notes),
        }


def _numbers(record: Record) -> dict[str, Any]:
    return {
        "operations": record.operations,
        "errors": record.errors.total(),
        "errors_by_class": dict(sorted(record.errors.items())),
        "retries": dict(sorted(record.repeated.items())),
        "p50": round(record.quantile(0.5), 6),
        "p99": round(record.quantile(0.99), 6),
    }


def versions() -> dict[str, str]:
    """What ran here; a part that is not installed as a distribution is left out."""
    found = {
        "python": platform.python_version(),
        "pymongo": pymongo.version,
        "pymongo-resilience": pymongo_resilience.__version__,
    }
    for name in ("SecantusDB", "opentelemetry-sdk", "tenacity"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
