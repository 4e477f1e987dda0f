"""Rules for namespaces at work on real sockets: each collection as its rule says, and no more."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymongo
import pytest
from pymongo.errors import AutoReconnect, ClientBulkWriteException, OperationFailure
from support.clients import POLLING, Side
from support.command_listeners import Inside
from support.telemetry import Instrument, Telemetry

import pymongo_resilience
from pymongo_resilience import Config, OperationTimeoutError, Policy, bind, override
from pymongo_resilience.events import RetryScheduled
from pymongo_resilience.strategies import BestEffort, MongoDB, RetryAction
from pymongo_resilience.testbed import CutAfter, CutBefore, Fail, ReplicaSet, Slow

pytestmark = pytest.mark.oldest

WRITE_CONFLICT = 112
"""Repeated for a read, but not by the strategy that follows MongoDB's specifications."""


class Own:
    """A strategy that remembers what it was asked."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, Any]]] = []

    def retry_after(self, operation: Any, failure: Any, /) -> Any:
        self.seen.append((operation.name, operation.namespace, dict(operation.data)))
        return RetryAction()


@pytest.fixture
def db(side: Side, proxy: ReplicaSet, database: str) -> Any:
    """A database whose connection is made: faults hit the operation, not the start."""
    client = side.client(proxy.uri)
    side.do(client.admin.command, "ping")
    return client[database]


def retries(telemetry: Telemetry) -> int:
    return sum(isinstance(event, RetryScheduled) for event in telemetry.decisions.events)


def test_two_collections_have_two_strategies(
    side: Side, proxy: ReplicaSet, db: Any, database: str, instrument: Instrument
) -> None:
    instrument(
        timeout_ms=20_000,
        policies={
            f"{database}.*": Policy(strategy=MongoDB()),
            f"{database}.fs.files": Policy(strategy=BestEffort()),
        },
    )
    proxy.inject(Fail("find", code=WRITE_CONFLICT, times=3))
    assert side.do(db.fs.files.find_one) is None
    strict = Fail("find", code=WRITE_CONFLICT, times=3)
    proxy.clear()
    proxy.inject(strict)
    with pytest.raises(OperationFailure) as caught:
        side.do(db.orders.find_one)
    assert (caught.value.code, strict.injected) == (WRITE_CONFLICT, 1)


def test_the_strategy_of_a_namespace_sees_its_data_unless_a_block_says_otherwise(
    side: Side, proxy: ReplicaSet, db: Any, database: str, instrument: Instrument
) -> None:
    globally, by_rule, in_block = Own(), Own(), Own()
    policies = {f"{database}.orders": Policy(strategy=by_rule, data={"team": "sales", "level": 1})}
    instrument(timeout_ms=20_000, strategy=globally, policies=policies)
    cuts = CutBefore("insert", times=4)
    proxy.inject(cuts)
    side.do(db.orders.insert_one, {"_id": 1})
    assert by_rule.seen == [("insert", f"{database}.orders", {"team": "sales", "level": 1})] * 4
    proxy.inject(CutBefore("insert"))
    side.do(db.users.insert_one, {"_id": 1})
    assert globally.seen == [("insert", f"{database}.users", {})]
    by_rule.seen.clear()
    proxy.inject(CutBefore("insert"))
    with override(data={"robot": True}):
        side.do(db.orders.insert_one, {"_id": 2})
    assert by_rule.seen == [("insert", f"{database}.orders", {"robot": True})]
    proxy.inject(CutBefore("insert"))
    with override(strategy=in_block):
        side.do(db.orders.insert_one, {"_id": 3})
    assert in_block.seen == [("insert", f"{database}.orders", {"team": "sales", "level": 1})]
    assert len(by_rule.seen) == len(globally.seen) == 1


def test_a_rule_declares_a_collections_writes_idempotent_and_no_others(
    side: Side, proxy: ReplicaSet, db: Any, database: str, control: Any, instrument: Instrument
) -> None:
    instrument(timeout_ms=20_000, policies={f"{database}.marks": Policy(idempotent=True)})
    control[database].marks.insert_many([{"_id": number} for number in range(3)])
    cut = CutAfter("update", times=2)
    proxy.inject(cut)
    side.do(db.marks.update_many, {}, {"$set": {"seen": True}})
    assert cut.injected == 2
    for block, coll in (({}, db.counters), ({"idempotent": False}, db.marks)):
        proxy.inject(CutAfter("update"))
        with override(**block), pytest.raises(AutoReconnect):
            side.do(coll.update_many, {}, {"$inc": {"n": 1}})


def test_a_clients_bulk_write_goes_to_many_places_and_has_the_rule_for_all_of_them(
    side: Side, proxy: ReplicaSet, db: Any, database: str, instrument: Instrument
) -> None:
    write = pymongo.UpdateMany({}, {"$set": {"seen": True}}, namespace=f"{database}.marks")
    idempotent = Policy(idempotent=True)
    narrow, wide = {"admin.*": idempotent, f"{database}.*": idempotent}, {"*.*": idempotent}
    for policies, expected in ((narrow, 0), (wide, 1)):
        telemetry = instrument(timeout_ms=20_000, policies=policies)
        proxy.inject(CutBefore("bulkWrite"))
        with contextlib.nullcontext() if expected else pytest.raises(ClientBulkWriteException):
            side.do(db.client.bulk_write, [write])
        assert retries(telemetry) == expected
        pymongo_resilience.uninstrument()


@pytest.mark.parametrize(("pattern", "expires"), [("admin.*", False), ("*.*", True)])
def test_so_it_is_for_its_timeout(
    pattern: str,
    expires: bool,
    side: Side,
    proxy: ReplicaSet,
    db: Any,
    database: str,
    instrument: Instrument,
) -> None:
    write = pymongo.InsertOne({}, namespace=f"{database}.marks")
    instrument(timeout_ms=20_000, policies={pattern: Policy(timeout_ms=150)})
    proxy.inject(Slow(0.5))
    with pytest.raises(OperationTimeoutError) if expires else contextlib.nullcontext():
        side.do(db.client.bulk_write, [write])
    proxy.clear()


def test_what_has_no_collection_and_what_has_no_namespace(
    side: Side, proxy: ReplicaSet, db: Any, database: str, instrument: Instrument
) -> None:
    bound = db.coll.insert_one
    of_coll, of_database, of_all = Own(), Own(), Own()
    instrument(
        timeout_ms=20_000,
        policies={
            f"{database}.coll": Policy(strategy=of_coll),
            f"{database}.*": Policy(strategy=of_database),
            "*.*": Policy(strategy=of_all),
        },
    )
    for command, call in (
        ("listCollections", (db.list_collection_names,)),
        ("insert", (bound, {"_id": 1})),
        ("insert", (db.coll.insert_one, {"_id": 2})),
    ):
        proxy.inject(CutBefore(command))
        side.do(*call)
    assert of_database.seen == [("listCollections", database, {})]
    # A method bound before instrument() was called enters no wrapper: only the driver's loop.
    assert of_all.seen == [("insert", "", {})]
    assert of_coll.seen == [("insert", f"{database}.coll", {})]


def test_rules_of_a_file_hold_and_those_in_code_replace_them(
    side: Side,
    proxy: ReplicaSet,
    db: Any,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "resilience.toml"
    file.write_text(f'timeout_ms = 20000\n[policies."{database}.orders"]\nstrategy = "mongodb"\n')
    monkeypatch.setenv("PYMONGO_RESILIENCE_CONFIG", str(file))

    def find() -> None:
        proxy.inject(Fail("find", code=WRITE_CONFLICT))
        side.do(db.orders.find_one)

    try:
        pymongo_resilience.instrument()
        with pytest.raises(OperationFailure, match="112"):
            find()
        pymongo_resilience.uninstrument()
        pymongo_resilience.instrument(policies={"other.*": Policy(idempotent=True)})
        find()
        pymongo_resilience.uninstrument()
        pymongo_resilience.instrument(Config.from_toml(file), policies={})
        find()
    finally:
        pymongo_resilience.uninstrument()


def test_the_driver_strategy_leaves_policies_without_effect_and_says_so(
    instrument: Instrument, caplog: pytest.LogCaptureFixture
) -> None:
    instrument(config_strategy="driver", policies={"shop.*": Policy(strategy=Own())})
    with pymongo.MongoClient[Any](connect=False):
        pass
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    (text,) = [text for text in said if "created before" not in text]
    assert "strategy=driver" in text
    assert "policies" in text


@pytest.mark.parametrize("how", ["generator", "listener"])
def test_what_is_inserted_from_does_not_get_the_policy_of_the_insert(
    how: str, proxy: ReplicaSet, database: str, control: Any, instrument: Instrument
) -> None:
    """Into the same namespace. Nothing can be awaited there."""
    telemetry = instrument(timeout_ms=20_000)
    control[database].coll.insert_one({"_id": "counter", "n": 0})
    inside = Inside()
    options: Any = {**POLLING, "event_listeners": [inside]}
    with pymongo.MongoClient[Any](proxy.uri, **options) as client:
        coll = client[database].coll
        bound = bind(coll, Policy(idempotent=True))
        telemetry.clear()

        def count() -> None:
            proxy.inject(CutAfter("update"))
            with pytest.raises(AutoReconnect):
                coll.update_many({}, {"$inc": {"n": 1}})

        def documents() -> Iterator[dict[str, Any]]:
            count()
            yield {"_id": 1}

        if how == "generator":
            bound.insert_many(documents())
        else:
            coll.find_one()
            inside.act = count
            bound.insert_one({"_id": 1})
    assert control[database].coll.find_one({"_id": "counter"}) == {"_id": "counter", "n": 1}
    names = [span.name for span in telemetry.operations() if not span.name.startswith("find")]
    assert names == [f"update {database}.coll", f"insert {database}.coll", "endSessions admin"]
