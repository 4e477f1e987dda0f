"""The spans of each operation, compared whole: names, kinds, parents, and every attribute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pymongo import DeleteOne, InsertOne, UpdateOne
from pymongo.operations import IndexModel
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import Side
from support.servers import cases
from support.span_trees import command, operation, trees
from support.telemetry import Instrument

SET = {"$set": {"a": 1}}
MIXED = [InsertOne({"_id": 9}), UpdateOne({"_id": 9}, SET), DeleteOne({"_id": 9})]
USER: dict[str, Any] = {"pwd": "secret", "roles": ["read"]}

Call = Callable[[Any], Any]


def _coll(name: str, *args: Any, **kwargs: Any) -> Call:
    return lambda db: getattr(db.coll, name)(*args, **kwargs)


def _db(name: str, *args: Any, **kwargs: Any) -> Call:
    return lambda db: getattr(db, name)(*args, **kwargs)


CALLS: dict[str, tuple[Any, ...]] = {
    "find_one": (_coll("find_one"), "find coll"),
    "insert_one": (_coll("insert_one", {"_id": 5}), "insert coll", "insert coll txn_number"),
    "insert_many": (_coll("insert_many", [{}, {}]), "insert coll", "insert coll txn_number"),
    "update_one": (_coll("update_one", {}, SET), "update coll", "update coll txn_number"),
    "update_many": (_coll("update_many", {}, SET), "update coll"),
    "replace_one": (_coll("replace_one", {}, {"a": 1}), "update coll", "update coll txn_number"),
    "delete_one": (_coll("delete_one", {}), "delete coll", "delete coll txn_number"),
    "delete_many": (_coll("delete_many", {}), "delete coll"),
    "find_one_and_update": (
        _coll("find_one_and_update", {}, SET), "findAndModify coll",
        "findAndModify coll txn_number",
    ),
    "aggregate": (_coll("aggregate", []), "aggregate coll"),
    "aggregate that goes on": (
        _coll("aggregate", [], batchSize=1), "aggregate coll", "aggregate coll cursor_id",
    ),
    # pymongo asks for an empty first batch.
    "aggregate_raw_batches": (
        _coll("aggregate_raw_batches", []), "aggregate coll", "aggregate coll cursor_id",
    ),
    "count_documents": (_coll("count_documents", {}), "aggregate coll"),
    "estimated_document_count": (_coll("estimated_document_count"), "count coll"),
    "distinct": (_coll("distinct", "a"), "distinct coll"),
    "bulk_write": (
        _coll("bulk_write", MIXED), "bulkWrite coll", "insert coll txn_number",
        "update coll txn_number", "delete coll txn_number",
    ),
    "create_index": (_coll("create_index", "a"), "createIndexes coll"),
    "create_indexes": (_coll("create_indexes", [IndexModel("b")]), "createIndexes coll"),
    "drop_index": (_coll("drop_index", "text_1"), "dropIndexes coll"),
    "list_indexes": (_coll("list_indexes"), "listIndexes coll"),
    "index_information": (_coll("index_information"), "listIndexes coll"),
    "drop": (_coll("drop"), "dropCollection coll", "drop coll"),
    "watch": (_coll("watch"), "aggregate coll", "aggregate coll cursor_id"),
    "rename": (_coll("rename", "renamed"), "renameCollection coll", "renameCollection admin"),
    "options": (_coll("options"), "listCollections coll", "listCollections db"),
    "create_collection": (
        _db("create_collection", "made"), "createCollection made", "listCollections db",
        "create made",
    ),
    "drop_collection": (_db("drop_collection", "coll"), "dropCollection coll", "drop coll"),
    "list_collections": (_db("list_collections"), "listCollections db"),
    "list_collection_names": (_db("list_collection_names"), "listCollections db"),
    "command": (_db("command", "ping"), "runCommand db", "ping db"),
    "command that names a collection": (
        _db("command", "count", "coll"), "runCommand db", "count coll",
    ),
    "command that is sensitive": (_db("command", "createUser", "ada", **USER), "runCommand db", ""),
    "cursor_command": (
        _db("cursor_command", "find", "coll", batchSize=1), "runCommand db", "find coll cursor_id",
    ),
    "validate_collection": (
        _db("validate_collection", "coll"), "runCommand coll", "validate coll",
    ),
    "aggregate of a database": (_db("aggregate", [{"$documents": [{}]}]), "aggregate db"),
    "watch a database": (_db("watch"), "aggregate db", "aggregate db cursor_id"),
    "watch all": (lambda db: db.client.watch(), "aggregate admin", "aggregate admin cursor_id"),
    "list_databases": (lambda db: db.client.list_databases(), "listDatabases admin"),
    "list_database_names": (lambda db: db.client.list_database_names(), "listDatabases admin"),
    "drop_database": (lambda db: db.client.drop_database(db.name), "dropDatabase db"),
    "server_info": (lambda db: db.client.server_info(), "runCommand admin", "buildinfo admin"),
    "bulk_write of a client": (
        lambda db: db.client.bulk_write([InsertOne({}, namespace=f"{db.name}.coll")]),
        "bulkWrite admin", "bulkWrite admin txn_number",
    ),
}  # fmt: skip
"""The call; its operation and commands, each with its database or collection and the ids that it
carries. Where no command is named, it is called as the operation is."""


def _place(word: str, database: str) -> tuple[str, str | None]:
    return {"db": (database, None), "admin": ("admin", None)}.get(word, (database, word))


@pytest.fixture
def drawn(
    side: Side, server: EmbeddedServer, database: str, instrument: Instrument
) -> Callable[..., Any]:
    """The trees of what is called with the client, which has two documents and an index."""
    telemetry = instrument()
    client = side.do(side.client, server.uri)
    coll = client[database].coll
    side.do(coll.insert_many, [{"_id": 1, "a": 0}, {"_id": 2, "a": 0}])
    side.do(coll.create_index, "text")

    def of(step: Callable[[Any], Any]) -> Any:
        telemetry.clear()
        step(client)
        return trees(telemetry.spans())

    return of


@pytest.mark.parametrize("method", cases(CALLS, {"aggregate of a database": "5.1"}))
def test_a_call(method: str, side: Side, server: EmbeddedServer, database: str, drawn: Any) -> None:
    call, shown, *commands = CALLS[method]
    name, where = shown.split()
    below = [
        command(sent, *_place(place, database), server.address[1], *ids)
        for sent, place, *ids in map(str.split, filter(None, commands or [shown]))
    ]
    assert drawn(lambda client: side.do(call, client[database])) == [
        operation(name, *_place(where, database), *below)
    ]


def test_a_cursor_that_is_read_and_one_that_is_closed(
    side: Side, server: EmbeddedServer, database: str, drawn: Any
) -> None:
    def read_and_close(client: Any) -> None:
        coll = client[database].coll
        assert len(side.documents(coll.find(batch_size=1))) == 2
        half_read = coll.find(batch_size=1)
        side.do(half_read.next)
        side.do(half_read.close)
        side.documents(coll.find_raw_batches())
        side.do(coll.find().explain)

    def one(name: str, sent: str, *ids: str) -> Any:
        where = None if sent == "explain" else "coll"
        below = command(sent, database, where, server.address[1], *ids)
        return operation(name, database, "coll", below)

    assert drawn(read_and_close) == [
        one("find", "find", "cursor_id"),
        one("getMore", "getMore", "cursor_id"),
        one("getMore", "getMore", "cursor_id"),
        one("find", "find", "cursor_id"),
        one("killCursors", "killCursors", "cursor_id"),
        one("find", "find"),
        one("find", "explain"),
    ]


def test_a_change_stream(side: Side, server: EmbeddedServer, database: str, drawn: Any) -> None:
    def watch(client: Any) -> None:
        stream = side.do(client[database].coll.watch, max_await_time_ms=1000)
        side.do(client[database].coll.insert_one, {"_id": 7})
        assert side.do(stream.next)["documentKey"] == {"_id": 7}
        side.do(stream.close)

    def one(name: str, *ids: str) -> Any:
        below = command(name, database, "coll", server.address[1], *ids)
        return operation(name, database, "coll", below)

    first, insert, *more, last = drawn(watch)
    assert [first, insert, last] == [
        one("aggregate", "cursor_id"), one("insert", "txn_number"), one("killCursors", "cursor_id"),
    ]  # fmt: skip
    # As many as the server needs to have the event.
    assert more
    assert [each for each in more if each != one("getMore", "cursor_id")] == []


def test_the_end_of_a_client(side: Side, server: EmbeddedServer, database: str, drawn: Any) -> None:
    def close(_: Any) -> None:
        client = side.client(server.uri)
        side.do(client.admin.command, "ping")
        side.do(client.close)

    ping, end = drawn(close)
    assert ping[0] == "runCommand admin"
    name, facts, _ = command("endSessions", "admin", None, server.address[1])
    del facts["db.mongodb.lsid"]
    assert end == operation("endSessions", "admin", None, (name, facts, []))
