"""Where every acknowledged command passes with its client, before it is encoded.

``send_cluster_time`` of a connection (4.17 to 4.20): after session and server API were put on, and
before encryption and size checks. Left out are unacknowledged bulk writes, which have no session.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NoReturn

from pymongo import _csot
from pymongo.errors import ExecutionTimeout

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping
    from types import ModuleType

PASSED = "send_cluster_time"
RECEIVE = "receive_message"


def receivers() -> Iterator[tuple[ModuleType, str]]:
    """The functions that await a reply, where pymongo's modules have them."""
    for half, prefix in (("synchronous", ""), ("asynchronous", "async_")):
        for part in ("pool", "network"):
            try:
                module = importlib.import_module(f"pymongo.{half}.{part}")
            except ImportError:
                continue
            if f"{prefix}{RECEIVE}" in vars(module):
                yield module, f"{prefix}{RECEIVE}"


MAKE_CURSORS = frozenset({"aggregate", "bulkWrite", "find", "listCollections", "listIndexes"})
"""Their maxTimeMS is the whole cursor's: what is left of it, each getMore has."""


def limit_attempt(connection: Any, command: Any, seconds: float) -> None:
    """After the driver has limited a command: the shorter of its limit and ``seconds``. ``command``
    is None for a getMore, which has none."""
    if command is None:
        return
    if next(iter(command)) not in MAKE_CURSORS:
        of_server = max(1, int((seconds - (_csot.get_rtt() or 0.0)) * 1000))
        own = command.get("maxTimeMS")
        command["maxTimeMS"] = min(own, of_server) if isinstance(own, int) and own else of_server
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


LIMIT = "maxTimeMS"
LIMITED = "apply_timeout"
"""A connection's method that gives a command its limit of time."""
CONNECTIONS = ("pymongo.synchronous.pool:Connection", "pymongo.asynchronous.pool:AsyncConnection")


def refuse_without_end(left: float) -> NoReturn:
    """Raises ExecutionTimeout, in the driver's words and shape, for a limit that would be none."""
    text = f"operation would exceed time limit, remaining timeout:{left:.5f} < 1 ms "
    raise ExecutionTimeout(text, 50, {"ok": 0, "errmsg": text, "code": 50})


def leave_limit_out(command: MutableMapping[str, Any], own: int | None) -> None:
    """No limit of the driver's for the command; ``own`` is kept, unless it is None.

    That of its connection's socket stays.
    """
    if own is None:
        command.pop(LIMIT, None)
    else:
        command[LIMIT] = own


def lift_limits(connection: Any, command: MutableMapping[str, Any] | None) -> None:
    """No limit for the command, and none for its connection's socket."""
    if command is not None:
        command.pop(LIMIT, None)
    connection.set_conn_timeout(None)
