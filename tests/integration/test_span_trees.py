"""The spans of each operation, compared whole: names, kinds, parents, and every attribute."""

from __future__ import annotations

import functools
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
TXN, CURSOR = "txn_number", "cursor_id"
MIXED = [InsertOne({"_id": 9}), UpdateOne({"_id": 9}, SET), DeleteOne({"_id": 9})]

Call = Callable[[Any], tuple[Any, ...]]
Command = tuple[Any, ...]
"""Its name, and the ids that it carries."""


def _of(name: str, *args: Any, **kwargs: Any) -> Call:
    return lambda owner: (functools.partial(getattr(owner, name), *args, **kwargs),)


COLLECTION: dict[str, tuple[Call, str, list[Command]]] = {
    "find_one": (_of("find_one"), "find", [("find",)]),
    "insert_one": (_of("insert_one", {"_id": 5}), "insert", [("insert", TXN)]),
    "insert_many": (_of("insert_many", [{}, {}]), "insert", [("insert", TXN)]),
    "update_one": (_of("update_one", {}, SET), "update", [("update", TXN)]),
    "update_many": (_of("update_many", {}, SET), "update", [("update",)]),
    "replace_one": (_of("replace_one", {}, {"a": 1}), "update", [("update", TXN)]),
    "delete_one": (_of("delete_one", {}), "delete", [("delete", TXN)]),
    "delete_many": (_of("delete_many", {}), "delete", [("delete",)]),
    "find_one_and_update": (
        _of("find_one_and_update", {}, SET), "findAndModify", [("findAndModify", TXN)],
    ),
    "find_one_and_replace": (
        _of("find_one_and_replace", {}, {}), "findAndModify", [("findAndModify", TXN)],
    ),
    "find_one_and_delete": (
        _of("find_one_and_delete", {}), "findAndModify", [("findAndModify", TXN)],
    ),
    "aggregate": (_of("aggregate", []), "aggregate", [("aggregate",)]),
    "aggregate that goes on": (
        _of("aggregate", [], batchSize=1), "aggregate", [("aggregate", CURSOR)],
    ),
    # pymongo asks for an empty first batch.
    "aggregate_raw_batches": (
        _of("aggregate_raw_batches", []), "aggregate", [("aggregate", CURSOR)],
    ),
    "count_documents": (_of("count_documents", {}), "aggregate", [("aggregate",)]),
    "estimated_document_count": (_of("estimated_document_count"), "count", [("count",)]),
    "distinct": (_of("distinct", "a"), "distinct", [("distinct",)]),
    "bulk_write": (
        _of("bulk_write", MIXED), "bulkWrite",
        [("insert", TXN), ("update", TXN), ("delete", TXN)],
    ),
    "create_index": (_of("create_index", "a"), "createIndexes", [("createIndexes",)]),
    "create_indexes": (
        _of("create_indexes", [IndexModel("b")]), "createIndexes", [("createIndexes",)],
    ),
    "drop_index": (_of("drop_index", "text_1"), "dropIndexes", [("dropIndexes",)]),
    "drop_indexes": (_of("drop_indexes"), "dropIndexes", [("dropIndexes",)]),
    "list_indexes": (_of("list_indexes"), "listIndexes", [("listIndexes",)]),
    "index_information": (_of("index_information"), "listIndexes", [("listIndexes",)]),
    "drop": (_of("drop"), "dropCollection", [("drop",)]),
    "watch": (_of("watch"), "aggregate", [("aggregate", CURSOR)]),
}  # fmt: skip


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


@pytest.mark.parametrize("method", COLLECTION)
def test_an_operation_on_a_collection(
    method: str, side: Side, server: EmbeddedServer, database: str, drawn: Any
) -> None:
    call, name, commands = COLLECTION[method]
    port = server.address[1]
    assert drawn(lambda client: side.do(*call(client[database].coll))) == [
        operation(
            name, database, "coll",
            *(command(each, database, "coll", port, *ids) for each, *ids in commands),
        )
    ]  # fmt: skip


