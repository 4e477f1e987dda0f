"""Bulk writes under one deadline: all of their commands, and the repetitions of each."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from pymongo import InsertOne
from pymongo.errors import PyMongoError
from support.clients import SentCommands, Side
from support.small_batches import FailsLater, SmallBatches
from support.telemetry import Instrument
from support.transactions import LOW, DriversTime, TakesTime, drivers_time, limits

from pymongo_resilience import OperationTimeoutError, override
from pymongo_resilience.testbed import ReplicaSet

__all__ = ["drivers_time"]
pytestmark = pytest.mark.oldest
MANY = 8
BULKS: dict[str, tuple[str, Callable[[Any], tuple[Any, ...]]]] = {
    "insert_many": ("insert", lambda coll: (coll.insert_many, [{"_id": n} for n in range(MANY)])),
    "bulk_write": (
        "insert",
        lambda coll: (coll.bulk_write, [InsertOne({"_id": n}) for n in range(MANY)]),
    ),
    "client bulk_write": (
        "bulkWrite",
        lambda coll: (
            coll.database.client.bulk_write,
            [InsertOne({"_id": n}, namespace=coll.full_name) for n in range(MANY)],
        ),
    ),
}


def timed_out(error: BaseException) -> bool:
    """Of a client's bulk write, what ended it may be inside."""
    both = (error, getattr(error, "error", None))
    return any(isinstance(each, OperationTimeoutError) for each in both)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("name", BULKS)
def test_one_deadline_is_over_all_its_commands(
    name: str, ordered: bool, side: Side, proxy: ReplicaSet, database: str, control: Any,
    instrument: Instrument, drivers_time: DriversTime,
) -> None:  # fmt: skip
    instrument()
    proxy.inject(SmallBatches())
    sent = TakesTime(drivers_time, LOW / 3)
    client = side.client(proxy.uri, event_listeners=[sent])
    command, bulk = BULKS[name]
    function, models = bulk(client[database].coll)
    with override(timeout_ms=LOW), pytest.raises(PyMongoError) as caught:
        side.do(function, models, ordered=ordered)
    assert timed_out(caught.value)
    first, second, third = limits(sent, command)
    assert first is not None and second is not None and third is not None  # noqa: PT018 - for the type checker
    assert LOW * 2 / 3 < first <= LOW
    assert LOW / 3 < second <= LOW * 2 / 3
    assert 0 < third <= LOW / 3
    assert control[database].coll.count_documents({}) == 3


@pytest.mark.parametrize("name", BULKS)
def test_a_command_is_repeated_as_often_as_fits_and_never_past_the_deadline(
    name: str, side: Side, proxy: ReplicaSet, database: str, control: Any, instrument: Instrument
) -> None:
    telemetry = instrument()
    proxy.inject(SmallBatches())
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    side.do(client[database].coll.find_one)
    command, bulk = BULKS[name]
    function, models = bulk(client[database].coll)
    labels = ["RetryableWriteError"]
    proxy.inject(FailsLater(2, command, times=100_000, code=91, labels=labels))
    started = time.monotonic()
    with override(timeout_ms=1500), pytest.raises(PyMongoError) as caught:
        side.do(function, models)
    assert timed_out(caught.value)
    assert time.monotonic() - started < 10
    assert len(sent.named(command)) > 4
    assert sum(getattr(event, "delay", 0) for event in telemetry.decisions.events) < 1.5
    assert control[database].coll.count_documents({}) == 2
