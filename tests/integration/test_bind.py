"""bind(): collections and databases that carry their policy, and hand it on."""

from __future__ import annotations

from typing import Any

import pymongo
import pytest
from pymongo import ReadPreference
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.synchronous.collection import Collection
from pymongo_resilience_instrumentation.bound_policies import policy_of
from pymongo_resilience_instrumentation.tools.testbed import CutAfter
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import Side, fail_command
from support.cursor_cleanup import documents
from support.cursor_timeouts import MAKERS, rest
from support.telemetry import Instrument
from support.wait_helpers import wait_for_server

from pymongo_resilience import OperationTimeoutError, Policy, bind, override
from pymongo_resilience.strategies import Failure, RetryAction, RetryState
from pymongo_resilience.testbed import Fail, Overload, ReplicaSet

__all__ = ["documents"]
pytestmark = pytest.mark.oldest
BOUND = Policy(timeout_ms=150)


@pytest.fixture
def db(side: Side, server: EmbeddedServer, database: str) -> Any:
    return side.client(server.uri)[database]


def time_of(side: Side, coll: Any, control: Any) -> float:
    """Seconds that an operation has on ``coll``, as its error says."""
    wait_for_server(side, coll.database.client)
    with fail_command(control, "find", errorCode=6), pytest.raises(OperationTimeoutError) as caught:
        side.do(coll.find_one)
    return caught.value.timeout_s


WAYS = {
    "the collection itself": lambda db: bind(db.coll, BOUND),
    "of a database": lambda db: bind(db, BOUND).coll,
    "of a database, by item": lambda db: bind(db, BOUND)["coll"],
    "of a database, by method": lambda db: bind(db, BOUND).get_collection("coll"),
    "of a database with options": lambda db: bind(db, BOUND).with_options().coll,
    "with options": lambda db: bind(db.coll, BOUND).with_options(
        read_preference=ReadPreference.NEAREST
    ),
    "a sub-collection": lambda db: bind(db.coll, BOUND).sub,
    "a sub-collection, by item": lambda db: bind(db.coll, BOUND)["sub"],
    "its own database": lambda db: bind(db, BOUND).coll.database.other,
    "bound anew": lambda db: bind(bind(db.coll, BOUND), Policy(idempotent=True)),
    "nearer": lambda db: bind(bind(db, Policy(timeout_ms=60_000)).coll, BOUND),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_timeout_is_carried(
    way: str, side: Side, db: Any, control: Any, instrument: Instrument
) -> None:
    instrument(timeout_ms=60_000, policies={"*.*": Policy(timeout_ms=60_000)})
    assert time_of(side, WAYS[way](db), control) == 0.15


def test_a_collection_that_is_created_is_bound(
    side: Side, db: Any, control: Any, instrument: Instrument
) -> None:
    instrument()
    with override(timeout_ms=60_000):  # making a collection takes a busy disk longer
        made = side.do(bind(db, BOUND).create_collection, "made")
    assert time_of(side, made, control) == 0.15


def test_the_original_is_left_alone(
    side: Side, db: Any, control: Any, instrument: Instrument
) -> None:
    instrument(timeout_ms=120)
    original = db.coll
    bound = bind(original, BOUND)
    assert time_of(side, original, control) == 0.12
    assert policy_of(original.with_options()) == Policy()
    assert bound == original
    assert isinstance(bound, (Collection, AsyncCollection))
    assert (type(bound).__name__, bound.full_name) == (type(original).__name__, original.full_name)
    assert repr(bound) == repr(original)


def test_what_is_around_the_operation_wins(
    side: Side, db: Any, control: Any, instrument: Instrument
) -> None:
    instrument()
    coll = bind(db.coll, BOUND)
    wait_for_server(side, db.client)
    for around in (override(timeout_ms=400), pymongo.timeout(0.4)):
        with fail_command(control, "find", errorCode=6), around:
            with pytest.raises(OperationTimeoutError) as caught:
                side.do(coll.find_one)
        assert caught.value.timeout_s == 0.4


@pytest.mark.parametrize("declared", [True, False])
def test_idempotence_is_carried_for_this_collection_alone(
    declared: bool, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(timeout_ms=10_000)
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.insert_one, {"n": 0})
    target = bind(coll, Policy(idempotent=True)) if declared else coll
    proxy.inject(CutAfter("update"))
    if declared:
        side.do(target.update_many, {}, {"$set": {"n": 1}})
    else:
        with pytest.raises(pymongo.errors.AutoReconnect):
            side.do(target.update_many, {}, {"$set": {"n": 1}})


def test_without_the_library_it_is_an_ordinary_collection(side: Side, db: Any) -> None:
    coll = bind(db.coll, BOUND)
    side.do(coll.insert_one, {"_id": 1})
    assert side.do(coll.count_documents, {}) == 1
    assert side.documents(coll.find()) == [{"_id": 1}]


class Asked:
    """Repeats nothing, and keeps what it was asked about."""

    def __init__(self) -> None:
        self.operations: list[RetryState] = []

    def retry_after(self, operation: RetryState, failure: Failure, /) -> RetryAction | None:
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
