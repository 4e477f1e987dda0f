"""Which effects must be in the database, which may be, and what is there."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pymongo.database import Database

DOCUMENTS: Final = "documents"
"""One document per inserted effect, which it names in ``effect``."""
ACCOUNTS: Final = "accounts"
"""One document per account: ``count``, and the ``effects`` that were counted."""


class Kind(StrEnum):
    """What the workload does."""

    INSERT = "insert"
    UPDATE = "update"
    FIND_AND_MODIFY = "findAndModify"
    BULK = "bulk write"
    TRANSACTION = "transaction"
    READ = "read"
    ATOMIC_UPDATE = "atomic update_many"
    ATOMIC_BULK = "atomic bulk_write"


ATOMIC: Final = (Kind.ATOMIC_UPDATE, Kind.ATOMIC_BULK)
"""Those that change all accounts of a group at once, in a run of their own."""
GROUP: Final = ("first", "second", "third")
"""The accounts of a group: each effect is named by its account as well."""


EFFECTS: Final = {
    Kind.INSERT: ("inserted",),
    Kind.UPDATE: ("updated",),
    Kind.FIND_AND_MODIFY: ("modified",),
    Kind.BULK: ("first", "updated", "second"),
    Kind.TRANSACTION: ("inserted", "updated"),
    Kind.READ: (),
    Kind.ATOMIC_UPDATE: GROUP,
    Kind.ATOMIC_BULK: (*GROUP, "inserted"),
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation, known by a name that no other has."""

    kind: Kind
    name: str
    account: str

    def effect(self, part: str) -> str:
        """The name that one of its effects leaves in the database."""
        return f"{self.name}/{part}"

    @property
    def effects(self) -> tuple[str, ...]:
        """All that it leaves in the database when it happens once."""
        return tuple(self.effect(part) for part in EFFECTS[self.kind])


@dataclass(slots=True)
class Balance:
    """The difference between ledger and database, in effects."""

    lost: list[str] = field(default_factory=list)
    """Acknowledged, and not there."""
    doubled: list[str] = field(default_factory=list)
    """There more than once, acknowledged or not."""
    torn: list[str] = field(default_factory=list)
    """Transactions of which a part is there, and bulk writes whose order was not kept."""
    unknown: list[str] = field(default_factory=list)
    """There, and never asked for."""
    applied_though_raised: int = 0
    """Operations that raised, and are there: no fault, an error says nothing about that."""

    @property
    def is_exact(self) -> bool:
        """Nothing is lost, doubled, torn or unknown."""
        return not (self.lost or self.doubled or self.torn or self.unknown)


class Ledger:
    """Remembers operations. Thread-safe: recording is one append."""

    def __init__(self) -> None:
        self.acknowledged: list[Operation] = []
        self.raised: list[Operation] = []

    def __len__(self) -> int:
        return len(self.acknowledged) + len(self.raised)

    def balance(self, found: Counter[str]) -> Balance:
        """Compare with the effects that are in the database, each as often as it is there."""
        balance = Balance()
        asked = itertools.chain(self.acknowledged, self.raised)
        balance.unknown += found.keys() - {effect for each in asked for effect in each.effects}
        balance.doubled += [effect for effect, count in found.items() if count > 1]
        balance.lost += [
            effect for each in self.acknowledged for effect in each.effects if not found[effect]
        ]
        for each in self.raised:
            present = [found[effect] > 0 for effect in each.effects]
            balance.applied_though_raised += any(present)
            # In order: what is there comes before what is not. Of a transaction it is all or none.
            in_order = present == sorted(present, reverse=True)
            whole = each.kind in (Kind.TRANSACTION, *ATOMIC)
            half = whole and any(present) and not all(present)
            if half or not in_order:
                balance.torn.append(each.name)
        return balance


def found_in(database: Database[dict[str, Any]]) -> Counter[str]:
    """The effects in the database; give it one without faults in between.

    A counter that is not the number of its own effects counts as an effect that nobody asked for.
    """
    found = Counter[str](document["effect"] for document in database[DOCUMENTS].find())
    for account in database[ACCOUNTS].find():
        part = account.get("part")
        found.update(f"{name}/{part}" if part else name for name in account["effects"])
        if account["count"] != len(account["effects"]):
            found[f"count of {account['_id']}"] += 1
    return found
