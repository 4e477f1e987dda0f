"""bind(): collections and databases that carry their policy, and hand it on."""

from __future__ import annotations

from typing import Any

import pymongo
import pytest
from pymongo import ReadPreference
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.synchronous.collection import Collection
from pymongo_resilience_instrumentation.tools.testbed import CutAfter
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import Side, fail_command
from support.telemetry import Instrument
from support.wait_helpers import wait_for_server

from pymongo_resilience import OperationTimeoutError, Policy, bind, override
from pymongo_resilience.policies.policy import policy_of
from pymongo_resilience.testbed import ReplicaSet

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
