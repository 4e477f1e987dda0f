"""Where every acknowledged command passes with its client, before it is encoded.

``send_cluster_time`` of a connection (4.17 to 4.20): after session and server API were put on, and
before encryption and size checks. Left out are unacknowledged bulk writes, which have no session.
"""

from __future__ import annotations

import importlib
from typing import Any

from .time_limits import CONNECTIONS

PASSED = "send_cluster_time"


def commanded_connections() -> set[type]:
    """The classes that have the method: two, or the one that both share."""
    found = set()
    for place in CONNECTIONS:
        module, _, name = place.partition(":")
        cls = getattr(importlib.import_module(module), name)
        found.add(next(each for each in cls.__mro__ if PASSED in vars(each)))
    return found


def passing_command(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The command and its client, None for the driver's own, given the method's arguments."""
    given = dict(zip(("command", "session", "client"), args, strict=False)) | kwargs
    return given["command"], given["client"]
