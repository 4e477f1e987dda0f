"""An insert whose reply was lost, on a server that does not recognize its retry: a standalone.

The retry finds the documents to be there. If they are those that were sent, the insert succeeded.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, ObjectId
from pymongo import InsertOne, UpdateOne
from pymongo.errors import AutoReconnect, BulkWriteError, DuplicateKeyError, PyMongoError
from support.clients import SentCommands, Side
from support.telemetry import Instrument

from pymongo_resilience import override
from pymongo_resilience.testbed import CutAfter, CutBefore, EmbeddedServer, Standalone
from pymongo_resilience.testing import set_active

pytestmark = pytest.mark.each_setup

VALUES = {
    "text": "x", "date": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "bytes": Binary(b"x", 7),
    "long": Int64(1),
    "decimal": Decimal128("1.10"), "old uuid": Binary.from_uuid(uuid.UUID(int=1), 3),
    "nested": {"_id": 1, "list": [1, {"a": None}]},
}  # fmt: skip


def documents(*ids: Any) -> list[dict[str, Any]]:
    """The ``_id`` comes last, as if pymongo had added it."""
    return [{**VALUES, "n": number, "_id": each} for number, each in enumerate(ids)]


def insert_one(coll: Any) -> Any:
    return coll.insert_one(documents(1)[0])


def insert_new(coll: Any) -> Any:
    return coll.insert_one({**VALUES})


def insert_many(coll: Any) -> Any:
    return coll.insert_many(documents(*range(50), ObjectId(), {"a": 1}, "s"))


def unordered(coll: Any) -> Any:
    return coll.insert_many(documents(*range(50)), ordered=False)


def bulk_write(coll: Any) -> Any:
    inserts = [InsertOne(each) for each in documents(*range(5))]
    return coll.bulk_write([*inserts, UpdateOne({"_id": 0}, {"$set": {"n": -1}})])


INSERTS: dict[str, Callable[[Any], Any]] = {
    "insert_one": insert_one, "insert_new": insert_new, "insert_many": insert_many,
    "unordered": unordered, "bulk_write": bulk_write,
}  # fmt: skip


@pytest.fixture
def alone(server: EmbeddedServer) -> Iterator[Standalone]:
    with Standalone(server.address) as running:
        yield running


@pytest.fixture
def coll(side: Side, alone: Standalone, database: str, sent: SentCommands) -> Any:
    coll = side.client(alone.uri, event_listeners=[sent])[database].coll
    with set_active(False):
        side.do(coll.database.client.admin.command, "ping")
    return coll


def lost(side: Side, alone: Standalone, coll: Any, call: Callable[[Any], Any]) -> Any:
    """The call's result; the reply of its first insert is lost."""
    alone.inject(CutAfter("insert"))
    with override(idempotent=True):
        return side.do(call, coll)


@pytest.mark.parametrize("name", INSERTS)
def test_it_succeeds_if_what_is_there_is_what_was_sent(
    name: str, side: Side, alone: Standalone, coll: Any, control: Any, instrument: Instrument
) -> None:
    call = INSERTS[name]
    alone.inject(CutAfter("insert"))
    with set_active(False), pytest.raises(AutoReconnect):  # pymongo alone
        side.do(call, coll)
    control[coll.database.name].coll.delete_many({})
    with set_active(False):
        healthy = side.do(call, coll)
    stored = control[coll.database.name].coll.find({}, {"_id": name != "insert_new"}).to_list()
    control[coll.database.name].coll.delete_many({})
    instrument()
    result = lost(side, alone, coll, call)
    assert result.acknowledged
    for each in ("inserted_ids", "inserted_count", "modified_count"):
        if name != "insert_many" or each != "inserted_ids":
            assert getattr(result, each, None) == getattr(healthy, each, None)
    found = control[coll.database.name].coll.find({}, {"_id": name != "insert_new"}).to_list()
    assert len(found) == len(stored)
    if name != "insert_many":
        assert found == stored


@pytest.mark.parametrize("name", sorted(INSERTS.keys() - {"insert_new"}))
def test_another_document_under_its_id_is_a_duplicate(
    name: str, side: Side, alone: Standalone, coll: Any, control: Any, instrument: Instrument
) -> None:
    """Also if it is inserted between both attempts, or differs in a type alone."""
    instrument()
    control[coll.database.name].coll.insert_one({**documents(0, 1)[1], "long": 1.0})
    with pytest.raises((DuplicateKeyError, BulkWriteError)) as caught:
        lost(side, alone, coll, INSERTS[name])
    if isinstance(caught.value, BulkWriteError):
        (error,) = caught.value.details["writeErrors"]
        assert error["index"] == 1
        expected = 49 if name == "unordered" else 1
        assert caught.value.details["nInserted"] == expected
    else:
        assert "may have inserted this document itself" in str(caught.value)
    assert control[coll.database.name].coll.find_one({"_id": 1})["long"] == 1.0


def test_a_duplicate_of_another_index_is_one(
    side: Side, alone: Standalone, coll: Any, control: Any, instrument: Instrument
) -> None:
    instrument()
    control[coll.database.name].coll.create_index("n", unique=True)
    control[coll.database.name].coll.insert_one({"_id": "other", "n": 0})
    with pytest.raises(DuplicateKeyError):
        lost(side, alone, coll, insert_one)


@pytest.mark.parametrize("name", INSERTS)
def test_nothing_is_read_unless_a_reply_was_lost(
    name: str, side: Side, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    instrument()
    with override(idempotent=True):
        side.do(INSERTS[name], coll)
        if name != "insert_new":
            with pytest.raises((DuplicateKeyError, BulkWriteError)):
                side.do(insert_one if name == "insert_one" else unordered, coll)
    assert sent.named("find") == []


@pytest.mark.parametrize("name", INSERTS)
def test_what_cannot_be_read_stays_a_duplicate(
    name: str, side: Side, alone: Standalone, coll: Any, instrument: Instrument
) -> None:
    instrument()
    alone.inject(CutBefore("find", times=9))
    with pytest.raises((DuplicateKeyError, BulkWriteError)):
        lost(side, alone, coll, INSERTS[name])


def test_without_a_declaration_there_is_no_retry(
    side: Side, alone: Standalone, coll: Any, instrument: Instrument
) -> None:
    instrument()
    alone.inject(CutAfter("insert"))
    with pytest.raises(PyMongoError) as caught:
        side.do(insert_one, coll)
    assert not isinstance(caught.value, DuplicateKeyError)
