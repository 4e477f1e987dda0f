"""The format's operations as calls of pymongo, for both of its interfaces in one table.

An operation of pymongo is called as ``operation(side, target, arguments)``; ``side.do`` awaits what
there is to await.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from pymongo import InsertOne
from support.clients import Side
from support.conformance.matching import CaseFailed, NotUnderstood, described, only_known

Arguments = Mapping[str, Any]
Operation = Callable[[Side, Any, Arguments], Any]

_RENAMED: Final = {"fieldName": "key"}


def perform(name: str, side: Side, target: Any, arguments: Arguments) -> Any:
    """The result of an operation, cursors read to their ends."""
    only_known([name], _OPERATIONS, "operation")
    return _OPERATIONS[name](side, target, arguments)


def _method(method: str) -> Operation:
    def call(side: Side, target: Any, arguments: Arguments) -> Any:
        return side.do(getattr(target, method), **_named(arguments))

    return call


def _lacking(method: str) -> Operation:
    """A method that the format allows drivers to lack: whatever pymongo says is its own failure."""

    def call(side: Side, target: Any, arguments: Arguments) -> Any:
        try:
            return side.do(getattr(target, method), **_named(arguments))
        except TypeError as error:
            if hasattr(type(target), method):
                raise
            raise CaseFailed(f"{method}: {described(error)}") from error

    return call


def _cursor(method: str) -> Operation:
    def call(side: Side, target: Any, arguments: Arguments) -> Any:
        cursor = side.do(getattr(target, method), **_named(arguments))
        try:
            return side.documents(cursor)
        finally:
            side.do(cursor.close)

    return call


def _named(arguments: Arguments) -> dict[str, Any]:
    """The arguments under their names in pymongo."""
    named = {_RENAMED.get(key, _snake_case(key)): value for key, value in arguments.items()}
    for ordered in ("sort", "keys"):
        if isinstance(named.get(ordered), dict):
            named[ordered] = list(named[ordered].items())
    return named


def _snake_case(name: str) -> str:
    return re.sub("[A-Z]", lambda letter: "_" + letter[0].lower(), name)


def _drop_index(side: Side, collection: Any, arguments: Arguments) -> Any:
    only_known(arguments, ("name",), "dropIndex")
    return side.do(collection.drop_index, arguments["name"])


def _list_index_names(side: Side, collection: Any, arguments: Arguments) -> list[str]:
    return [index["name"] for index in _cursor("list_indexes")(side, collection, arguments)]


def _run_command(side: Side, database: Any, arguments: Arguments) -> Any:
    only_known(arguments, ("command", "commandName"), "runCommand")
    return side.do(database.command, arguments["command"])


def _bulk_write(side: Side, collection: Any, arguments: Arguments) -> Any:
    only_known(arguments, ("requests",), "bulkWrite")
    return side.do(collection.bulk_write, [_model(each) for each in arguments["requests"]])


def _client_bulk_write(side: Side, client: Any, arguments: Arguments) -> Any:
    only_known(arguments, ("models",), "clientBulkWrite")
    return side.do(client.bulk_write, [_model(each) for each in arguments["models"]])


def _model(description: Mapping[str, Arguments]) -> InsertOne[Any]:
    [(kind, arguments)] = description.items()
    if kind != "insertOne":
        raise NotUnderstood(f"a bulk write's {kind}")
    return InsertOne(**arguments)


def _download(method: str) -> Operation:
    def call(side: Side, bucket: Any, arguments: Arguments) -> Any:
        only_known(arguments, ("id", "filename"), "download")
        [identity] = arguments.values()
        stream = side.do(getattr(bucket, method), identity)
        return side.do(stream.read)

    return call


_OPERATIONS: Final[dict[str, Operation]] = {
    "aggregate": _cursor("aggregate"),
    "bulkWrite": _bulk_write,
    "clientBulkWrite": _client_bulk_write,
    "countDocuments": _method("count_documents"),
    "createChangeStream": _method("watch"),
    "createIndex": _method("create_index"),
    "deleteMany": _method("delete_many"),
    "deleteOne": _method("delete_one"),
    "distinct": _method("distinct"),
    "download": _download("open_download_stream"),
    "downloadByName": _download("open_download_stream_by_name"),
    "dropIndex": _drop_index,
    "dropIndexes": _method("drop_indexes"),
    "estimatedDocumentCount": _method("estimated_document_count"),
    "find": _cursor("find"),
    "findOne": _method("find_one"),
    "findOneAndDelete": _method("find_one_and_delete"),
    "findOneAndReplace": _method("find_one_and_replace"),
    "findOneAndUpdate": _method("find_one_and_update"),
    "insertMany": _method("insert_many"),
    "insertOne": _method("insert_one"),
    "listCollectionNames": _method("list_collection_names"),
    "listCollections": _cursor("list_collections"),
    "listDatabaseNames": _method("list_database_names"),
    "listDatabases": _cursor("list_databases"),
    "listIndexNames": _list_index_names,
    "listIndexes": _cursor("list_indexes"),
    "replaceOne": _method("replace_one"),
    "runCommand": _run_command,
    "updateMany": _method("update_many"),
    "updateOne": _method("update_one"),
    "count": _lacking("count"),
    "listCollectionObjects": _lacking("list_collection_objects"),
    "listDatabaseObjects": _lacking("list_database_objects"),
    "mapReduce": _lacking("map_reduce"),
}
