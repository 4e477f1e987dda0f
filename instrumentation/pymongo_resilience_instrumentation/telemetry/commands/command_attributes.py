"""What the span of a command shows: of the command itself, never of what it carries."""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bson import json_util
from bson.binary import Binary

from pymongo_resilience_instrumentation.addresses import namespace_text
from pymongo_resilience_instrumentation.telemetry import semconv

if TYPE_CHECKING:
    from pymongo import monitoring

    from pymongo_resilience_instrumentation.addresses import Address
    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.telemetry.client_tracing import Tracing

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
def of_name(
    command: str, database: str, collection: str | None, address: Address
) -> Mapping[str, Any]:
    """What never changes for the same command on the same collection and server."""
    attributes: dict[str, Any] = {
        semconv.DB_SYSTEM_NAME: semconv.MONGODB,
        semconv.DB_NAMESPACE: database,
        semconv.DB_COMMAND_NAME: command,
        semconv.DB_QUERY_SUMMARY: f"{command} {namespace_text(database, collection)}",
        semconv.NETWORK_TRANSPORT: "unix" if address[1] is None else "tcp",
        **semconv.address_attributes(address),
    }
    if collection is not None:
        attributes[semconv.DB_COLLECTION_NAME] = collection
    return attributes


def collection_of(name: str, command: Mapping[str, Any], database: str) -> str | None:
    if database == "admin":
        return None
    if name != "getMore" and name not in NAMING_A_COLLECTION:
        return None
    value = command.get("collection" if name == "getMore" else name)
    # Plain: a bson.Code is a str that cannot be hashed.
    return str(value) if isinstance(value, str) else None


def of_command(
    event: monitoring.CommandStartedEvent, call: Call, tracing: Tracing
) -> dict[str, Any]:
    """Attributes of a command that is being sent. ``tracing``: of its client."""
    command, name = event.command, event.command_name
    database = "admin" if name in AGAINST_ADMIN else event.database_name
    collection = collection_of(name, command, database)
    attributes = {**of_name(name, database, collection, event.connection_id)}
    # The server's word, as the cursor's id further down: what is no number is left out.
    connection = number(event.server_connection_id)
    if connection is not None:
        attributes[semconv.SERVER_CONNECTION_ID] = connection
    if call.driver_connection_id is not None:
        attributes[semconv.DRIVER_CONNECTION_ID] = call.driver_connection_id
    session_id = _session_id(command.get("lsid"))
    if session_id is not None:
        attributes[semconv.LSID] = session_id
    txn_number = number(command.get("txnNumber"))
    if txn_number is not None:
        attributes[semconv.TXN_NUMBER] = txn_number
    if tracing.quotes:
        attributes[semconv.DB_QUERY_TEXT] = text_of(command, tracing.query_text_max_length)
    return attributes


def used_cursor(name: str, command: Mapping[str, Any]) -> int | None:
    """The one cursor that it reads on or closes; an attribute once it has succeeded."""
    if name == "getMore":
        return number(command.get("getMore"))
    if name == "killCursors":
        ids = command.get("cursors")
        return number(ids[0]) if isinstance(ids, list) and len(ids) == 1 else None
    return None


def number(value: object) -> int | None:
    """A plain int, of an Int64 too."""
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _session_id(lsid: object) -> str | None:
    value = lsid.get("id") if hasattr(lsid, "get") else None
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, Binary) and len(value) == 16:  # noqa: PLR2004 - the size of a UUID
        return _uuid_text(bytes(value))
    return None


@functools.lru_cache(maxsize=semconv.KNOWN_NAMES)
def _uuid_text(octets: bytes) -> str:
    """Sessions are used again and again."""
    return str(uuid.UUID(bytes=octets))


def open_cursor(reply: object) -> int | None:
    cursor: Any = reply.get("cursor") if hasattr(reply, "get") else None
    return number(cursor.get("id")) if hasattr(cursor, "get") else None


LEFT_OUT = frozenset({"lsid", "$db", "$clusterTime", "signature"})
RELAXED = json_util.RELAXED_JSON_OPTIONS


def text_of(command: Mapping[str, Any], length: int) -> str:
    """A command as relaxed extended JSON, for ``db.query.text``; ``length``: the most characters.

    Only what fits is turned into text, so the length of the text bounds the work and not the length
    of the command. Source: OpenTelemetry (MongoDB driver specifications), "db.query.text".
    """
    shown, _ = _cut(
        {name: value for name, value in command.items() if name not in LEFT_OUT}, length
    )
    return json.dumps(shown)[:length]


def _cut(value: Any, room: int) -> tuple[Any, int]:
    """As ``json`` writes it, as much of it as there is room for, and the room that is left.

    What is counted is never more than what is written: so whatever is left out is past the cut.
    """
    if isinstance(value, Mapping):
        document: dict[str, Any] = {}
        for name, each in value.items():
            if room <= 0:
                break
            document[str(name)], room = _cut(each, room - len(str(name)))
        return document, room
    if isinstance(value, (list, tuple)):
        array = []
        for each in value:
            if room <= 0:
                break
            shown, room = _cut(each, room - 1)
            array.append(shown)
        return array, room
    if type(value) in (str, bytes):
        value = value[: max(room, 0)]
    elif type(value) is Binary:
        value = Binary(value[: max(room, 0)], value.subtype)
    return _leaf(value), room - (len(value) if isinstance(value, str | bytes) else 1)


def _leaf(value: object) -> Any:
    if value is None or type(value) in (str, int, bool):
        return value
    try:
        return json_util.default(value, RELAXED)
    except Exception:  # noqa: BLE001 - the application's own type: it has a codec, we have not
        return f"<{type(value).__name__}>"
