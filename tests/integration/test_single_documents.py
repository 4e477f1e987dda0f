"""Writes to many documents whose filter pins ``_id``: repeated after a lost reply, applied once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pymongo import UpdateMany, WriteConcern
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import SentCommands, Side
from support.telemetry import Instrument

from pymongo_resilience import Policy
from pymongo_resilience.testbed import CutAfter, Fail, ReplicaSet, ShardedCluster, Standalone

pytestmark = pytest.mark.oldest

INC = {"$inc": {"n": 1}}
SET = [{"$set": {"n": 1}}]
INVALID_OPTIONS = 72


@pytest.fixture
def coll(side: Side, proxy: ReplicaSet, database: str, control: Any, sent: SentCommands) -> Any:
    """With two documents; its client's connection is made."""
    control[database].coll.insert_many([{"_id": number, "n": 0, "a": [0]} for number in (1, 2)])
    client = side.client(proxy.uri, event_listeners=[sent])
    side.do(client.admin.command, "ping")
    sent.started_events.clear()
    return client[database].coll


def names(sent: SentCommands) -> list[str]:
    return [event.command_name for event in sent.started_events]


WRITES: dict[str, tuple[str, Callable[[Any], tuple[Any, ...]], dict[str, Any]]] = {
    "update_many": (
        "update", lambda coll: (coll.update_many, {"_id": 1, "n": {"$gte": 0}}, INC), {},
    ),
    "by keywords": (
        "update", lambda coll: (coll.update_many,),
        {"filter": {"_id": {"$in": [1]}}, "update": SET},
    ),
    "upsert": ("update", lambda coll: (coll.update_many, {"_id": 1}, INC, True), {}),
    "array_filters": (
        "update",
        lambda coll: (
            coll.update_many, {"_id": 1}, {**INC, "$set": {"a.$[zero]": 1}}, False, [{"zero": 0}],
        ),
        {},
    ),
    "delete_many": ("delete", lambda coll: (coll.delete_many, {"_id": 1}), {"hint": "_id_"}),
}  # fmt: skip


@pytest.mark.parametrize("timeout_ms", [None, 20_000])
@pytest.mark.parametrize("name", WRITES)
def test_a_write_whose_reply_was_lost_is_applied_once(
    name: str, timeout_ms: int | None, side: Side, proxy: ReplicaSet, coll: Any, database: str,
    control: Any, sent: SentCommands, instrument: Instrument,
) -> None:  # fmt: skip
    command, write, named = WRITES[name]
    telemetry = instrument(timeout_ms=timeout_ms)
    times = 1 if timeout_ms is None else 2
    proxy.inject(CutAfter(command, times=times))
    result = side.do(*write(coll), **named)
    if command == "delete":
        assert result.deleted_count == 1
        assert control[database].coll.distinct("_id") == [2]
    else:
        assert (result.matched_count, result.modified_count) == (1, 1)
        assert control[database].coll.find_one({"_id": 1})["n"] == 1
    assert names(sent) == [command] * (times + 1), "and nothing is asked"
    numbers = {each.get("txnNumber") for each in sent.named(command)}
    assert len(numbers) == 1
    assert None not in numbers
    assert len(telemetry.operations(f"{command} {database}.coll")) == 1


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
    "a bulk": lambda coll: (coll.bulk_write, [UpdateMany({"_id": 1}, INC)]),
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
        ({"config_strategy": "driver"}, {}),
        ({"config_strategy": "mongodb"}, {}),
        ({"policies": {"*.*": Policy(strategy="mongodb")}}, {}),
        ({}, {"retryWrites": False}),
    ],
)
def test_what_switches_it_off(
    options: dict[str, Any], uri: dict[str, Any], side: Side, proxy: ReplicaSet, database: str,
    sent: SentCommands, instrument: Instrument,
) -> None:  # fmt: skip
    instrument(**options)
    client = side.client(proxy.uri, event_listeners=[sent], **uri)
    side.do(client.admin.command, "ping")
    side.do(client[database].coll.update_many, {"_id": 1}, INC)
    (update,) = sent.named("update")
    assert (update["updates"][0]["multi"], "txnNumber" in update) == (True, False)


def test_inside_of_a_transaction_it_is_sent_as_it_is(
    side: Side, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    instrument()
    client = coll.database.client

    async def in_a_task() -> None:
        async with client.start_session() as session, await session.start_transaction():
            await coll.update_many({"_id": 1}, INC, session=session)

    if side.name == "async":
        side.do(in_a_task)
    else:
        with client.start_session() as session, session.start_transaction():
            coll.update_many({"_id": 1}, INC, session=session)
    (update,) = sent.named("update")
    assert update["updates"][0]["multi"] is True


@pytest.mark.parametrize("timeout_ms", [None, 20_000])
@pytest.mark.parametrize("code", [20, INVALID_OPTIONS])
def test_what_a_server_refuses_for_one_document_is_sent_as_it_is(
    code: int, timeout_ms: int | None, side: Side, proxy: ReplicaSet, coll: Any, database: str,
    control: Any, sent: SentCommands, instrument: Instrument,
) -> None:  # fmt: skip
    """And its namespace is left alone from then on, and no other one."""
    instrument(timeout_ms=timeout_ms)
    proxy.inject(Fail("update", code=code))
    for _ in range(2):
        assert side.do(coll.update_many, {"_id": 1}, INC).modified_count == 1
    assert side.do(coll.delete_many, {"_id": 2}).deleted_count == 1
    side.do(coll.database.other.delete_many, {"_id": 2})
    assert [each["updates"][0]["multi"] for each in sent.named("update")] == [False, True, True]
    assert [each["deletes"][0]["limit"] for each in sent.named("delete")] == [0, 1]
    assert control[database].coll.find_one() == {"_id": 1, "n": 2, "a": [0]}


def test_what_both_are_refused_for_is_the_error_of_the_call(
    side: Side, proxy: ReplicaSet, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    instrument()
    proxy.inject(Fail("update", code=INVALID_OPTIONS, times=2))
    with pytest.raises(OperationFailure) as caught:
        side.do(coll.update_many, {"_id": 1}, INC)
    assert caught.value.code == INVALID_OPTIONS
    assert caught.value.__context__ is None
    assert [each["updates"][0]["multi"] for each in sent.named("update")] == [False, True]


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


@pytest.mark.parametrize("make", [ShardedCluster, Standalone])
def test_behind_mongos_and_on_a_standalone_it_is_sent_as_it_is(
    make: Any, server: EmbeddedServer, side: Side, database: str, control: Any,
    instrument: Instrument,
) -> None:  # fmt: skip
    instrument(timeout_ms=20_000)
    control[database].coll.insert_one({"_id": 1, "n": 0})
    with make(server.address) as deployment:
        coll = side.client(deployment.uri)[database].coll
        side.do(coll.find_one)
        deployment.inject(CutAfter("update"))
        with pytest.raises(AutoReconnect):
            side.do(coll.update_many, {"_id": 1}, INC)
        side.do(coll.database.client.close)
    assert control[database].coll.distinct("n") == [1]
