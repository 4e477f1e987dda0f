"""The operations, and the ledger of their effects, each of which must occur exactly once."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pymongo import InsertOne, UpdateOne
from pymongo.collection import Collection
from pymongo.database import Database

Document = dict[str, Any]

ORDERS: Final = "orders"
"""The only collection. Contains orders by step and part, and the counters that updates
increment.
"""
_COUNTERS: Final = 10


class Kind(enum.Enum):
    FIND = "find"
    INSERT = "insert"
    UPDATE = "update"
    BULK = "bulk write"


@dataclass(frozen=True, slots=True)
class Step:
    """One operation, the same on every side. Everything that it writes includes its number."""

    number: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Effect:
    """One write, which must exist exactly once if its operation was acknowledged."""

    step: int
    part: int | None
    """The index of the insert within the operation; None for the update of a counter."""


def effects(step: Step) -> list[Effect]:
    parts: dict[Kind, list[int | None]] = {
        Kind.FIND: [],
        Kind.INSERT: [0],
        Kind.UPDATE: [None],
        Kind.BULK: [0, None, 1],
    }
    return [Effect(step.number, part) for part in parts[step.kind]]


def prepare(database: Database[Document]) -> None:
    """Create the counters. Raises PyMongoError."""
    counters = [{"_id": number, "count": 0, "log": []} for number in range(_COUNTERS)]
    database[ORDERS].insert_many(counters)
    database[ORDERS].create_index("step")


def perform(database: Database[Document], step: Step) -> None:
    """Run one operation as an application would. Raises PyMongoError."""
    orders: Collection[Document] = database[ORDERS]
    counter = {"_id": step.number % _COUNTERS}
    # The log lists the steps that were counted, so that the ledger notices a step counted twice.
    raised = {"$inc": {"count": 1}, "$push": {"log": step.number}}
    match step.kind:
        case Kind.FIND:
            orders.find({"step": {"$gte": step.number - 20}}).limit(10).to_list()
        case Kind.INSERT:
            orders.insert_one({"step": step.number, "part": 0})
        case Kind.UPDATE:
            orders.update_one(counter, raised)
        case Kind.BULK:
            orders.bulk_write(
                [
                    InsertOne({"step": step.number, "part": 0}),
                    UpdateOne(counter, raised),
                    InsertOne({"step": step.number, "part": 1}),
                ]
            )


class Balance(NamedTuple):
    """The difference between acknowledged and stored writes."""

    duplicated: int
    """Number of surplus copies of writes, whether acknowledged or not."""
    lost: int
    """Number of missing writes of acknowledged operations."""


class Ledger:
    """Records the writes of one side. Not thread-safe."""

    def __init__(self) -> None:
        self._expected: set[Effect] = set()

    def record(self, step: Step, *, acknowledged: bool) -> None:
        """Record one operation. If it raised, its writes may exist once or not at all."""
        if acknowledged:
            self._expected.update(effects(step))

    def balance(self, database: Database[dict[str, Any]]) -> Balance:
        """Compare the recorded writes with the database, which must be reachable without faults.

        A counter that differs from the length of its log counts as well.
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
