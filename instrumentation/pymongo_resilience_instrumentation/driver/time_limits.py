"""The limit of time that a command carries, and its connection's own: ``apply_timeout``.

pymongo 4.17 to 4.20 cut what is left to whole milliseconds, and 0 is without end to the server. And
a timeout of 0 leaves the older limits in force.
"""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

from pymongo.errors import ExecutionTimeout

if TYPE_CHECKING:
    from collections.abc import MutableMapping

LIMIT = "maxTimeMS"
CONNECTIONS = ("pymongo.synchronous.pool:Connection", "pymongo.asynchronous.pool:AsyncConnection")


def limited_connections() -> set[type]:
    """The classes that have the method: two, or the one that both share."""
    found = set()
    for place in CONNECTIONS:
        module, _, name = place.partition(":")
        cls = getattr(importlib.import_module(module), name)
        found.add(next(each for each in cls.__mro__ if "apply_timeout" in vars(each)))
    return found


def limits_for_a_client(method: Any) -> bool:
    """Whether it is given the client beside the command (4.17 to 4.19)."""
    return "client" in inspect.signature(method).parameters


def refuse_without_end(command: MutableMapping[str, Any], left: float) -> None:
    """Raises ExecutionTimeout, in the driver's words and shape, for a limit that would be none."""
    if command.get(LIMIT) == 0:
        text = f"operation would exceed time limit, remaining timeout:{left:.5f} < 1 ms "
        raise ExecutionTimeout(text, 50, {"ok": 0, "errmsg": text, "code": 50})


def limit_of(command: MutableMapping[str, Any] | None) -> int | None:
    """What the application has put into a command itself; a getMore is None."""
    return None if command is None else command.get(LIMIT)


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
