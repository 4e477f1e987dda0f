"""Writes to many documents whose filter pins ``_id``: repeated after a lost reply, applied once."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from typing import Any

import bson
import pymongo
import pytest
from pymongo import DeleteMany, InsertOne, UpdateMany, UpdateOne, WriteConcern
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ClientBulkWriteException,
    OperationFailure,
    PyMongoError,
)
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from pymongo_resilience_instrumentation.tools.testbed.traffic import Answer, Interception
from support.clients import SentCommands, Side
from support.telemetry import Instrument

from pymongo_resilience import RetryDeclined
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import (
    CutAfter,
    CutBefore,
    Fail,
    ReplicaSet,
    ShardedCluster,
    Standalone,
)

pytestmark = pytest.mark.oldest

INC = {"$inc": {"n": 1}}
FAILED_TO_PARSE = 9
UNAUTHORIZED = 13
SHARD_KEY_NOT_FOUND = 61
INVALID_OPTIONS = 72


@pytest.fixture
def coll(side: Side, proxy: ReplicaSet, database: str, control: Any, sent: SentCommands) -> Any:
    """With two documents; its client's connection is made."""
    control[database].coll.insert_many([{"_id": number, "n": 0, "a": [0]} for number in (1, 2)])
    client = side.client(proxy.uri, event_listeners=[sent])
    side.do(client.admin.command, "ping")
    return client[database].coll


Write = Callable[[Side, Any], Any]


def update(side: Side, coll: Any) -> Any:
    return side.do(coll.update_many, {"_id": 1, "n": {"$gte": 0}}, INC)


def update_by_keywords(side: Side, coll: Any) -> Any:
    return side.do(coll.update_many, filter={"_id": {"$in": [1]}}, update=[{"$set": {"n": 1}}])


def upsert(side: Side, coll: Any) -> Any:
    return side.do(coll.update_many, {"_id": 1}, INC, True)


def update_elements(side: Side, coll: Any) -> Any:
    change = {"$inc": {"n": 1}, "$set": {"a.$[zero]": 1}}
    return side.do(coll.update_many, {"_id": 1}, change, False, [{"zero": 0}])


def bulk(side: Side, coll: Any) -> Any:
    models = [
        InsertOne({"_id": 3}),
        UpdateMany({"_id": 1}, INC),
        UpdateOne({"_id": 2}, {"$set": {"seen": True}}),
    ]
    return side.do(coll.bulk_write, models)


def bulk_unordered(side: Side, coll: Any) -> Any:
    models = [UpdateMany({"_id": 1}, INC), UpdateMany({"_id": 7}, INC, upsert=True)]
    return side.do(coll.bulk_write, models, ordered=False)


UPDATES: dict[str, tuple[str, Write]] = {
    "update_many": ("update", update),
    "update_many by keywords": ("update", update_by_keywords),
    "update_many, upsert": ("update", upsert),
    "bulk_write": ("update", bulk),
    "bulk_write, unordered": ("update", bulk_unordered),
    "update_many, array_filters": ("update", update_elements),
}


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_whose_reply_was_lost_is_applied_once(
    name: str,
    side: Side,
    proxy: ReplicaSet,
    coll: Any,
    database: str,
    control: Any,
    sent: SentCommands,
    instrument: Instrument,
) -> None:
    command, write = UPDATES[name]
    telemetry = instrument(timeout_ms=20_000)
    client = side.client(proxy.uri, event_listeners=[sent])
    side.do(client.admin.command, "ping")
    coll = client[database].coll
    cut = CutAfter(command, times=2)
    proxy.inject(cut)
    result = write(side, coll)
    assert cut.injected == 2
    assert control[database].coll.find_one({"_id": 1})["n"] == 1
    assert (result.matched_count, result.modified_count) == (
        (2, 2) if name == "bulk_write" else (1, 1)
    )
    numbers = {each.get("txnNumber") for each in sent.named(command)}
    assert len(numbers) == 1
    assert None not in numbers
    expected = "bulkWrite" if "bulk" in name else "update"
    assert len(telemetry.operations(f"{expected} {database}.coll")) == 1


