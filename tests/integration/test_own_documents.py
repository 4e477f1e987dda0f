"""An insert whose reply was lost, on a server that does not recognize its retry: a standalone.

The retry finds the documents to be there. If they are those that were sent, the insert succeeded.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, ObjectId
from pymongo import InsertOne, ReplaceOne, UpdateOne
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ClientBulkWriteException,
    DuplicateKeyError,
    InvalidOperation,
    PyMongoError,
)
from pymongo_resilience_instrumentation.retries import own_documents
from support.clients import SentCommands, Side
from support.small_batches import SmallBatches
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


def client_bulk(coll: Any, *, ordered: bool, verbose: bool) -> Any:
    """Two collections, and an update between the inserts, of a document that is not there."""
    names = coll.full_name, f"{coll.database.name}.other"
    inserts = [InsertOne(each, names[0]) for each in documents(*range(5))]
    others = [InsertOne(each, names[1]) for each in documents(*range(5, 8))]
    update = UpdateOne({"_id": -1}, {"$set": {"n": -1}}, namespace=names[0])
    models = [*inserts, update, *others]
    return coll.database.client.bulk_write(models, ordered=ordered, verbose_results=verbose)


def replace_one(coll: Any) -> Any:
    """What it inserts does not match its own filter."""
    return coll.replace_one({"_id": 1, "n": -1}, documents(0, 1)[1], upsert=True)


def replace_in_bulk(coll: Any) -> Any:
    replaced = [
        ReplaceOne({"_id": each["_id"], "n": -1}, each, upsert=True) for each in documents(0, 1, 2)
    ]
    return coll.bulk_write([*replaced, UpdateOne({"_id": -1}, {"$set": {"n": -2}})])


def replace_by_client(coll: Any) -> Any:
    replaced = [
        ReplaceOne({"_id": each["_id"], "n": -1}, each, upsert=True, namespace=coll.full_name)
        for each in documents(0, 1, 2)
    ]
    return coll.database.client.bulk_write(replaced, verbose_results=True)


INSERTS: dict[str, Callable[[Any], Any]] = {
    "insert_one": insert_one, "insert_new": insert_new, "insert_many": insert_many,
    "unordered": unordered, "bulk_write": bulk_write,
    "client": partial(client_bulk, ordered=True, verbose=False),
    "client, verbose": partial(client_bulk, ordered=True, verbose=True),
    "client, unordered": partial(client_bulk, ordered=False, verbose=True),
    "replace_one": replace_one, "replace in a bulk": replace_in_bulk,
    "replace by client": replace_by_client,
}  # fmt: skip
COMMANDS = dict.fromkeys(INSERTS, "insert") | {
    "client": "bulkWrite", "client, verbose": "bulkWrite", "client, unordered": "bulkWrite",
    "replace_one": "update", "replace in a bulk": "update", "replace by client": "bulkWrite",
}  # fmt: skip
COUNTS = (
    "inserted_ids", "inserted_count", "modified_count", "matched_count", "upserted_count",
    "upserted_id", "upserted_ids", "insert_results", "update_results",
)  # fmt: skip


def shown(result: Any, name: str) -> dict[str, str]:
    """What the result says; of an insert without ``_id`` not which one it was given."""
    found = {}
    for each in COUNTS:
        if each == "inserted_ids" and name == "insert_many":
            continue
        with contextlib.suppress(AttributeError, InvalidOperation):
            value = getattr(result, each)
            if each.endswith("_results"):
                value = {index: shown(one, name) for index, one in value.items()}
            found[each] = str(value)
    return found


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


def lost(side: Side, alone: Standalone, coll: Any, name: str) -> Any:
    """The call's result; the reply of its first command is lost."""
    alone.inject(CutAfter(COMMANDS[name]))
    with override(idempotent=True):
        return side.do(INSERTS[name], coll)


def all_of(control: Any, coll: Any, name: str) -> list[Any]:
    database = control[coll.database.name]
    fields = {"_id": name != "insert_new"}
    found = [
        database[each].find({}, fields, sort=[("_id", 1)]).to_list() for each in ("coll", "other")
    ]
    for each in ("coll", "other"):
        database[each].delete_many({})
    return found


@pytest.mark.parametrize("name", INSERTS)
def test_it_succeeds_if_what_is_there_is_what_was_sent(
    name: str, side: Side, alone: Standalone, coll: Any, control: Any, instrument: Instrument
) -> None:
    call = INSERTS[name]
    alone.inject(CutAfter(COMMANDS[name]))
    with set_active(False), pytest.raises((AutoReconnect, ClientBulkWriteException)):
        side.do(call, coll)  # pymongo alone
    all_of(control, coll, name)
    with set_active(False):
        healthy = side.do(call, coll)
    stored = all_of(control, coll, name)
    instrument()
    result = lost(side, alone, coll, name)
    assert result.acknowledged
    assert shown(result, name) == shown(healthy, name)
    found = all_of(control, coll, name)
    if name == "insert_many":
        assert list(map(len, found)) == list(map(len, stored))
    else:
        assert found == stored


DUPLICATES = (DuplicateKeyError, BulkWriteError, ClientBulkWriteException)


