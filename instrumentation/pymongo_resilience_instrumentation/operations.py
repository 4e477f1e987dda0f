"""The public operations of Collection, Database and MongoClient: their names in telemetry, which of
them write, and which commands of a command runner can only read.

The names are those of the command, not of the method. ``find`` and its like are absent: they only
make a cursor; its batches are operations of their own (``_run_operation``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.synchronous.collection import Collection

from pymongo_resilience_instrumentation import driver

Target = tuple[str, str | None]
"""Database, and collection where there is one."""
WRITES = frozenset({"insert", "update", "delete", "findAndModify", "bulkWrite"})
DEFINITIONS = frozenset({
    "createCollection", "createIndexes", "createSearchIndexes", "dropCollection", "dropDatabase",
    "dropIndexes", "dropSearchIndex", "renameCollection", "updateSearchIndex",
})  # fmt: skip
"""What changes collections rather than documents."""
CHANGES = WRITES | DEFINITIONS
COMMIT, ABORT = "commitTransaction", "abortTransaction"
"""The ends of a transaction: what is sent to ``admin``, whatever it has changed."""
ALLOWED = frozenset({"aggregate", "find", "listCollections", "listIndexes"})
"""What ``cursor_command`` runs and can only read; it is the one command runner that is for reads
alone. Source: Retryable Reads, "Supported Read Operations" (the SHOULD) and "Unsupported Read
Operations"."""
WRITE_STAGES = frozenset({"$out", "$merge"})


_FindsTarget = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Target]


class PublicOperation(NamedTuple):
    """How calls of one method appear."""

    name: str
    client: Callable[[Any], Any]
    """From the object the method is called on to its client."""
    target: _FindsTarget | None
    """From the object and the arguments; None for the object itself, a collection."""
    only_reads: Callable[[tuple[Any, ...], Mapping[str, Any]], bool] | None = None
    """From the arguments of a command runner: whether the command is one that can only read."""
    gives: Literal["cursor", "change stream"] | None = None
    """What the caller gets, where that sends commands in its turn."""
    method: str = ""


def _database(instance: Any, *_: Any) -> Target:
    return instance.name, None


def namespace_of(watched: object) -> Target:
    """What a change stream watches: a collection or a database, ``admin`` for a client."""
    if isinstance(watched, (Collection, AsyncCollection)):
        names: Target = driver.clients.names_of_collection(watched)
        return names
    return _database(watched)


def _admin(*_: Any) -> Target:
    return "admin", None


def _named_collection(instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Target:
    """The first argument names a collection of the database, or is one."""
    given = args[0] if args else kwargs.get("name_or_collection", kwargs.get("name"))
    name = given if isinstance(given, str) else getattr(given, "name", None)
    return instance.name, name if isinstance(name, str) else None


def _named_database(_: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Target:
    given = args[0] if args else kwargs.get("name_or_database")
    name = given if isinstance(given, str) else getattr(given, "name", None)
    return name if isinstance(name, str) else "admin", None


def _dereferenced(instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Target:
    reference = args[0] if args else kwargs.get("dbref")
    return instance.name, getattr(reference, "collection", None)


def only_reads(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """From the arguments of ``cursor_command``; what is not surely a read is none."""
    command = args[0] if args else kwargs.get("command")
    if isinstance(command, str):
        command = {command: None}
    if not isinstance(command, Mapping):
        return False
    name = next(iter(command), None)
    if name not in ALLOWED:
        return False
    return name != "aggregate" or not _may_write({**command, **kwargs}.get("pipeline"))


def _may_write(pipeline: object) -> bool:
    if not isinstance(pipeline, (list, tuple)):
        return True
    return any(not isinstance(stage, Mapping) or WRITE_STAGES & set(stage) for stage in pipeline)


_CURSORS = frozenset({
    "aggregate", "aggregate_raw_batches", "cursor_command", "list_collections", "list_databases",
    "list_indexes", "list_search_indexes",
})  # fmt: skip

_COLLECTION_METHODS = {
    "aggregate": "aggregate",
    "aggregate_raw_batches": "aggregate",
    "bulk_write": "bulkWrite",
    "count_documents": "aggregate",
    "create_index": "createIndexes",
    "create_indexes": "createIndexes",
    "create_search_index": "createSearchIndexes",
    "create_search_indexes": "createSearchIndexes",
    "delete_many": "delete",
    "delete_one": "delete",
    "distinct": "distinct",
    "drop": "dropCollection",
    "drop_index": "dropIndexes",
    "drop_indexes": "dropIndexes",
    "drop_search_index": "dropSearchIndex",
    "estimated_document_count": "count",
    "find_one": "find",
    "find_one_and_delete": "findAndModify",
    "find_one_and_replace": "findAndModify",
    "find_one_and_update": "findAndModify",
    "index_information": "listIndexes",
    "insert_many": "insert",
    "insert_one": "insert",
    "list_indexes": "listIndexes",
    "list_search_indexes": "aggregate",
    "options": "listCollections",
    "rename": "renameCollection",
    "replace_one": "update",
    "update_many": "update",
    "update_one": "update",
    "update_search_index": "updateSearchIndex",
    "watch": "aggregate",
}

_DATABASE_METHODS: dict[str, tuple[str, _FindsTarget]] = {
    "aggregate": ("aggregate", _database),
    "command": ("runCommand", _database),
    "create_collection": ("createCollection", _named_collection),
    "cursor_command": ("runCommand", _database),
    "dereference": ("find", _dereferenced),
    "drop_collection": ("dropCollection", _named_collection),
    "list_collection_names": ("listCollections", _database),
    "list_collections": ("listCollections", _database),
    "validate_collection": ("runCommand", _named_collection),
    "watch": ("aggregate", _database),
}

_CLIENT_METHODS: dict[str, tuple[str, _FindsTarget]] = {
    "bulk_write": ("bulkWrite", _admin),
    "drop_database": ("dropDatabase", _named_database),
    "list_database_names": ("listDatabases", _admin),
    "list_databases": ("listDatabases", _admin),
    "server_info": ("runCommand", _admin),
    "watch": ("aggregate", _admin),
}


def _public(
    client: Callable[[Any], Any], methods: Mapping[str, tuple[str, _FindsTarget | None]]
) -> Mapping[str, PublicOperation]:
    return {
        method: PublicOperation(
            name,
            client,
            target,
            only_reads if method == "cursor_command" else None,
            "change stream" if method == "watch" else "cursor" if method in _CURSORS else None,
            method,
        )
        for method, (name, target) in methods.items()
    }


COLLECTION = _public(
    driver.clients.client_of_collection,
    {method: (name, None) for method, name in _COLLECTION_METHODS.items()},
)
DATABASE = _public(driver.clients.client_of_database, _DATABASE_METHODS)
CLIENT = _public(lambda client: client, _CLIENT_METHODS)