@pytest.mark.parametrize("how", ["delete_many", "bulk_write"])
def test_a_delete_whose_reply_was_lost_says_what_it_deleted(
    how: str,
    side: Side,
    proxy: ReplicaSet,
    coll: Any,
    database: str,
    control: Any,
    instrument: Instrument,
) -> None:
    instrument(timeout_ms=20_000)
    cut = CutAfter("delete")
    proxy.inject(cut)
    if how == "delete_many":
        result = side.do(coll.delete_many, {"_id": 1})
    else:
        result = side.do(coll.bulk_write, [DeleteMany({"_id": 1}), DeleteMany({"_id": 9})])
    assert (cut.injected, result.deleted_count) == (1, 1)
    assert control[database].coll.distinct("_id") == [2]


def test_a_clients_bulk_write_is_repeated_with_one_number(
    side: Side,
    proxy: ReplicaSet,
    coll: Any,
    database: str,
    control: Any,
    sent: SentCommands,
    instrument: Instrument,
) -> None:
    """The server of the test bed does not recognise a bulkWrite again: this one never saw it."""
    instrument(timeout_ms=20_000)
    proxy.inject(CutBefore("bulkWrite", times=2))
    models = [
        UpdateMany({"_id": 1}, INC, namespace=coll.full_name),
        DeleteMany({"_id": 2}, namespace=coll.full_name),
    ]
    result = side.do(coll.database.client.bulk_write, models, verbose_results=True)
    assert (result.modified_count, result.deleted_count) == (1, 1)
    assert result.update_results[0].modified_count == 1
    commands = sent.named("bulkWrite")
    assert [[each["multi"] for each in command["ops"]] for command in commands] == [[False] * 2] * 3
    assert len({each["txnNumber"] for each in commands}) == 1
    assert control[database].coll.distinct("n") == [1]


def test_what_is_sent(side: Side, coll: Any, sent: SentCommands, instrument: Instrument) -> None:
    instrument()
    side.do(coll.update_many, {"_id": 1}, INC)
    side.do(coll.delete_many, {"_id": 1})
    side.do(coll.delete_many, {"_id": 2}, hint="_id_")
    side.do(coll.update_many, {"n": 1}, INC)
    assert len(sent.named("listCollections")) == 1, "asked once"
    first, second = sent.named("update")
    assert (first["updates"][0]["multi"], "txnNumber" in first) == (False, True)
    assert (second["updates"][0]["multi"], "txnNumber" in second) == (True, False)
    deletes = [(each["deletes"][0], "txnNumber" in each) for each in sent.named("delete")]
    assert deletes == [
        ({"q": {"_id": 1}, "limit": 1}, True),
        ({"q": {"_id": 2}, "limit": 1, "hint": "_id_"}, True),
    ]


def _unacknowledged(coll: Any) -> Any:
    return coll.with_options(write_concern=WriteConcern(w=0))


AS_THEY_ARE: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "a collation": lambda coll: (
        coll.update_many, {"_id": 1}, INC, False, None, None, {"locale": "en"},
    ),
    "more than one": lambda coll: (coll.update_many, {"_id": {"$in": [1, 2]}}, INC),
    "unacknowledged": lambda coll: (_unacknowledged(coll).update_many, {"_id": 1}, INC),
    "a server's own database": lambda coll: (
        coll.database.client.config.coll.update_many, {"_id": "nobody"}, INC,
    ),
    "a bulk with another": lambda coll: (
        coll.bulk_write, [UpdateMany({"_id": 1}, INC), UpdateMany({}, INC)],
    ),
    "a bulk with a collation": lambda coll: (
        coll.bulk_write, [UpdateMany({"_id": 1}, INC, collation={"locale": "en"})],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AS_THEY_ARE)
