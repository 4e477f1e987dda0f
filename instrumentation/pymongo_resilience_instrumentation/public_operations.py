"""The public operations of Collection, Database and MongoClient: their names in telemetry, which of
them write, and which commands of a command runner can only read.

The names are those of the command, not of the method. ``find`` and its like are absent: they only
make a cursor; its batches are operations of their own (``_run_operation``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.synchronous.collection import Collection

from pymongo_resilience_instrumentation import driver

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.call import AnyClient
    from pymongo_resilience_instrumentation.driver.protocols import AnyCollection, AnyDatabase

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

    method: str
    name: str
    client: Callable[[Any], Any]
    """From the object the method is called on to its client."""
    target: _FindsTarget | None
    """From the object and the arguments; None for the object itself, a collection."""

    @property
    def gives(self) -> Literal["cursor", "change stream"] | None:
        """What the caller gets, where that sends commands in its turn."""
        if self.method == "watch":
            return "change stream"
        return "cursor" if self.method in _CURSORS else None


def _database(instance: AnyDatabase, *_: Any) -> Target:
    return instance.name, None


def namespace_of(watched: AnyCollection | AnyDatabase) -> Target:
    """What a change stream watches: a collection or a database, ``admin`` for a client."""
    if isinstance(watched, (Collection, AsyncCollection)):
        names: Target = driver.clients.names_of_collection(watched)
        return names
    return _database(watched)


def _admin(*_: Any) -> Target:
    return "admin", None


def _named_collection(
    instance: AnyDatabase, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Target:
    """The first argument names a collection of the database, or is one."""
    given = args[0] if args else kwargs.get("name_or_collection", kwargs.get("name"))
    name = given if isinstance(given, str) else getattr(given, "name", None)
    return instance.name, name if isinstance(name, str) else None


def _named_database(_: AnyClient, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Target:
    given = args[0] if args else kwargs.get("name_or_database")
    name = given if isinstance(given, str) else getattr(given, "name", None)
    return name if isinstance(name, str) else "admin", None


def _dereferenced(
    instance: AnyDatabase, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Target:
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

_COLLECTION = {
    "aggregate": (
        "aggregate", "aggregate_raw_batches", "count_documents", "list_search_indexes", "watch",
    ),
    "bulkWrite": ("bulk_write",),
    "count": ("estimated_document_count",),
    "createIndexes": ("create_index", "create_indexes"),
    "createSearchIndexes": ("create_search_index", "create_search_indexes"),
    "delete": ("delete_many", "delete_one"),
    "distinct": ("distinct",),
    "dropCollection": ("drop",),
    "dropIndexes": ("drop_index", "drop_indexes"),
    "dropSearchIndex": ("drop_search_index",),
    "find": ("find_one",),
    "findAndModify": ("find_one_and_delete", "find_one_and_replace", "find_one_and_update"),
    "insert": ("insert_many", "insert_one"),
    "listCollections": ("options",),
    "listIndexes": ("index_information", "list_indexes"),
    "renameCollection": ("rename",),
    "update": ("replace_one", "update_many", "update_one"),
    "updateSearchIndex": ("update_search_index",),
}  # fmt: skip
_DATABASE = {
    "aggregate": ("aggregate", "watch"),
    "createCollection": ("create_collection",),
    "dropCollection": ("drop_collection",),
    "find": ("dereference",),
    "listCollections": ("list_collection_names", "list_collections"),
    "runCommand": ("command", "cursor_command", "validate_collection"),
}
_CLIENT = {
    "aggregate": ("watch",),
    "bulkWrite": ("bulk_write",),
    "dropDatabase": ("drop_database",),
    "listDatabases": ("list_database_names", "list_databases"),
    "runCommand": ("server_info",),
}
_NAMED: dict[str, _FindsTarget] = {
    "create_collection": _named_collection,
    "dereference": _dereferenced,
    "drop_collection": _named_collection,
    "drop_database": _named_database,
    "validate_collection": _named_collection,
}
"""Methods whose arguments name what they are for."""


def _public(
    commands: Mapping[str, tuple[str, ...]],
    client: Callable[[Any], Any],
    target: _FindsTarget | None,
) -> Mapping[str, PublicOperation]:
    return {
        method: PublicOperation(method, name, client, _NAMED.get(method, target))
        for name, methods in commands.items()
        for method in methods
    }


COLLECTION = _public(_COLLECTION, driver.clients.client_of_collection, None)
DATABASE = _public(_DATABASE, driver.clients.client_of_database, _database)
CLIENT = _public(_CLIENT, lambda client: client, _admin)
