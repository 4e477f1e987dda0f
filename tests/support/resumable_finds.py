"""Documents whose ``_id`` has any type of BSON that it can have, and a scan of them."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from typing import Any

import bson
from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Timestamp

from pymongo_resilience.testing import set_active

SINGLE: list[Any] = [
    MinKey(), None, float("nan"), float("-inf"), Decimal128("Infinity"), True, False, MaxKey(), "",
]  # fmt: skip


def ids(count: int) -> list[Any]:
    """So many of ten types, none of which is equal to another one, and one of each other value."""
    epoch = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    makers = [
        lambda n: n,
        lambda n: Int64(2**40 + n),
        lambda n: n + 0.5,
        lambda n: Decimal128(f"{n}.25"),
        lambda n: f"text {n % 7} {n}",
        lambda n: {"a": n % 5, "b": f"{n:06}"},
        lambda n: Binary(n.to_bytes(4, "big"), n % 3),
        lambda n: ObjectId(n.to_bytes(12, "big")),
        lambda n: epoch + dt.timedelta(seconds=n),
        lambda n: Timestamp(n + 1, n % 3),
    ]
    made = [makers[n % len(makers)](n) for n in range(count - len(SINGLE))]
    return SINGLE + made


def insert(control: Any, database: str, count: int, *, seed: int = 0) -> list[bytes]:
    """The documents of ``database.coll``, and their ``_id`` in the server's own order."""
    every = [{"_id": each, "n": n} for n, each in enumerate(ids(count))]
    random.Random(seed).shuffle(every)  # noqa: S311 - an order
    with set_active(False):
        control[database].coll.insert_many(every)
        return keys(control[database].coll.find({}, sort={"_id": 1}))


def keys(documents: Any) -> list[bytes]:
    """The ``_id`` of each, exactly."""
    return [bson.encode({"_id": each["_id"]}) for each in documents]


def of_raw(batches: list[bytes]) -> Iterator[Any]:
    for batch in batches:
        yield from bson.decode_all(batch)