def test_what_is_sent_as_it_is(
    name: str, side: Side, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    instrument()
    side.do(*AS_THEY_ARE[name](coll))
    (command,) = sent.named("update")
    assert command["updates"][0]["multi"] is True
    assert "txnNumber" not in command


@pytest.mark.parametrize(
    ("options", "uri"),
    [
        ({"single_document_writes": False}, {}),
        ({"config_strategy": "driver"}, {}),
        ({}, {"retryWrites": False}),
    ],
)
def test_what_switches_it_off(
    options: dict[str, Any],
    uri: dict[str, Any],
    side: Side,
    proxy: ReplicaSet,
    database: str,
    sent: SentCommands,
    instrument: Instrument,
) -> None:
    instrument(**options)
    client = side.client(proxy.uri, event_listeners=[sent], **uri)
    side.do(client[database].coll.update_many, {"_id": 1}, INC)
    side.do(client[database].coll.bulk_write, [DeleteMany({"_id": 1})])
    (update,), (delete,) = sent.named("update"), sent.named("delete")
    assert (update["updates"][0]["multi"], "txnNumber" in update) == (True, False)
    assert (delete["deletes"][0]["limit"], "txnNumber" in delete) == (0, False)


def test_inside_of_a_transaction_it_is_sent_as_it_is(
    side: Side, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    instrument()
    client = coll.database.client

    async def in_a_task() -> None:
        async with client.start_session() as session, await session.start_transaction():
            await coll.update_many({"_id": 1}, INC, session=session)
            await coll.bulk_write([DeleteMany({"_id": 2})], session=session)

    if side.name == "async":
        side.do(in_a_task)
    else:
        with client.start_session() as session, session.start_transaction():
            coll.update_many({"_id": 1}, INC, session=session)
            coll.bulk_write([DeleteMany({"_id": 2})], session=session)
    (update,), (delete,) = sent.named("update"), sent.named("delete")
    assert update["updates"][0]["multi"] is True
    assert delete["deletes"][0]["limit"] == 0


class RefusesSingle(Interception):
    """Refuses writes to a single document, as time-series collections do; others are executed."""

    def __init__(self, code: int = INVALID_OPTIONS) -> None:
        super().__init__()
        self.code = code
        self.refused = 0

    def on_request(self, request: Any, connection: Any) -> Any:
        name = request.command_name
        if name not in {"update", "delete"}:
            return None
        field = f"{name}s"
        writes = request.body.get(field) or [
            each
            for sequence in request.sequences
            for each in bson.decode_all(sequence.partition(field.encode() + b"\0")[2])
        ]
        refused = [
            {"index": index, "code": self.code, "errmsg": "not for a single document"}
            for index, each in enumerate(writes)
            if each.get("multi") is False or each.get("limit") == 1
        ]
        if not refused:
            return None
        self.refused += 1
        listed = refused[:1] if request.body["ordered"] else refused
        return Answer({"ok": 1.0, "n": 0, "nModified": 0, "writeErrors": listed})


@pytest.mark.parametrize("how", ["update_many", "bulk_write", "client.bulk_write"])
def test_in_a_time_series_collection_all_of_an_id_are_written(
    how: str, side: Side, coll: Any, database: str, control: Any, instrument: Instrument
) -> None:
    """There ``_id`` need not be unique."""
    instrument()
    measured = control[database].create_collection("measured", timeseries={"timeField": "at"})
    measured.insert_many([{"_id": 1, "at": dt.datetime.now(dt.UTC), "n": 0} for _ in range(2)])
    coll = coll.database.measured
    if how == "update_many":
        assert side.do(coll.update_many, {"_id": 1}, INC).modified_count == 2
        assert side.do(coll.delete_many, {"_id": 1}).deleted_count == 2
    elif how == "bulk_write":
        models: list[Any] = [UpdateMany({"_id": 1}, INC), DeleteMany({"_id": 1})]
        result = side.do(coll.bulk_write, models)
        assert (result.modified_count, result.deleted_count) == (2, 2)
    else:
        models = [DeleteMany({"_id": 1}, namespace=coll.full_name)]
        assert side.do(coll.database.client.bulk_write, models).deleted_count == 2


def test_where_nobody_may_ask_it_is_sent_as_it_is(
    side: Side, proxy: ReplicaSet, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    instrument()
    proxy.inject(Fail("listCollections", code=UNAUTHORIZED))
    for _ in range(2):
        side.do(coll.update_many, {"_id": 1}, INC)
    assert [each["updates"][0]["multi"] for each in sent.named("update")] == [True, True]
    assert len(sent.named("listCollections")) == 1


def test_an_answer_that_was_lost_is_asked_for_again(
    side: Side, proxy: ReplicaSet, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    instrument(timeout_ms=20_000)
    proxy.inject(CutAfter("listCollections", times=2))
    proxy.inject(CutAfter("update"))
    assert side.do(coll.update_many, {"_id": 1}, INC).modified_count == 1
    assert [each["updates"][0]["multi"] for each in sent.named("update")] == [False] * 2


def test_what_a_server_refuses_for_one_document_is_sent_as_it_is(
    side: Side,
    proxy: ReplicaSet,
    coll: Any,
    database: str,
    control: Any,
    sent: SentCommands,
    instrument: Instrument,
) -> None:
    instrument(timeout_ms=20_000)
    refuses = RefusesSingle()
    proxy.inject(refuses)
    assert side.do(coll.update_many, {"_id": 1}, INC).modified_count == 1
    assert refuses.refused == 1
    assert side.do(coll.update_many, {"_id": 1}, INC).modified_count == 1
    assert side.do(coll.delete_many, {"_id": 2}).deleted_count == 1
    assert refuses.refused == 1, "it is remembered"
    assert control[database].coll.find_one() == {"_id": 1, "n": 2, "a": [0]}


@pytest.mark.parametrize("how", ["update_many", "bulk_write"])
def test_a_refusal_of_the_whole_command_is_sent_as_it_is(
    how: str,
    side: Side,
    proxy: ReplicaSet,
    coll: Any,
    database: str,
    control: Any,
    instrument: Instrument,
) -> None:
    instrument(timeout_ms=20_000)
    proxy.inject(Fail("update", code=SHARD_KEY_NOT_FOUND))
    if how == "bulk_write":
        result = side.do(coll.bulk_write, [UpdateMany({"_id": 1}, INC)])
    else:
        result = side.do(coll.update_many, {"_id": 1}, INC)
    assert result.modified_count == 1
    assert control[database].coll.find_one({"_id": 1})["n"] == 1


def test_a_refusal_after_retries_of_the_question_is_sent_as_it_is(
    side: Side, proxy: ReplicaSet, coll: Any, instrument: Instrument
) -> None:
    instrument(timeout_ms=20_000)
    proxy.inject(CutAfter("listCollections"))
    proxy.inject(RefusesSingle())
    assert side.do(coll.update_many, {"_id": 1}, INC).modified_count == 1


def test_what_both_are_refused_for_is_the_error_of_the_call(
    side: Side, proxy: ReplicaSet, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    instrument(timeout_ms=20_000)
    proxy.inject(Fail("update", code=INVALID_OPTIONS, times=2))
    with pytest.raises(OperationFailure) as caught:
        side.do(coll.update_many, {"_id": 1}, INC)
    assert caught.value.code == INVALID_OPTIONS
    assert caught.value.__context__ is None
    side.do(coll.update_many, {"_id": 1}, INC)
    assert [each["updates"][0]["multi"] for each in sent.named("update")] == [False, True, False]


def test_after_a_lost_reply_nothing_falls_back(
    side: Side, proxy: ReplicaSet, coll: Any, database: str, control: Any, instrument: Instrument
) -> None:
    """The first attempt may have been executed: sent without its number, it would count twice."""
    instrument(timeout_ms=20_000)
    proxy.inject(CutAfter("update"))
    proxy.inject(Fail("update", code=INVALID_OPTIONS))
    with pytest.raises(PyMongoError):
        side.do(coll.update_many, {"_id": 1}, INC)
    assert control[database].coll.find_one({"_id": 1})["n"] == 1


@pytest.mark.parametrize("ordered", [True, False])
def test_a_bulk_that_is_refused_in_part_is_completed(
    ordered: bool,
    side: Side,
    proxy: ReplicaSet,
    coll: Any,
    database: str,
    control: Any,
    instrument: Instrument,
) -> None:
    instrument(timeout_ms=20_000)
    proxy.inject(RefusesSingle())
    models = [
        InsertOne({"_id": 3, "n": 0}),
        DeleteMany({"_id": 2}),
        InsertOne({"_id": 4, "n": 0}),
    ]
    result = side.do(coll.bulk_write, models, ordered=ordered)
    assert (result.inserted_count, result.deleted_count) == (2, 1)
    assert control[database].coll.distinct("_id") == [1, 3, 4]


class RefusesSingleOfClients(Interception):
    """As above, for a client's bulk write."""

    def on_request(self, request: Any, connection: Any) -> Any:
        if request.command_name != "bulkWrite":
            return None
        operations = request.body.get("ops") or [
            each
            for sequence in request.sequences
            if b"ops\0" in sequence
            for each in bson.decode_all(sequence.partition(b"ops\0")[2])
        ]
        errors = [
            {"ok": 0.0, "idx": index, "code": INVALID_OPTIONS, "errmsg": "no", "n": 0}
            for index, each in enumerate(operations)
            if each.get("multi") is False
        ]
        if not errors:
            return None
        listed = errors[:1] if request.body["ordered"] else errors
        counts = ("nInserted", "nUpserted", "nMatched", "nModified", "nDeleted")
        cursor = {"id": bson.Int64(0), "firstBatch": listed, "ns": "admin.$cmd.bulkWrite"}
        return Answer(
            {"ok": 1.0, "cursor": cursor, "nErrors": len(listed), **dict.fromkeys(counts, 0)}
        )


@pytest.mark.parametrize("ordered", [True, False])
def test_a_clients_bulk_that_is_refused_is_sent_as_it_is(
    ordered: bool,
    side: Side,
    proxy: ReplicaSet,
    coll: Any,
    database: str,
    control: Any,
    sent: SentCommands,
    instrument: Instrument,
) -> None:
    instrument(timeout_ms=20_000)
    proxy.inject(RefusesSingleOfClients())
    models = [
        UpdateMany({"_id": 1}, INC, namespace=coll.full_name),
        DeleteMany({"_id": 2}, namespace=coll.full_name),
    ]
    bulk_write = coll.database.client.bulk_write
    result = side.do(bulk_write, models, ordered=ordered, verbose_results=True)
    assert (result.modified_count, result.deleted_count) == (1, 1)
    assert (result.update_results[0].modified_count, result.delete_results[1].deleted_count) == (
        1,
        1,
    )
    assert control[database].coll.find_one() == {"_id": 1, "n": 1, "a": [0]}
    multi = [[each["multi"] for each in command["ops"]] for command in sent.named("bulkWrite")]
    assert multi == [[False] * 2, [True] * 2]


def test_a_bulk_that_is_refused_in_part_has_the_errors_of_the_whole(
    side: Side, proxy: ReplicaSet, coll: Any, database: str, control: Any, instrument: Instrument
) -> None:
    instrument(timeout_ms=20_000)
    proxy.inject(RefusesSingle())
    models = [InsertOne({"_id": 3}), DeleteMany({"_id": 2}), InsertOne({"_id": 1})]
    with pytest.raises(BulkWriteError) as caught:
        side.do(coll.bulk_write, models)
    details = caught.value.details
    (error,) = details["writeErrors"]
    assert (error["index"], error["code"]) == (2, 11000)
    assert (details["nInserted"], details["nRemoved"]) == (1, 1)


def test_an_error_in_a_bulk_shows_what_was_asked_for(
    side: Side, coll: Any, instrument: Instrument
) -> None:
    instrument()
    wrong: Any = {"$inc": {"_id": 1}}
    with pytest.raises(BulkWriteError) as caught:
        side.do(coll.bulk_write, [UpdateMany({"_id": 1}, wrong)])
    (error,) = caught.value.details["writeErrors"]
    assert error["op"]["multi"] is True
    assert "'multi': False" not in str(caught.value)
    models = [UpdateMany({"_id": 1}, wrong, namespace=coll.full_name)]
    with pytest.raises(ClientBulkWriteException) as of_client:
        side.do(coll.database.client.bulk_write, models)
    assert of_client.value.write_errors[0]["op"]["multi"] is True  # type: ignore[index]  # pymongo's are documents


def test_what_the_driver_refuses_it_refuses_in_the_same_words(
    side: Side, coll: Any, instrument: Instrument
) -> None:
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        (({"_id": 1},), {}),
        (({"_id": 1}, INC), {"sort": {"n": 1}}),
        (({"_id": 1}, {"n": 1}), {}),
        (({"_id": 1}, INC), {"filter": {}}),
        (({"_id": 1}, INC), {"array_filters": 5}),
    ]
    for args, kwargs in calls:
        raised = []
        for _ in range(2):
            with pytest.raises((TypeError, ValueError)) as caught:
                side.do(coll.update_many, *args, **kwargs)
            raised.append((type(caught.value), str(caught.value)))
            instrument() if len(raised) == 1 else pymongo_off()
        assert raised[0] == raised[1]


def pymongo_off() -> None:
    import pymongo_resilience  # noqa: PLC0415 - for this test alone

    pymongo_resilience.uninstrument()


def test_a_bulk_that_is_wrong_either_way_is_not_remembered(
    side: Side, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    instrument()
    wrong: Any = {"$no_such_operator": {"n": 1}}
    with pytest.raises(BulkWriteError) as caught:
        side.do(coll.bulk_write, [UpdateMany({"_id": 1}, wrong)])
    assert caught.value.details["writeErrors"][0]["code"] == FAILED_TO_PARSE
    side.do(coll.bulk_write, [UpdateMany({"_id": 1}, INC)])
    assert [each["updates"][0]["multi"] for each in sent.named("update")] == [False, True, False]


@pytest.mark.parametrize("make", [ReplicaSet, ShardedCluster])
def test_on_every_deployment_it_is_applied_once(
    make: Any,
    server: EmbeddedServer,
    side: Side,
    database: str,
    control: Any,
    instrument: Instrument,
) -> None:
    instrument(timeout_ms=20_000)
    control[database].coll.insert_one({"_id": 1, "n": 0})
    with make(server.address) as deployment:
        coll = side.client(deployment.uri)[database].coll
        side.do(coll.find_one)
        for cut, write in (
            (CutAfter("update", times=2), (coll.update_many, {"_id": 1}, INC)),
            (CutAfter("update", times=2), (coll.bulk_write, [UpdateMany({"_id": 1}, INC)])),
            (CutAfter("delete", times=2), (coll.delete_many, {"_id": 1})),
        ):
            deployment.inject(cut)
            result = side.do(*write)
            assert cut.injected == 2
        assert result.deleted_count == 1
        side.do(coll.database.client.close)


def test_on_a_standalone_server_it_is_never_applied_twice(
    server: EmbeddedServer, side: Side, database: str, control: Any, instrument: Instrument
) -> None:
    """It knows no transaction numbers."""
    instrument(timeout_ms=20_000)
    control[database].coll.insert_one({"_id": 1, "n": 0})
    with Standalone(server.address) as deployment:
        coll = side.client(deployment.uri)[database].coll
        side.do(coll.find_one)
        for write in (
            (coll.update_many, {"_id": 1}, INC),
            (coll.bulk_write, [UpdateMany({"_id": 1}, INC)]),
        ):
            deployment.inject(CutAfter("update"))
            with pytest.raises(AutoReconnect):
                side.do(*write)
        side.do(coll.database.client.close)
    assert control[database].coll.distinct("n") == [2]


def test_others_are_still_not_repeated(
    side: Side, proxy: ReplicaSet, coll: Any, database: str, control: Any, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    for write in (
        lambda: side.do(coll.update_many, {"n": 0}, INC),
        lambda: side.do(coll.bulk_write, [UpdateMany({"_id": {"$gt": 0}}, INC)]),
    ):
        proxy.inject(CutAfter("update"))
        with pytest.raises(AutoReconnect):
            write()
    assert control[database].coll.distinct("n") == [2]
    declined = [each for each in telemetry.decisions.events if isinstance(each, RetryDeclined)]
    assert [each.rule for each in declined] == [Rule.NOT_SAFE] * 2


def test_many_tasks_at_once(
    proxy: ReplicaSet, database: str, control: Any, instrument: Instrument
) -> None:
    instrument(timeout_ms=20_000)
    control[database].coll.insert_many([{"_id": number, "n": 0} for number in range(20)])

    async def main() -> None:
        async with pymongo.AsyncMongoClient(proxy.uri) as client:
            coll = client[database].coll
            await client.admin.command("ping")
            proxy.inject(CutAfter("update", times=10))
            await asyncio.gather(*(coll.update_many({"_id": n}, INC) for n in range(20)))

    asyncio.run(main())
    assert control[database].coll.distinct("n") == [1]
