"""The public operations of Collection, Database and MongoClient.

For each method: its name in telemetry, which is the command's, whether it writes, and its target.
``find`` and the like are missing, because they only create a cursor; each batch is an operation of
its own (``_run_operation``).
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
"""Database, and collection if there is one."""
WRITES = frozenset({"insert", "update", "delete", "findAndModify", "bulkWrite"})
DEFINITIONS = frozenset({
    "createCollection", "createIndexes", "createSearchIndexes", "dropCollection", "dropDatabase",
    "dropIndexes", "dropSearchIndex", "renameCollection", "updateSearchIndex",
})  # fmt: skip
"""Operations that change collections rather than documents."""
CHANGES = WRITES | DEFINITIONS
COMMIT, ABORT = "commitTransaction", "abortTransaction"
"""The ends of a transaction. They are sent to ``admin``, not to the databases that the
transaction changed."""
ALLOWED = frozenset({"aggregate", "find", "listCollections", "listIndexes"})
"""Commands of ``cursor_command`` that can only read. It is the only generic command method that is
meant for reads. Source: Retryable Reads, "Supported Read Operations" (the SHOULD) and "Unsupported
Read Operations".
"""
WRITE_STAGES = frozenset({"$out", "$merge"})
_FindsTarget = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Target]


class PublicOperation(NamedTuple):
    """How calls of one method appear in telemetry."""

    method: str
    name: str
    client: Callable[[Any], Any]
    """Returns the client of the object whose method is called."""
    target: _FindsTarget | None
    """Returns the target from the object and the arguments; None if the object is the target, a
    collection.
    """

    @property
    def gives(self) -> Literal["cursor", "change stream"] | None:
        """What the method returns, if that sends further commands."""
        if self.method == "watch":
            return "change stream"
        return "cursor" if self.method in _CURSORS else None


def _database(instance: AnyDatabase, *_: Any) -> Target:
    return instance.name, None


def namespace_of(watched: AnyCollection | AnyDatabase) -> Target:
    """Return the target of a change stream: a collection or a database, or ``admin`` for a
    client.
    """
    if isinstance(watched, (Collection, AsyncCollection)):
        names: Target = driver.clients.names_of_collection(watched)
        return names
    return _database(watched)


def _admin(*_: Any) -> Target:
    return "admin", None


def _named_collection(
    instance: AnyDatabase, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Target:
    """Return the target if the first argument is a collection or its name."""
    # ``create_collection`` calls the parameter ``name``, the others ``name_or_collection``.
    first = args[0] if args else kwargs.get("name_or_collection", kwargs.get("name"))
    name = first if isinstance(first, str) else getattr(first, "name", None)
    return instance.name, name if isinstance(name, str) else None


def _named_database(_: AnyClient, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Target:
    first = args[0] if args else kwargs.get("name_or_database")
    name = first if isinstance(first, str) else getattr(first, "name", None)
    return name if isinstance(name, str) else "admin", None


def _dereferenced(
    instance: AnyDatabase, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Target:
    reference = args[0] if args else kwargs.get("dbref")
    return instance.name, getattr(reference, "collection", None)


def only_reads(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return True if the arguments of ``cursor_command`` are certainly those of a read."""
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

# Commands, and the methods that send them.
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
"""Methods whose arguments name their target."""


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
