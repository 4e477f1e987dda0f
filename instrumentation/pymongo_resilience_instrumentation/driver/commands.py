"""Where every acknowledged command passes with its client, before it is encoded.

``send_cluster_time`` of a connection (4.17 to 4.20): after session and server API were put on, and
before encryption and size checks. Left out are unacknowledged bulk writes, which have no session.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any

from pymongo import _csot

from .clients import both

PASSED = "send_cluster_time"
LIMIT = "maxTimeMS"
LIMITED = "apply_timeout"
"""A connection's method that gives a command its limit of time."""
CONNECTIONS = ("pymongo.synchronous.pool:Connection", "pymongo.asynchronous.pool:AsyncConnection")
RECEIVE = "receive_message"
MAKE_CURSORS = frozenset({"aggregate", "bulkWrite", "find", "listCollections", "listIndexes"})
"""Their maxTimeMS is the whole cursor's: what is left of it, each getMore has."""


def receivers() -> Iterator[tuple[ModuleType, str]]:
    """The functions that await a reply, where pymongo's modules have them."""
    for part in ("pool", "network"):
        with suppress(ImportError):
            for module, asynchronous in both(part):
                if (name := "async_" * asynchronous + RECEIVE) in vars(module):
                    yield module, name


def limit_attempt(connection: Any, command: Any, seconds: float) -> None:
    """After the driver has limited a command: the shorter of its limit and ``seconds``."""
    if next(iter(command)) not in MAKE_CURSORS:
        of_server = max(1, int((seconds - (_csot.get_rtt() or 0.0)) * 1000))
        own = command.get(LIMIT)
        command[LIMIT] = min(own, of_server) if isinstance(own, int) and own else of_server
    socket = connection.conn.gettimeout
    present = socket() if callable(socket) else socket
    if present is None or present > seconds:
        connection.set_conn_timeout(seconds)


def connections_with(method: str) -> set[type]:
    """The classes of connections that define it: two, or the one that both share."""
    found = set()
    for place in CONNECTIONS:
        module, _, name = place.partition(":")
        cls = getattr(importlib.import_module(module), name)
        found.add(next(each for each in cls.__mro__ if method in vars(each)))
    return found


def passing_command(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The command and its client, None for the driver's own, given the method's arguments."""
    given = dict(zip(("command", "session", "client"), args, strict=False)) | kwargs
    return given["command"], given["client"]


def lift_limits(connection: Any, command: Any) -> None:
    """No limit for the command, and none for its connection's socket."""
    if command is not None:
        command.pop(LIMIT, None)
    connection.set_conn_timeout(None)