ELSEWHERE: dict[str, tuple[Callable[[Any, str], Any], str, str, str | None, list[Command]]] = {
    # method: (the call, operation, its database, its collection, [command, its database, its
    # collection, ids])
    "rename": (
        lambda c, d: c[d].coll.rename("renamed"), "renameCollection", "db", "coll",
        [("renameCollection", "admin", None)],
    ),
    "options": (
        lambda c, d: c[d].coll.options(), "listCollections", "db", "coll",
        [("listCollections", "db", None)],
    ),
    "create_collection": (
        lambda c, d: c[d].create_collection("made"), "createCollection", "db", "made",
        [("listCollections", "db", None), ("create", "db", "made")],
    ),
    "drop_collection": (
        lambda c, d: c[d].drop_collection("coll"), "dropCollection", "db", "coll",
        [("drop", "db", "coll")],
    ),
    "list_collections": (
        lambda c, d: c[d].list_collections(), "listCollections", "db", None,
        [("listCollections", "db", None)],
    ),
    "list_collection_names": (
        lambda c, d: c[d].list_collection_names(), "listCollections", "db", None,
        [("listCollections", "db", None)],
    ),
    "command": (
        lambda c, d: c[d].command("ping"), "runCommand", "db", None, [("ping", "db", None)],
    ),
    "command that names a collection": (
        lambda c, d: c[d].command("count", "coll"), "runCommand", "db", None,
        [("count", "db", "coll")],
    ),
    "command that is sensitive": (
        lambda c, d: c[d].command("createUser", "ada", pwd="secret", roles=["read"]),
        "runCommand", "db", None, [],
    ),
    "cursor_command": (
        lambda c, d: c[d].cursor_command("find", "coll", batchSize=1), "runCommand", "db", None,
        [("find", "db", "coll", CURSOR)],
    ),
    "validate_collection": (
        lambda c, d: c[d].validate_collection("coll"), "runCommand", "db", "coll",
        [("validate", "db", "coll")],
    ),
    "aggregate": (
        lambda c, d: c[d].aggregate([{"$documents": [{}]}]), "aggregate", "db", None,
        [("aggregate", "db", None)],
    ),
    "watch a database": (
        lambda c, d: c[d].watch(), "aggregate", "db", None, [("aggregate", "db", None, CURSOR)],
    ),
    "watch all": (
        lambda c, _: c.watch(), "aggregate", "admin", None,
        [("aggregate", "admin", None, CURSOR)],
    ),
    "list_databases": (
        lambda c, _: c.list_databases(), "listDatabases", "admin", None,
        [("listDatabases", "admin", None)],
    ),
    "list_database_names": (
        lambda c, _: c.list_database_names(), "listDatabases", "admin", None,
        [("listDatabases", "admin", None)],
    ),
    "drop_database": (
        lambda c, d: c.drop_database(d), "dropDatabase", "db", None, [("dropDatabase", "db", None)],
    ),
    "server_info": (
        lambda c, _: c.server_info(), "runCommand", "admin", None, [("buildinfo", "admin", None)],
    ),
    "bulk_write": (
        lambda c, d: c.bulk_write([InsertOne({}, namespace=f"{d}.coll")]), "bulkWrite", "admin",
        None, [("bulkWrite", "admin", None, TXN)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("method", cases(ELSEWHERE, {"aggregate": "5.1"}))
def test_an_operation_on_a_database_or_a_client(
    method: str, side: Side, server: EmbeddedServer, database: str, drawn: Any
) -> None:
    call, name, place, collection, commands = ELSEWHERE[method]
    places = {"db": database, "admin": "admin"}
    assert drawn(lambda client: side.do(call, client, database)) == [
        operation(
            name, places[place], collection,
            *(
                command(each, places[where], coll, server.address[1], *ids)
                for each, where, coll, *ids in commands
            ),
        )
    ]  # fmt: skip


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
        one("find", "find", CURSOR),
        one("getMore", "getMore", CURSOR),
        one("getMore", "getMore", CURSOR),
        one("find", "find", CURSOR),
        one("killCursors", "killCursors", CURSOR),
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
        one("aggregate", CURSOR), one("insert", TXN), one("killCursors", CURSOR),
    ]  # fmt: skip
    # As many as the server needs to have the event.
    assert more
    assert [each for each in more if each != one("getMore", CURSOR)] == []


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
