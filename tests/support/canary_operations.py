"""Every public operation the library wraps, with canaries wherever one fits."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bson import DBRef
from pymongo import DeleteMany, DeleteOne, IndexModel, InsertOne, ReplaceOne, UpdateMany, UpdateOne
from pymongo.operations import SearchIndexModel
from support.canaries import BINARY, DATE, FLOAT, MARK, NUMBER, OBJECT_ID, document, matching, text
from support.clients import Side


@dataclass
class Place:
    """Where the operations run: a client of one side, a database, a collection with documents."""

    side: Side
    client: Any
    database: Any
    coll: Any
    _numbers: Any = field(default_factory=itertools.count)

    def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self.side.do(function, *args, **kwargs)

    def all(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """The documents of the cursor that a call returns."""
        return self.side.documents(self.do(function, *args, **kwargs))

    def spare(self, kind: str = "spare") -> Any:
        """Another collection, with a document and an index, to be changed or dropped."""
        coll = self.database[f"{kind}{next(self._numbers)}"]
        self.do(coll.insert_one, document("a spare collection"))
        self.do(coll.create_index, "text", name=f"{MARK}-index")
        return coll

    def peek(self, watch: Callable[..., Any]) -> None:
        """Open a change stream, change something, and read what it says."""
        stream = self.do(
            watch,
            [{"$match": {"fullDocument.text": text("a watched insert")}}],
            full_document="updateLookup",
            max_await_time_ms=200,
            comment=text("a comment"),
        )
        self.do(self.coll.insert_one, document("a watched insert"))
        change = self.do(stream.next)
        assert change["fullDocument"]["text"] == text("a watched insert")
        self.do(stream.close)


CHANGE = {"$set": {"more": text("an update"), f"{MARK}-new": NUMBER}, "$push": {"list": FLOAT}}
PIPELINE = [
    {"$match": matching("a pipeline")},
    {"$addFields": {"sum": {"$add": ["$number", NUMBER]}, "said": text("a stage")}},
    {"$project": {f"{MARK}-out": "$$said", "sum": 1}},
]
ARGUMENTS: dict[str, Any] = {"comment": text("a comment")}
LET: dict[str, Any] = {"let": {"said": text("let")}, **ARGUMENTS}
SEARCH = {"mappings": {"dynamic": True, "fields": {MARK: {"type": "string"}}}}

Operation = Callable[[Place], Any]

COLLECTION: dict[str, Operation] = {
    "insert_one": lambda p: p.do(p.coll.insert_one, document("insert_one"), **ARGUMENTS),
    "insert_many": lambda p: p.do(
        p.coll.insert_many, [document(f"insert_many {n}") for n in range(8)], **ARGUMENTS
    ),
    "find_one": lambda p: p.do(
        p.coll.find_one,
        matching("find_one"),
        {"said": {"$literal": text("a projection")}},
        **LET,
    ),
    "aggregate": lambda p: p.all(p.coll.aggregate, PIPELINE, **LET),
    "aggregate_raw_batches": lambda p: p.all(p.coll.aggregate_raw_batches, PIPELINE, **LET),
    "bulk_write": lambda p: p.do(
        p.coll.bulk_write,
        [
            InsertOne(document("bulk_write")),
            UpdateOne(matching("a bulk update"), CHANGE, hint="_id_"),
            UpdateMany({"text": text("nothing")}, [{"$set": {"said": text("a pipeline")}}]),
            ReplaceOne({"number": NUMBER, "text": text("none")}, document("a bulk replacement")),
            DeleteOne({"number": NUMBER, "text": text("none"), f"{MARK}-field": 1}),
            DeleteMany({"reference": OBJECT_ID, "text": text("none")}),
        ],
        **LET,
    ),
    "count_documents": lambda p: p.do(
        p.coll.count_documents, matching("count_documents"), **ARGUMENTS
    ),
    "create_index": lambda p: p.do(
        p.coll.create_index,
        "number",
        name=f"{MARK}-partial",
        partialFilterExpression={"number": {"$gt": NUMBER}, "text": text("a partial filter")},
        **ARGUMENTS,
    ),
    "create_indexes": lambda p: p.do(
        p.coll.create_indexes,
        [IndexModel(f"{MARK}-field", name=f"{MARK}-indexes"), IndexModel("date")],
        **ARGUMENTS,
    ),
    "create_search_index": lambda p: p.do(
        p.coll.create_search_index, SearchIndexModel(SEARCH, name=MARK), **ARGUMENTS
    ),
    "create_search_indexes": lambda p: p.do(
        p.coll.create_search_indexes, [SearchIndexModel(SEARCH, name=MARK)], **ARGUMENTS
    ),
    "delete_many": lambda p: p.do(
        p.spare().delete_many, matching("delete_many"), hint=f"{MARK}-index", **LET
    ),
    "delete_one": lambda p: p.do(p.spare().delete_one, matching("delete_one"), **LET),
    "distinct": lambda p: p.do(p.coll.distinct, "text", matching("distinct"), **ARGUMENTS),
    "drop": lambda p: p.do(p.spare().drop, **ARGUMENTS),
    "drop_index": lambda p: p.do(p.spare().drop_index, f"{MARK}-index", **ARGUMENTS),
    "drop_indexes": lambda p: p.do(p.spare().drop_indexes, **ARGUMENTS),
    "drop_search_index": lambda p: p.do(p.coll.drop_search_index, MARK, **ARGUMENTS),
    "estimated_document_count": lambda p: p.do(p.coll.estimated_document_count, **ARGUMENTS),
    "find_one_and_delete": lambda p: p.do(
        p.spare().find_one_and_delete, matching("find_one_and_delete"), **LET
    ),
    "find_one_and_replace": lambda p: p.do(
        p.spare().find_one_and_replace, matching("a filter"), document("a replacement"), **LET
    ),
    "find_one_and_update": lambda p: p.do(
        p.spare().find_one_and_update, matching("a filter"), CHANGE, **LET
    ),
    "index_information": lambda p: p.do(p.coll.index_information, **ARGUMENTS),
    "list_indexes": lambda p: p.all(p.coll.list_indexes, **ARGUMENTS),
    "list_search_indexes": lambda p: p.all(p.coll.list_search_indexes, MARK, **ARGUMENTS),
    "options": lambda p: p.do(p.database.strict.options, **ARGUMENTS),
    "rename": lambda p: p.do(p.spare().rename, f"renamed{next(p._numbers)}", **ARGUMENTS),
    "replace_one": lambda p: p.do(
        p.spare().replace_one, matching("replace_one"), document("a replacement"), **LET
    ),
    "update_many": lambda p: p.do(
        p.spare().update_many,
        matching("update_many"),
        {"$set": {"list.$[each]": text("an array filter")}},
        array_filters=[{"each": {"$in": [NUMBER, text("an array filter")]}}],
        **LET,
    ),
    "update_one": lambda p: p.do(p.spare().update_one, matching("update_one"), CHANGE, **LET),
    "update_search_index": lambda p: p.do(p.coll.update_search_index, MARK, SEARCH, **ARGUMENTS),
    "watch": lambda p: p.peek(p.coll.watch),
}

DATABASE: dict[str, Operation] = {
    "aggregate": lambda p: p.all(
        p.database.aggregate, [{"$documents": [document("$documents")]}, *PIPELINE], **LET
    ),
    "command": lambda p: p.do(
        p.database.command,
        {"insert": p.coll.name, "documents": [document("a command")], **ARGUMENTS},
    ),
    "create_collection": lambda p: p.do(
        p.database.create_collection,
        f"created{next(p._numbers)}",
        validator={"text": {"$ne": text("a validator")}, "number": {"$ne": NUMBER}},
        **ARGUMENTS,
    ),
    "cursor_command": lambda p: p.all(
        p.database.cursor_command,
        {"find": p.coll.name, "filter": matching("a cursor command"), "batchSize": 1, **ARGUMENTS},
    ),
    "dereference": lambda p: p.do(
        p.database.dereference, DBRef(p.coll.name, text("a reference")), **ARGUMENTS
    ),
    "drop_collection": lambda p: p.do(p.database.drop_collection, p.spare(), **ARGUMENTS),
    "list_collection_names": lambda p: p.do(
        p.database.list_collection_names, filter={"name": text("a filter")}, **ARGUMENTS
    ),
    "list_collections": lambda p: p.all(
        p.database.list_collections, filter={"name": {"$ne": text("a filter")}}, **ARGUMENTS
    ),
    "validate_collection": lambda p: p.do(p.database.validate_collection, p.coll, **ARGUMENTS),
    "watch": lambda p: p.peek(p.database.watch),
}


def _namespace(p: Place) -> dict[str, str]:
    return {"namespace": f"{p.database.name}.{p.coll.name}"}


CLIENT: dict[str, Operation] = {
    "bulk_write": lambda p: p.do(
        p.client.bulk_write,
        [
            InsertOne(document("a client's bulk"), **_namespace(p)),
            UpdateOne(matching("a client's bulk"), CHANGE, **_namespace(p)),
            ReplaceOne({"text": text("none")}, document("a client's bulk"), **_namespace(p)),
            DeleteMany({"binary": BINARY, "text": text("none")}, **_namespace(p)),
        ],
        verbose_results=True,
        **LET,
    ),
    "drop_database": lambda p: p.do(
        p.client.drop_database, f"{p.database.name}_dropped", **ARGUMENTS
    ),
    "list_database_names": lambda p: p.do(p.client.list_database_names, **ARGUMENTS),
    "list_databases": lambda p: p.all(
        p.client.list_databases, filter={"name": {"$ne": text("a filter")}}, **ARGUMENTS
    ),
    "server_info": lambda p: p.do(p.client.server_info),
    "watch": lambda p: p.peek(p.client.watch),
}

NOT_ON_THIS_SERVER = frozenset({
    "create_search_index", "create_search_indexes", "drop_search_index", "list_search_indexes",
    "update_search_index",
})  # fmt: skip
"""Atlas Search alone has them: sent, seen and refused with code 31082 or 6047401."""


def _transaction(p: Place) -> None:
    """Commit and abort enter the driver's loop without a wrapper: no span, but a call of ours."""
    session = p.client.start_session()
    for end in (session.commit_transaction, session.abort_transaction):
        p.do(session.start_transaction)
        p.do(p.coll.insert_one, document("a transaction"), session=session)
        p.do(p.coll.update_one, matching("a transaction"), CHANGE, session=session)
        p.do(end)
    p.do(session.end_session)


