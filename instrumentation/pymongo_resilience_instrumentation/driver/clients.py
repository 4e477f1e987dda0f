"""A client's options as they were given, its servers' descriptions, its background task."""

from __future__ import annotations

import importlib
import ssl
from collections.abc import Iterator
from operator import attrgetter
from types import ModuleType
from typing import Any

from pymongo import AsyncMongoClient, MongoClient, ReadPreference, common

LOOK = "apply_selector"

KILLS = {"_kill_cursors": 4, "_kill_cursor_impl": 3}
"""A client's methods that send killCursors, the first by the second, and where in their arguments
the session is."""
BACKGROUND, END_SESSIONS = "_process_kill_cursors", "_end_sessions"
"""What the background task calls for cursors that wait to be killed; and what ``close()`` calls."""
MOST_SESSIONS = 10_000
"""How many of them one endSessions may name."""


def both(name: str) -> Iterator[tuple[ModuleType, bool]]:
    """pymongo's module of that name in each of its APIs, and whether that is the async one."""
    for half in ("synchronous", "asynchronous"):
        yield importlib.import_module(f"pymongo.{half}.{name}"), half == "asynchronous"


def existing_clients() -> list[Any]:
    """The clients of this process that are alive and not closed."""
    clients: list[Any] = [*MongoClient._clients.values(), *AsyncMongoClient._clients.values()]
    return [client for client in clients if not client._closed]


def knows_tracing() -> bool:
    """Whether this pymongo records spans itself, and so has a ``tracing`` option: none to 4.20."""
    return "tracing" in getattr(common, "VALIDATORS", ())


def records_spans(client: Any) -> bool:
    """Whether this pymongo records the spans of the client itself."""
    tracing = getattr(client.options, "tracing", None) if knows_tracing() else None
    return bool(tracing and tracing["enabled"])


def max_retries(client: Any) -> Any:
    """The client's own option for overload retries; None where it has none."""
    return _own_option(client, "maxadaptiveretries", "max_adaptive_retries")


def retargets_on_overload(client: Any) -> Any:
    """Whether the client itself says to avoid an overloaded server; None where it does not say."""
    return _own_option(client, "enableoverloadretargeting", "enable_overload_retargeting")


def _own_option(client: Any, *names: str) -> Any:
    # The public properties do not distinguish a given value from a default.
    given = client.options._options
    return next((given[name] for name in names if name in given), None)


def topology_description() -> type:
    """The class whose ``LOOK`` is the driver's every look at the servers."""
    cls: type = importlib.import_module("pymongo.topology_description").TopologyDescription
    return cls


def cursor_namespace(address: Any) -> tuple[str, str]:
    """Database and collection of a cursor, which its address carries."""
    database, _, collection = str(address.namespace).partition(".")
    return database, collection


def kill_arguments(given: tuple[Any, ...], kwargs: dict[str, Any], session_at: int) -> list[Any]:
    """The cursors' ids, their address and the session that one of ``KILLS`` was called with."""
    places = ((1, "cursor_ids"), (2, "address"), (session_at, "session"))
    return [given[at] if len(given) > at else kwargs.get(name) for at, name in places]


def kill_later(client: Any, cursor_id: int, address: Any) -> None:
    """Queue a cursor for the client's background task, as the driver does after a failure."""
    client._close_cursor_soon(cursor_id, address)


def end_sessions(client: Any, ids: list[Any], call: Any, limit: Any) -> None:
    """Send endSessions as the driver does, which hides errors; ``command()`` of a database would
    make one more session. ``call`` gets the address."""
    with limit:
        server = client._select_server(ReadPreference.PRIMARY_PREFERRED, None, "endSessions")
        with client._checkout(server, None) as connection:
            call.server = connection.address
            for command, mode in _end_commands(connection, ids):
                connection.command("admin", command, read_preference=mode, client=client)


async def end_sessions_async(client: Any, ids: list[Any], call: Any, limit: Any) -> None:
    with limit:
        server = await client._select_server(ReadPreference.PRIMARY_PREFERRED, None, "endSessions")
        async with client._checkout(server, None) as connection:
            call.server = connection.address
            for command, mode in _end_commands(connection, ids):
                await connection.command("admin", command, read_preference=mode, client=client)


def _end_commands(connection: Any, ids: list[Any]) -> Iterator[tuple[dict[str, Any], Any]]:
    """Each with its read preference: a standalone server is sent none (Server Selection)."""
    alone = connection.is_standalone
    mode = ReadPreference.PRIMARY if alone else ReadPreference.PRIMARY_PREFERRED
    if connection.supports_sessions:
        for at in range(0, len(ids), MOST_SESSIONS):
            yield {"endSessions": ids[at : at + MOST_SESSIONS]}, mode


client_of_collection = attrgetter("database.client")
client_of_database = attrgetter("client")
names_of_collection = attrgetter("database.name", "name")


try:
    from pymongo.ssl_support import PYSSLError, SSLError
except ImportError:
    TLS_ERRORS: tuple[type[Exception], ...] = (ssl.SSLError,)
else:
    # Of PyOpenSSL, where it is installed, and of the standard library.
    TLS_ERRORS = (PYSSLError, SSLError)
