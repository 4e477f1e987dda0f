"""Sends pymongo's aggregates as a find is sent, so that the library sees the server's reply.

pymongo creates an aggregate's cursor from a decoded reply. The application's codec may have changed
the ``_id`` in it, after which a resumed aggregate must continue.

Imported by the feature and not with the package, because it derives a class from a private one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pymongo import message
from pymongo.read_concern import DEFAULT_READ_CONCERN

from .clients import classes
from .cursors import RUN_WITH_CONN

if TYPE_CHECKING:
    from .protocols import AnyCollection, Connection

HANDLED = frozenset({
    "aggregate", "allowDiskUse", "comment", "cursor", "let", "maxTimeMS", "pipeline",
})  # fmt: skip
"""The fields of an aggregate command that ``AggregateQuery`` can send."""
LIMIT = "maxTimeMS"


class AggregateQuery(message._Query):
    """A find that is sent as an aggregate with ``$match`` and ``$sort``."""

    __slots__ = ("options", "original_spec", "pipeline")

    def __init__(self, command: Mapping[str, Any], spec: Mapping[str, Any], **others: Any) -> None:
        super().__init__(spec=spec, **others)
        self.name = "aggregate"
        self.original_spec = spec
        self.pipeline = command["pipeline"]
        kept = command.keys() - {"aggregate", "pipeline", LIMIT}
        self.options = {name: each for name, each in command.items() if name in kept}

    def as_command(self, conn: Any, apply_timeout: bool = False) -> tuple[dict[str, Any], str]:
        if self._as_command is None:
            found, database = super().as_command(conn, apply_timeout)
            self._as_command = self._aggregate(dict(found)), database
        return self._as_command

    def _aggregate(self, find: dict[str, Any]) -> dict[str, Any]:
        matched, sort = find.pop("filter"), find.pop("sort", None)
        pipeline = [{"$match": matched}, *([{"$sort": sort}] if sort else [])]
        if self.spec is self.original_spec:
            # Nothing was changed, so send what the application passed.
            pipeline = self.pipeline
        return {"aggregate": find.pop("find"), "pipeline": pipeline, **self.options, **find}


def query(
    database: str,
    command: Mapping[str, Any],
    found: tuple[Mapping[str, Any], Mapping[str, Any] | None],
    codec_options: Any,
    **arguments: Any,
) -> AggregateQuery | None:
    """Return an aggregate in the form of a find, or None if it has other options.

    Args:
        database: Its database.
        command: The command that pymongo would send.
        found: The filter and the sort of its pipeline.
        codec_options: Those of the collection.
        arguments: The remaining arguments of pymongo's ``Connection.command``.
    """
    if not command.keys() <= HANDLED:
        return None
    matched, sort = found
    spec: dict[str, Any] = {"$query": matched}
    if sort is not None:
        spec["$orderby"] = sort
    if LIMIT in command:
        spec[f"${LIMIT}"] = command[LIMIT]
    return AggregateQuery(
        command,
        spec,
        flags=0,
        db=database,
        coll=command["aggregate"],
        ntoskip=0,
        fields=None,
        codec_options=codec_options,
        read_preference=arguments["read_preference"],
        limit=0,
        batch_size=0,
        read_concern=arguments.get("read_concern") or DEFAULT_READ_CONCERN,
        collation=arguments.get("collation"),
        session=arguments["session"],
        client=arguments["client"],
        allow_disk_use=None,
        exhaust=False,
    )


class Exchange:
    """Stands in for a connection while pymongo creates the cursor of an aggregate.

    pymongo uses only these two attributes, unless the deployment is load-balanced.
    """

    def __init__(self, connection: Connection, command: Callable[..., Any]) -> None:
        self.address = connection.address
        self.command = command
        """Called with the arguments of the connection's own method. Returns the reply, or an
        awaitable.
        """


def sender(collection: AnyCollection, *, asynchronous: bool) -> Any:
    """Return a cursor's method that sends a query of ``collection`` on a connection.

    The cursor was never opened. It only lends its method.
    """
    cls: Any = classes("command_cursor", "*CommandCursor")[asynchronous]
    cursor = cls(collection, {"id": 0, "firstBatch": []}, None)
    return getattr(cursor, RUN_WITH_CONN)
