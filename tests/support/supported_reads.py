"""Every read that the Retryable Reads text supports, as pymongo has it, with its right result.

pymongo has no ``Collection.count``: the command is what ``estimated_document_count`` sends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gridfs
from pymongo import MongoClient
from support.clients import Side

FILE = b"0123456789"


@dataclass(frozen=True)
class Read:
    """One read, on a database that ``fill`` has filled; GridFS needs ``fill_files`` too."""

    call: Callable[[Side, Any], Any]
    """From the side and its database to the result."""
    expected: Any
    command: str
    """What the driver sends first."""
    collection: str | None = None
    """Only what is sent to this one is meant."""


def fill(control: MongoClient[Any], database: str) -> None:
    coll = control[database].coll
    coll.insert_many([{"_id": number, "a": number % 2} for number in range(3)])
    coll.create_index("a")


def fill_files(control: MongoClient[Any], database: str) -> None:
    bucket = gridfs.GridFSBucket(control[database], chunk_size_bytes=4)
    bucket.upload_from_stream_with_id(1, "file", FILE)


def _ids(side: Side, cursor: Any) -> list[Any]:
    return [document["_id"] for document in side.documents(cursor)]


def _names(side: Side, cursor: Any) -> list[str]:
    return sorted(document["name"] for document in side.documents(cursor))


def _bucket(side: Side, db: Any) -> Any:
    return (gridfs.GridFSBucket if side.runner is None else gridfs.AsyncGridFSBucket)(db)


def _download(side: Side, db: Any) -> Any:
    return side.do(side.do(_bucket(side, db).open_download_stream, 1).read)


def _sees_a_change(side: Side, db: Any, watched: Any) -> bool:
    """The stream is open before the change happens: it is not lost, and not from before."""
    stream = side.do(watched.watch)
    inserted = side.do(db.changes.insert_one, {}).inserted_id
    try:
        change = side.do(stream.next)
    finally:
        side.do(stream.close)
    return bool(change["documentKey"]["_id"] == inserted)


READS: dict[str, Read] = {
    "find": Read(lambda side, db: _ids(side, db.coll.find()), [0, 1, 2], "find"),
    "find_one": Read(lambda side, db: side.do(db.coll.find_one, 2), {"_id": 2, "a": 0}, "find"),
    "aggregate": Read(
        lambda side, db: _ids(side, side.do(db.coll.aggregate, [{"$match": {"a": 0}}])),
        [0, 2],
        "aggregate",
    ),
    "count_documents": Read(
        lambda side, db: side.do(db.coll.count_documents, {"a": 0}), 2, "aggregate"
    ),
    "estimated_document_count": Read(
        lambda side, db: side.do(db.coll.estimated_document_count), 3, "count"
    ),
    "distinct": Read(lambda side, db: sorted(side.do(db.coll.distinct, "a")), [0, 1], "distinct"),
    "Collection.watch": Read(
        lambda side, db: _sees_a_change(side, db, db.changes), True, "aggregate"
    ),
    "Database.watch": Read(lambda side, db: _sees_a_change(side, db, db), True, "aggregate"),
    "MongoClient.watch": Read(
        lambda side, db: _sees_a_change(side, db, db.client), True, "aggregate"
    ),
    "list_databases": Read(
        lambda side, db: db.name in _names(side, side.do(db.client.list_databases)),
        True,
        "listDatabases",
    ),
    "list_collections": Read(
        lambda side, db: "coll" in _names(side, side.do(db.list_collections)),
        True,
        "listCollections",
    ),
    "list_indexes": Read(
        lambda side, db: _names(side, side.do(db.coll.list_indexes)),
        ["_id_", "a_1"],
        "listIndexes",
    ),
    "GridFS download, the file": Read(_download, FILE, "find", "fs.files"),
    "GridFS download, its chunks": Read(_download, FILE, "find", "fs.chunks"),
}