def _cursor(p: Place) -> None:
    found = p.coll.find(
        {"number": NUMBER},
        {"said": {"$literal": text("a projection")}, "number": 1},
        batch_size=2,
        sort=[(f"{MARK}-field", 1)],
        **LET,
    )
    assert len(p.side.documents(found)) > 4, "getMore is an operation as well"
    p.side.documents(p.coll.find_raw_batches(matching("raw batches"), batch_size=2))
    p.do(p.coll.find(matching("explain")).explain)
    half_read = p.coll.find({"number": NUMBER, "date": DATE}, batch_size=1)
    p.do(half_read.next)
    p.do(half_read.close)


def _files(p: Place) -> None:
    import gridfs  # noqa: PLC0415 - one half of it for each side

    kind = gridfs.GridFSBucket if p.side.name == "sync" else gridfs.AsyncGridFSBucket
    bucket = kind(p.database)
    name, data = text("a file's name"), text("a file's content").encode()
    stored = p.do(
        bucket.upload_from_stream, name, data, metadata=document("metadata"), chunk_size_bytes=7
    )
    stream = p.do(bucket.open_download_stream_by_name, name)
    assert p.do(stream.read) == data
    assert len(p.side.documents(bucket.find({"filename": name}))) == 1
    p.do(bucket.rename, stored, text("a new name"))
    p.do(bucket.delete, stored)


def _unacknowledged(p: Place) -> None:
    silent = p.coll.with_options(write_concern=p.coll.write_concern.__class__(w=0))
    p.do(silent.insert_one, document("nobody answers"))


def _users(p: Place) -> None:
    name = f"{MARK}-somebody"
    p.do(p.database.command, "createUser", name, pwd=f"{MARK}-password", roles=["read"])
    p.do(p.database.command, "updateUser", name, pwd=f"{MARK}-another", roles=["read"])
    p.do(p.database.command, "usersInfo", name)
    p.do(p.database.command, "grantRolesToUser", name, roles=["readWrite"])
    p.do(p.database.command, "dropUser", name)


BESIDE: dict[str, tuple[Operation, str]] = {
    # what else reaches the server, each with a command that proves it was there
    "transaction": (_transaction, "abortTransaction"),
    "cursor": (_cursor, "getMore"),
    "GridFS": (_files, "insert"),
    "unacknowledged": (_unacknowledged, "insert"),
    "users": (_users, "usersInfo"),
    "a value where a collection's name might be": (
        lambda p: p.do(p.database.command, "ping", text("ping")), "ping",
    ),
}  # fmt: skip