@pytest.mark.parametrize("name", sorted(INSERTS.keys() - {"insert_new"}))
def test_another_document_under_its_id_is_a_duplicate(
    name: str, side: Side, alone: Standalone, coll: Any, control: Any, instrument: Instrument
) -> None:
    """Also if it is inserted between both attempts, or differs in a type alone."""
    instrument()
    control[coll.database.name].coll.insert_one({**documents(0, 1)[1], "long": 1.0})
    with pytest.raises(DUPLICATES) as caught:
        lost(side, alone, coll, name)
    assert "may have stored this document itself" in str(caught.value)
    if not isinstance(caught.value, DuplicateKeyError):
        details: Any = caught.value.details
        (error,) = details["writeErrors"]
        assert error.get("index", error.get("idx")) == 1
        expected = {"unordered": 49, "client, unordered": 7, "replace in a bulk": 0}
        expected["replace by client"] = 0
        assert details["nInserted"] == expected.get(name, 1)
        assert details["nUpserted"] == (1 if "replace" in name else 0)
    assert control[coll.database.name].coll.find_one({"_id": 1})["long"] == 1.0


@pytest.mark.parametrize("by_client", [False, True], ids=["collection", "client"])
def test_an_equal_document_of_another_command_is_a_duplicate(
    by_client: bool, side: Side, alone: Standalone, database: str, control: Any,
    instrument: Instrument,
) -> None:  # fmt: skip
    """A reply was lost, but not that of the command that inserts it: somebody else stored it."""
    instrument()
    alone.inject(SmallBatches())
    client = side.client(alone.uri)
    side.do(client.admin.command, "ping")
    first, second = documents(0, 1)
    control[database].coll.insert_one(second)
    alone.inject(CutAfter("bulkWrite" if by_client else "insert"))
    name = f"{database}.coll" if by_client else None
    models = [InsertOne(first, name), InsertOne(second, name)]
    target = client if by_client else client[database].coll
    with override(idempotent=True), pytest.raises(DUPLICATES) as caught:
        side.do(target.bulk_write, models)
    details: Any = caught.value.details
    (error,) = details["writeErrors"]
    assert (error["code"], error.get("index", error.get("idx"))) == (11000, 1)


def test_a_duplicate_of_another_index_is_one(
    side: Side, alone: Standalone, coll: Any, control: Any, instrument: Instrument
) -> None:
    instrument()
    control[coll.database.name].coll.create_index("n", unique=True)
    control[coll.database.name].coll.insert_one({"_id": "other", "n": 0})
    with pytest.raises(DuplicateKeyError):
        lost(side, alone, coll, "insert_one")


@pytest.mark.parametrize("name", INSERTS)
def test_nothing_is_read_unless_a_reply_was_lost(
    name: str, side: Side, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    instrument()
    with override(idempotent=True):
        side.do(INSERTS[name], coll)
        if name != "insert_new":
            with pytest.raises(DUPLICATES):
                side.do(insert_one if name == "insert_one" else unordered, coll)
    assert sent.named("find") == []


@pytest.mark.parametrize("name", INSERTS)
def test_what_cannot_be_read_stays_a_duplicate(
    name: str, side: Side, alone: Standalone, coll: Any, instrument: Instrument
) -> None:
    instrument()
    alone.inject(CutBefore("find", times=9))
    with pytest.raises(DUPLICATES):
        lost(side, alone, coll, name)


def test_without_a_declaration_there_is_no_retry(
    side: Side, alone: Standalone, coll: Any, instrument: Instrument
) -> None:
    instrument()
    alone.inject(CutAfter("insert"))
    with pytest.raises(PyMongoError) as caught:
        side.do(insert_one, coll)
    assert not isinstance(caught.value, DuplicateKeyError)


def test_an_upsert_by_operators_says_that_it_may_be_its_own(
    side: Side, alone: Standalone, coll: Any, control: Any, instrument: Instrument
) -> None:
    """What it would have inserted, only the server knows."""
    instrument()
    alone.inject(CutAfter("update"))
    with override(idempotent=True), pytest.raises(DuplicateKeyError) as caught:
        side.do(coll.update_one, {"_id": 1, "n": 0}, {"$set": {"n": 1}}, upsert=True)
    assert "may have stored this document itself" in str(caught.value)
    assert control[coll.database.name].coll.find_one() == {"_id": 1, "n": 1}


@pytest.mark.parametrize("broken", ["found", "run", "settled", "search"])
@pytest.mark.parametrize("name", ["insert_one", "bulk_write", "client"])
def test_a_bug_of_ours_leaves_the_servers_answer(
    name: str, broken: str, side: Side, alone: Standalone, coll: Any, instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def bug(*_: Any) -> Any:
        raise AttributeError("a bug")

    if broken == "search":
        monkeypatch.setattr(own_documents, "searches_for", bug)
    elif broken == "settled":
        monkeypatch.setattr(own_documents.Batch, "_settled", bug)
        monkeypatch.setattr(own_documents, "_result", bug)
    else:
        monkeypatch.setattr(own_documents.Search, broken, bug)
    instrument()
    with pytest.raises(DUPLICATES):
        lost(side, alone, coll, name)
    assert "internal error" in caplog.text


@pytest.mark.parametrize("name", ["unordered", "bulk_write", "client", "insert_one"])
def test_a_certain_duplicate_has_no_such_text(
    name: str, side: Side, coll: Any, control: Any, instrument: Instrument
) -> None:
    instrument()
    control[coll.database.name].coll.insert_one({"_id": 1})
    with override(idempotent=True), pytest.raises(DUPLICATES) as caught:
        side.do(INSERTS[name], coll)
    assert "itself" not in str(caught.value)
