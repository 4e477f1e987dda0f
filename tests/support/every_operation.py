"""Every operation that reaches the server, called once each: by class and method, as the documents
list them. With canaries wherever a value can be: see test_secrets.py."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gridfs
from bson import DBRef
from pymongo import DeleteMany, InsertOne, UpdateMany, UpdateOne
from pymongo.operations import IndexModel, SearchIndexModel
from support.canaries import FLOAT, MARK, NUMBER, document, matching, text
from support.clients import Side
from support.servers import has

SET = {"$set": {"n": 1, "more": text("an update"), f"{MARK}-new": NUMBER}, "$push": {"list": FLOAT}}
MATCH = [
    {"$match": matching("a pipeline")},
    {"$addFields": {"sum": {"$add": ["$number", NUMBER]}, "said": text("a stage")}},
    {"$project": {f"{MARK}-out": "$said", "sum": 1}},
]
OUT = [*MATCH, {"$out": "other"}]
DOCUMENTS = {"$documents": [document("$documents")]}
ARRAY = {"$set": {"list.$[each]": text("an array filter")}}
FILE = "file"


@dataclass
class Scene:
    """A client of one side, with something to work on."""

    side: Side
    uri: str
    client: Any
    name: str
    do: Callable[..., Any] = field(init=False)

    def __post_init__(self) -> None:
        self.do = self.side.do

    @property
    def db(self) -> Any:
        return self.client[self.name]

    @property
    def coll(self) -> Any:
        return self.db.coll

    @property
    def bucket(self) -> Any:
        async def asynchronous() -> Any:  # it looks for the running loop
            return gridfs.AsyncGridFSBucket(self.db)

        return self.do(asynchronous) if self.side.runner else gridfs.GridFSBucket(self.db)

    @property
    def files(self) -> Any:
        async def asynchronous() -> Any:
            return gridfs.AsyncGridFS(self.db)

        return self.do(asynchronous) if self.side.runner else gridfs.GridFS(self.db)

    def all(self, cursor: Any) -> list[Any]:
        return self.side.documents(cursor)

    def closed(self, made: Any) -> None:
        self.do(made.close)

    def prepare(self) -> None:
        """Make the connection, and what the calls need."""
        self.do(self.coll.insert_many, [{"n": n} for n in range(5)])
        self.do(self.db.renamed.insert_one, {})
        self.do(self.bucket.upload_from_stream_with_id, FILE, FILE, b"data")


@dataclass(frozen=True)
class Operation:
    """``name``: as documented. ``strikes``: the command that is meant, where others go before."""

    name: str
    call: Callable[[Scene], Any]
    strikes: str | None = None
    of: str | None = None
    """Strikes only where the command is sent to this collection."""
    since: str = "4.2"
    """pymongo sends nothing to a server that is older."""


def _transaction(ends: str) -> Callable[[Scene], Any]:
    def synchronous(scene: Scene) -> None:
        with scene.client.start_session() as session:
            session.start_transaction()
            scene.coll.insert_one({}, session=session)
            getattr(session, ends)()

    async def asynchronous(scene: Scene) -> None:
        async with scene.client.start_session() as session:
            await session.start_transaction()
            await scene.coll.insert_one({}, session=session)
            await getattr(session, ends)()

    return lambda scene: scene.do(asynchronous if scene.side.runner else synchronous, scene)


def _close_a_cursor(scene: Scene) -> None:
    cursor = scene.coll.find(batch_size=2)
    scene.do(cursor.next)
    scene.do(cursor.close)


def _close_a_client(scene: Scene) -> None:
    client = scene.side.client(scene.uri)
    scene.do(client.admin.command, "ping")
    scene.do(client.close)


def _download(scene: Scene, *, by_name: bool) -> None:
    method = "download_to_stream_by_name" if by_name else "download_to_stream"
    scene.do(getattr(scene.bucket, method), FILE, io.BytesIO())


def _open(scene: Scene, method: str) -> None:
    stream = scene.do(getattr(scene.bucket, method), FILE)
    scene.do(stream.read)


def _upload(scene: Scene, method: str, *args: Any) -> None:
    stream = getattr(scene.bucket, method)(*args)
    scene.do(stream.write, b"data")
    scene.do(stream.close)


def _collection(s: Scene, method: str, *args: Any, **kwargs: Any) -> Any:
    return s.do(getattr(s.coll, method), *args, **kwargs)


_FIELDS = {MARK: {"type": "string"}}
_SEARCH = SearchIndexModel({"mappings": {"dynamic": True, "fields": _FIELDS}}, name=MARK)

COLLECTION: list[Operation] = [
    Operation("find", lambda s: s.all(s.coll.find(matching("find")))),
    Operation("find_raw_batches", lambda s: s.all(s.coll.find_raw_batches(
        matching("raw batches")))),
    Operation("find_one", lambda s: _collection(
        s, "find_one", matching("find_one"), {"said": {"$literal": text("a projection")}})),
    Operation("aggregate", lambda s: _collection(s, "aggregate", MATCH)),
    Operation("aggregate with $out or $merge", lambda s: _collection(s, "aggregate", OUT)),
    Operation("aggregate_raw_batches", lambda s: _collection(s, "aggregate_raw_batches", MATCH)),
    Operation("distinct", lambda s: _collection(
        s, "distinct", "n", matching("distinct"))),
    Operation("count_documents", lambda s: _collection(
        s, "count_documents", matching("count_documents"))),
    Operation("estimated_document_count", lambda s: _collection(s, "estimated_document_count")),
    Operation("list_indexes", lambda s: s.all(_collection(s, "list_indexes"))),
    Operation("index_information", lambda s: _collection(s, "index_information")),
    Operation("list_search_indexes", lambda s: s.all(_collection(s, "list_search_indexes", MARK))),
    Operation("options", lambda s: _collection(s, "options")),
    Operation("watch", lambda s: s.closed(_collection(s, "watch"))),
    Operation("insert_one", lambda s: _collection(
        s, "insert_one", document("insert_one"))),
    Operation("insert_many", lambda s: _collection(
        s, "insert_many", [document("insert_many"), {}])),
    Operation("update_one", lambda s: _collection(
        s, "update_one", matching("update_one"), SET)),
    Operation("update_many", lambda s: _collection(
        s, "update_many", matching("update_many"), ARRAY,
        array_filters=[{"each": {"$in": [NUMBER, text("an array filter")]}}])),
    Operation("replace_one", lambda s: _collection(
        s, "replace_one", matching("replace_one"), document("a replacement"))),
    Operation("delete_one", lambda s: _collection(
        s, "delete_one", matching("delete_one"))),
    Operation("delete_many", lambda s: _collection(
        s, "delete_many", {"n": -1, **matching("delete_many")})),
    Operation("find_one_and_update", lambda s: _collection(
        s, "find_one_and_update", matching("a filter"), SET)),
    Operation("find_one_and_replace", lambda s: _collection(
        s, "find_one_and_replace", matching("a filter"), document("a replacement"))),
    Operation("find_one_and_delete", lambda s: _collection(
        s, "find_one_and_delete", matching("a filter"))),
    Operation("bulk_write", lambda s: _collection(
        s, "bulk_write", [
            InsertOne(document("bulk_write")), UpdateOne(matching("a bulk update"), SET)])),
    Operation("bulk_write with UpdateMany or DeleteMany", lambda s: _collection(
        s, "bulk_write", [
            InsertOne({}), UpdateMany({}, SET),
            DeleteMany({"n": -1, "text": text("none")})])),
    Operation("create_index", lambda s: _collection(s, "create_index", "n")),
    Operation("create_indexes", lambda s: _collection(
        s, "create_indexes", [
            IndexModel(f"{MARK}-field", name=f"{MARK}-indexes",
                       partialFilterExpression={"number": {"$gt": NUMBER}})])),
    Operation("drop_index", lambda s: _collection(s, "drop_index", "n_1")),
    Operation("drop_indexes", lambda s: _collection(s, "drop_indexes")),
    Operation("create_search_index", lambda s: _collection(s, "create_search_index", _SEARCH)),
    Operation("create_search_indexes", lambda s: _collection(
        s, "create_search_indexes", [_SEARCH])),
    Operation("update_search_index", lambda s: _collection(
        s, "update_search_index", MARK, {MARK: 1})),
    Operation("drop_search_index", lambda s: _collection(s, "drop_search_index", MARK)),
    Operation("rename", lambda s: s.do(s.db.renamed.rename, "anew")),
    Operation("drop", lambda s: s.do(s.db.dropped.drop), "drop"),
]  # fmt: skip
DATABASE: list[Operation] = [
    Operation("aggregate", lambda s: s.do(s.db.aggregate, [DOCUMENTS, *MATCH])),
    Operation("aggregate with $out or $merge", lambda s: s.do(
        s.db.aggregate, [DOCUMENTS, {"$out": "other"}])),
    Operation("dereference", lambda s: s.do(s.db.dereference, DBRef("coll", text("a reference")))),
    Operation("list_collections", lambda s: s.all(s.do(
        s.db.list_collections, filter={"name": {"$ne": text("a filter")}}))),
    Operation("list_collection_names", lambda s: s.do(s.db.list_collection_names)),
    Operation("watch", lambda s: s.closed(s.do(s.db.watch))),
    Operation("cursor_command with find", lambda s: s.do(s.db.cursor_command, "find", "coll")),
    Operation("cursor_command with aggregate", lambda s: s.do(
        s.db.cursor_command, "aggregate", "coll", pipeline=MATCH, cursor={})),
    Operation("cursor_command with listCollections", lambda s: s.do(
        s.db.cursor_command, "listCollections")),
    Operation("cursor_command with listIndexes", lambda s: s.do(
        s.db.cursor_command, "listIndexes", "coll")),
    Operation("cursor_command with any other command", lambda s: s.do(
        s.db.cursor_command, "aggregate", "coll", pipeline=OUT, cursor={})),
    Operation("command", lambda s: s.do(s.db.command, "ping")),
    Operation("validate_collection", lambda s: s.do(s.db.validate_collection, "coll")),
    Operation("create_collection", lambda s: s.do(
        s.db.create_collection, "made",
        validator={"text": {"$ne": text("a validator")}}), "create"),
    Operation("drop_collection", lambda s: s.do(s.db.drop_collection, "dropped"), "drop"),
]  # fmt: skip
CLIENT: list[Operation] = [
    Operation("list_databases", lambda s: s.all(s.do(
        s.client.list_databases, filter={"name": {"$ne": text("a filter")}}))),
    Operation("list_database_names", lambda s: s.do(s.client.list_database_names)),
    Operation("watch", lambda s: s.closed(s.do(s.client.watch))),
    Operation("bulk_write", lambda s: s.do(
        s.client.bulk_write, [
            InsertOne(document("a bulk write"), namespace=f"{s.name}.coll")]), since="8.0"),
    Operation("bulk_write with UpdateMany or DeleteMany", lambda s: s.do(
        s.client.bulk_write, [
            UpdateMany(matching("a bulk write"), SET, namespace=f"{s.name}.coll")]), since="8.0"),
    Operation("server_info", lambda s: s.do(s.client.server_info)),
    Operation("drop_database", lambda s: s.do(s.client.drop_database, f"{s.name}_dropped")),
    Operation("close", _close_a_client, "endSessions"),
]  # fmt: skip
CURSOR: list[Operation] = [
    Operation("explain", lambda s: s.do(s.coll.find().explain)),
    Operation("distinct", lambda s: s.do(s.coll.find().distinct, "n")),
    Operation("next after the first batch", lambda s: s.all(s.coll.find(batch_size=2)), "getMore"),
    Operation("close", _close_a_cursor, "killCursors"),
]
SESSION: list[Operation] = [
    Operation("commit_transaction", _transaction("commit_transaction"), "commitTransaction"),
    Operation("abort_transaction", _transaction("abort_transaction"), "abortTransaction"),
]
BUCKET: list[Operation] = [
    Operation("find", lambda s: s.all(s.bucket.find({}))),
    Operation("open_download_stream", lambda s: _open(s, "open_download_stream")),
    Operation("open_download_stream_by_name", lambda s: _open(s, "open_download_stream_by_name")),
    Operation("download_to_stream", lambda s: _download(s, by_name=False)),
    Operation("download_to_stream_by_name", lambda s: _download(s, by_name=True)),
    Operation("open_upload_stream", lambda s: _upload(s, "open_upload_stream", "a"), "insert"),
    Operation("open_upload_stream_with_id", lambda s: _upload(
        s, "open_upload_stream_with_id", "b", "b"), "insert"),
    Operation("upload_from_stream", lambda s: s.do(
        s.bucket.upload_from_stream, "c", b"data"), "insert"),
    Operation("upload_from_stream_with_id", lambda s: s.do(
        s.bucket.upload_from_stream_with_id, "d", "d", b"data"), "insert"),
    Operation("rename", lambda s: s.do(s.bucket.rename, FILE, FILE)),
    Operation("rename_by_name", lambda s: s.do(s.bucket.rename_by_name, FILE, FILE), "update"),
    Operation("delete", lambda s: s.do(s.bucket.delete, "d"), "delete", "fs.chunks"),
    Operation("delete_by_name", lambda s: s.do(
        s.bucket.delete_by_name, "c"), "delete", "fs.chunks"),
]  # fmt: skip
FILES: list[Operation] = [
    Operation("find", lambda s: s.all(s.files.find({}))),
    Operation("find_one", lambda s: s.do(s.files.find_one)),
    Operation("get", lambda s: s.do(s.files.get, FILE)),
    Operation("get_version", lambda s: s.do(s.files.get_version, FILE)),
    Operation("get_last_version", lambda s: s.do(s.files.get_last_version, FILE)),
    Operation("list", lambda s: s.do(s.files.list)),
    Operation("exists", lambda s: s.do(s.files.exists, FILE)),
    Operation("put", lambda s: s.do(s.files.put, b"data", _id="e"), "insert"),
    Operation("delete", lambda s: s.do(s.files.delete, "e"), "delete", "fs.chunks"),
]  # fmt: skip

OF_EVERY_VERSION = {
    "Collection": COLLECTION,
    "Database": DATABASE,
    "MongoClient": CLIENT,
    "Cursor": CURSOR,
    "ClientSession": SESSION,
    "GridFSBucket": BUCKET,
    "GridFS": FILES,
}
BY_CLASS = {
    owner: [each for each in operations if has(each.since)]
    for owner, operations in OF_EVERY_VERSION.items()
}
TOO_NEW = {
    f"{owner}.{each.name}"
    for owner, operations in OF_EVERY_VERSION.items()
    for each in operations
    if not has(each.since)
}
"""What the server that the tests run on lacks."""
