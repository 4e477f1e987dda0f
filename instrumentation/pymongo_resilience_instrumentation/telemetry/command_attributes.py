"""What the span of a command shows: of the command itself, never of what it carries."""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from bson import json_util
from bson.binary import Binary
from pymongo import monitoring

from pymongo_resilience_instrumentation.addresses import Address, namespace_text

from . import semconv

SENSITIVE = frozenset({
    "authenticate", "saslstart", "saslcontinue", "getnonce", "createuser", "updateuser",
    "copydbgetnonce", "copydbsaslstart", "copydb",
})  # fmt: skip
NAMING_A_COLLECTION = frozenset({
    "aggregate", "analyze", "collMod", "collStats", "compact", "convertToCapped", "count", "create",
    "createIndexes", "createSearchIndexes", "delete", "distinct", "drop", "dropIndexes",
    "dropSearchIndex", "find", "findAndModify", "findandmodify", "insert", "killCursors",
    "listIndexes", "mapReduce", "mapreduce", "planCacheClear", "reIndex", "update",
    "updateSearchIndex", "validate",
})  # fmt: skip
"""Others begin with a value: ``usersInfo`` with a user's name."""
AGAINST_ADMIN = frozenset({"commitTransaction", "abortTransaction", "bulkWrite"})


@functools.lru_cache(maxsize=semconv.KNOWN_NAMES)
def _constant_attributes(
    command: str, database: str, collection: str | None, address: Address
) -> Mapping[str, Any]:
    """What never changes for the same command on the same collection and server."""
    if command in AGAINST_ADMIN:
        database = "admin"
    shown = None if database == "admin" else collection
    return {
        **semconv.namespace_attributes(database, collection),
        semconv.DB_COMMAND_NAME: command,
        "db.query.summary": f"{command} {namespace_text(database, shown)}",
        "network.transport": "unix" if address[1] is None else "tcp",
        **semconv.address_attributes(address),
    }


def command_attributes(
    event: monitoring.CommandStartedEvent, result: Mapping[str, Any]
) -> dict[str, Any]:
    """Attributes of a command that is sent; ``result``: further ones."""
    command, name = event.command, event.command_name
    collection = None
    if name == "getMore" or name in NAMING_A_COLLECTION:
        collection = command.get("collection" if name == "getMore" else name)
        # Plain: a bson.Code is a str that cannot be hashed.
        collection = str(collection) if isinstance(collection, str) else None
    known = _constant_attributes(name, event.database_name, collection, event.connection_id)
    attributes = {**known, **result}
    for key, value in (
        (semconv.SERVER_CONNECTION_ID, event.server_connection_id),
        ("db.mongodb.txn_number", command.get("txnNumber")),
    ):
        # The server's word, or the application's: what is no number is left out.
        if isinstance(value, int) and not isinstance(value, bool):
            attributes[key] = int(value)
    lsid: Any = command.get("lsid")
    session = lsid.get("id") if hasattr(lsid, "get") else None
    if isinstance(session, Binary) and len(session) == 16:  # noqa: PLR2004 - the size of a UUID
        attributes[semconv.LSID] = _uuid_text(bytes(session))
    return attributes


@functools.lru_cache(maxsize=semconv.KNOWN_NAMES)
def _uuid_text(octets: bytes) -> str:
    """Sessions are used again and again."""
    return str(uuid.UUID(bytes=octets))


def cursor_of(event: monitoring.CommandStartedEvent, reply: object) -> int | None:
    """The cursor that the reply leaves open, else the one that the command read on or closed."""
    cursor: Any = reply.get("cursor") if hasattr(reply, "get") else None
    if hasattr(cursor, "get"):
        opened = number(cursor.get("id"))
        if opened:
            return opened
    if event.command_name == "getMore":
        return number(event.command.get("getMore"))
    if event.command_name == "killCursors":
        ids = event.command.get("cursors")
        return number(ids[0]) if isinstance(ids, list) and len(ids) == 1 else None
    return None


def number(value: object) -> int | None:
    """A plain int, of an Int64 too."""
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


LEFT_OUT = frozenset({"lsid", "$db", "$clusterTime", "signature"})


def text_of(command: Mapping[str, Any], length: int) -> str:
    """A command as relaxed extended JSON of at most ``length`` characters; only what fits is
    converted. Source: OpenTelemetry (MongoDB driver specifications), "db.query.text"."""
    room = length
    """Counts never more than is written, so what is left out is past the cut."""

    def fits(_: object) -> bool:
        return room > 0

    def converted(value: Any) -> Any:
        nonlocal room
        room -= 1
        if isinstance(value, Mapping):
            document = {}
            for name, each in takewhile(fits, value.items()):
                room -= len(str(name))
                document[str(name)] = converted(each)
            return document
        if isinstance(value, (list, tuple)):
            return [converted(each) for each in takewhile(fits, value)]
        if type(value) in (str, bytes):
            value = value[: max(room, 0)]
        elif type(value) is Binary:
            value = Binary(value[: max(room, 0)], value.subtype)
        if isinstance(value, str | bytes):
            room -= len(value)
        if value is None or type(value) in (str, int, bool):
            return value
        try:
            return json_util.default(value, json_util.RELAXED_JSON_OPTIONS)
        except Exception:  # noqa: BLE001 - the application's own type: it has a codec, we have not
            return f"<{type(value).__name__}>"

    shown = {name: value for name, value in command.items() if name not in LEFT_OUT}
    return json.dumps(converted(shown))[:length]
