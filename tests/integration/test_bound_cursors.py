"""What is made from a bound collection or database goes by its policy as well."""

from __future__ import annotations

from typing import Any

import pymongo
import pytest
from support.clients import Side
from support.cursor_cleanup import documents
from support.cursor_timeouts import MAKERS, rest
from support.telemetry import Instrument

from pymongo_resilience import Policy, bind
from pymongo_resilience.strategies import Failure, Operation, RetryAction
from pymongo_resilience.testbed import Fail, Overload, ReplicaSet

__all__ = ["documents"]
pytestmark = pytest.mark.oldest


class Asked:
    """Repeats nothing, and keeps what it was asked about."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def retry_after(self, operation: Operation, failure: Failure, /) -> RetryAction | None:
        self.operations.append(operation)
        return None


MADE: dict[str, tuple[str, Any]] = {
    **{name: (name.removesuffix("_raw_batches"), make) for name, make in MAKERS.items()},
    "list_indexes": ("listIndexes", lambda side, coll: side.do(coll.list_indexes)),
    "watch": ("aggregate", lambda side, coll: side.do(coll.watch, max_await_time_ms=1)),
    "database.aggregate": (
        "aggregate",
        lambda side, coll: side.do(coll.database.aggregate, [{"$documents": [{"n": 1}]}]),
    ),
    "database.watch": (
        "aggregate",
        lambda side, coll: side.do(coll.database.watch, max_await_time_ms=1),
    ),
    "list_collections": (
        "listCollections",
        lambda side, coll: side.do(coll.database.list_collections),
    ),
    "cursor_command": (
        "find",
        lambda side, coll: side.do(
            coll.database.cursor_command, {"find": "coll", "filter": {}, "batchSize": 2}
        ),
    ),
}


@pytest.mark.parametrize("made", MADE)
def test_it_is_made_under_the_policy(
    made: str, side: Side, proxy: ReplicaSet, documents: str, instrument: Instrument
) -> None:
    asked, data = Asked(), {"team": "shop"}
    telemetry = instrument()
    client = side.client(proxy.uri)
    side.do(client.admin.command, "ping")
    command, make = MADE[made]
    policy = Policy(timeout_ms=30_000, strategy=asked, data=data, idempotent=True)
    coll = bind(client[documents], policy).coll
    telemetry.clear()
    proxy.inject(Fail(command, code=6))

    def use() -> None:
        side.do(make(side, coll).next)

    with pytest.raises(pymongo.errors.OperationFailure):
        use()
    (operation,) = asked.operations
    assert operation.data == data
    assert operation.idempotent
    span = telemetry.operations()[-1]
    assert span.attributes["pymongo_resilience.deadline"] == 30.0


@pytest.mark.parametrize("made", [*MAKERS, "cursor_command"])
def test_and_so_are_its_batches(
    made: str, side: Side, proxy: ReplicaSet, documents: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    _, make = MADE[made]
    db = bind(side.client(proxy.uri)[documents], Policy(timeout_ms=30_000))
    cursor = make(side, db.coll)
    assert rest(side, cursor)
    batches = telemetry.operations(f"getMore {documents}.coll")
    assert batches
    for span in batches:
        assert span.attributes["pymongo_resilience.deadline"] == 30.0


@pytest.mark.parametrize("made", ["find", "aggregate", "cursor_command", "watch", "database.watch"])
def test_a_batch_is_repeated_by_the_policys_strategy_alone(
    made: str, side: Side, proxy: ReplicaSet, documents: str, instrument: Instrument
) -> None:
    asked, data = Asked(), {"team": "shop"}
    instrument()
    db = bind(side.client(proxy.uri)[documents], Policy(strategy=asked, data=data))
    cursor = MADE[made][1](side, db.coll)
    if made == "find":
        side.do(cursor.next)
    proxy.inject(Overload("getMore"))
    if "watch" in made:
        with pytest.raises(pymongo.errors.OperationFailure):
            side.do(cursor.try_next)
    else:
        assert isinstance(rest(side, cursor)[-1], pymongo.errors.OperationFailure)
    (operation,) = asked.operations
    assert (operation.name, operation.data) == ("getMore", data)


@pytest.mark.parametrize("where", ["watch", "database.watch"])
def test_and_the_resume_of_a_change_stream(
    where: str, side: Side, proxy: ReplicaSet, documents: str, instrument: Instrument
) -> None:
    asked, data = Asked(), {"team": "shop"}
    telemetry = instrument()
    policy = Policy(timeout_ms=30_000, strategy=asked, data=data)
    coll = bind(side.client(proxy.uri)[documents], policy).coll
    stream = MADE[where][1](side, coll)
    telemetry.clear()
    proxy.inject(Fail("getMore", code=43))
    proxy.inject(Fail("aggregate", code=6))
    with pytest.raises(pymongo.errors.OperationFailure):
        side.do(stream.next)
    (operation,) = asked.operations
    assert (operation.name, operation.data) == ("aggregate", data)
    target = documents if where == "database.watch" else f"{documents}.coll"
    (span,) = telemetry.operations(f"aggregate {target}")
    assert span.attributes["pymongo_resilience.deadline"] == 30.0
    side.do(stream.close)
