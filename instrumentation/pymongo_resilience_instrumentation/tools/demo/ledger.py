"""What must be in the database, what is there, and the difference."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .workload import ORDERS, Effect, Step, effects

if TYPE_CHECKING:
    from pymongo.database import Database


@dataclass(frozen=True, slots=True)
class Balance:
    """The difference between what was acknowledged and what is there, counted in writes."""

    duplicated: int
    """Writes that are there once too often, each time counted, acknowledged or not."""
    lost: int
    """Writes of acknowledged operations that are not there."""


class Ledger:
    """Remembers the writes of one side. For one thread at a time."""

    def __init__(self) -> None:
        self._expected: set[Effect] = set()

    def record(self, step: Step, *, acknowledged: bool) -> None:
        """Note one operation; one that raised may have happened or not, but not twice."""
        if acknowledged:
            self._expected.update(effects(step))

    def balance(self, database: Database[dict[str, Any]]) -> Balance:
        """Read the database and compare; give it one without faults in between.

        A counter that differs from the length of its own log is a difference too.
        """
        found: Counter[Effect] = Counter()
        duplicated = lost = 0
        for document in database[ORDERS].find():
            if "part" in document:
                found[Effect(document["step"], document["part"])] += 1
                continue
            found.update(Effect(step, None) for step in document["log"])
            excess = document["count"] - len(document["log"])
            duplicated += max(0, excess)
            lost += max(0, -excess)
        duplicated += sum(count - 1 for count in found.values())
        lost += sum(effect not in found for effect in self._expected)
        return Balance(duplicated, lost)
