"""A client's bulk write that failed and was repeated: what it returns, and what it raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pymongo import InsertOne, UpdateMany
from pymongo.errors import AutoReconnect, ClientBulkWriteException, OperationFailure
from support.clients import SentCommands, Side
from support.small_batches import FailsLater, SmallBatches
from support.telemetry import Instrument

from pymongo_resilience import override
from pymongo_resilience.testbed import CutBefore, Fail, Fault, Overload, ReplicaSet

pytestmark = pytest.mark.oldest


def insert(database: str, number: int = 1) -> InsertOne[Any]:
    return InsertOne({"_id": number}, namespace=f"{database}.coll")


def update_many(database: str) -> UpdateMany:
    return UpdateMany({}, {"$inc": {"n": 1}}, namespace=f"{database}.coll")


WRITE_CONFLICT = 112
"""Repeated where a transaction number makes that safe; the driver's own loop does not know it."""
REPEATED: dict[str, tuple[Callable[[str], Any], Callable[[], Fault]]] = {
    "insert, write conflict": (insert, lambda: Fail("bulkWrite", times=3, code=WRITE_CONFLICT)),
    "update_many, overload": (update_many, lambda: Overload("bulkWrite", times=3)),
    "update_many, declared idempotent": (update_many, lambda: CutBefore("bulkWrite", times=3)),
}


@pytest.mark.parametrize("name", REPEATED)
def test_what_a_retry_has_mended_is_not_raised(
    name: str, side: Side, proxy: ReplicaSet, database: str, control: Any, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000, base_backoff_ms=1)
    model, fault = REPEATED[name]
    control[database].coll.insert_one({"_id": 0})
    client = side.client(proxy.uri)
    side.do(client.admin.command, "ping")
    proxy.inject(fault())
    with override(idempotent=name.endswith("declared idempotent")):
        result = side.do(client.bulk_write, [model(database)])
    assert len(telemetry.decisions.events) == 3
    assert result.inserted_count + result.modified_count == 1
    assert list(control[database].coll.find(sort=[("_id", 1)])) in (
        [{"_id": 0}, {"_id": 1}],
        [{"_id": 0, "n": 1}],
    )


def test_plain_pymongo_raises_what_its_retry_has_mended(
    side: Side, proxy: ReplicaSet, database: str, control: Any
) -> None:
    # Pinned: once pymongo mends it, this fails and driver._forget_in_result may go.
    control[database].coll.insert_one({"_id": 0})
    client = side.client(proxy.uri)
    proxy.inject(Overload("bulkWrite"))
    with pytest.raises(ClientBulkWriteException) as caught:
        side.do(client.bulk_write, [update_many(database)])
    assert isinstance(caught.value.error, OperationFailure)
    assert control[database].coll.find_one() == {"_id": 0, "n": 1}


def test_what_earlier_commands_of_the_bulk_did_is_kept(
    side: Side, proxy: ReplicaSet, database: str, control: Any, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    sent = SentCommands()
    control[database].coll.insert_one({"_id": 2})
    proxy.inject(SmallBatches())
    client = side.client(proxy.uri, event_listeners=[sent])
    proxy.inject(FailsLater(1, "bulkWrite", times=2, code=WRITE_CONFLICT))
    models = [insert(database, 1), insert(database, 2), insert(database, 3)]
    with pytest.raises(ClientBulkWriteException) as caught:
        side.do(client.bulk_write, models, ordered=False)
    error = caught.value
    assert len(telemetry.decisions.events) == 2
    assert len(sent.named("bulkWrite")) == 5
    assert error.error is None
    assert [(each["idx"], each["code"]) for each in error.write_errors or []] == [(1, 11000)]
    assert error.partial_result is not None
    assert error.partial_result.inserted_count == 2
    assert control[database].coll.count_documents({}) == 3


def test_the_first_error_is_raised_where_its_retry_wrote_nothing_and_else_the_last(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """The result has forgotten the first one by then."""
    instrument(base_backoff_ms=1)
    client = side.client(proxy.uri)
    side.do(client.admin.command, "ping")
    for last in Fail("bulkWrite", code=2, labels=["NoWritesPerformed"]), CutBefore("bulkWrite"):
        proxy.inject(Overload("bulkWrite"))
        proxy.inject(last)
        with pytest.raises(ClientBulkWriteException) as caught:
            side.do(client.bulk_write, [update_many(database)])
        error = caught.value.error
        assert isinstance(error, AutoReconnect if isinstance(last, CutBefore) else OperationFailure)
        assert getattr(error, "code", 462) == 462
