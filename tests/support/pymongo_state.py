"""What pymongo's objects look like from inside: the attributes of all that can be reached from a
client, and the options of its sockets."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator
from typing import Any

State = dict[str, Any]
PLAIN = (type(None), bool, int, float, str)
CONTAINERS = (list, tuple, set, frozenset, deque)
LEVELS = {"SO_": socket.SOL_SOCKET, "TCP_": socket.IPPROTO_TCP}
READ_ONLY = {"SO_ERROR", "SO_INCOMING_CPU", "TCP_INFO", "SO_COOKIE"}


def state_of(client: Any) -> State:
    """By class and attribute, what it is: the value of a number or a text, else its type."""
    found: State = {}
    for each in reachable(client):
        name = type(each).__name__
        for attribute, value in attributes(each):
            shown = value if isinstance(value, PLAIN) else type(value).__name__
            found.setdefault(f"{name}.{attribute}", set()).add(shown)
        if name.endswith("Connection"):
            for option, value in socket_options(each.conn.sock):
                found.setdefault(f"socket.{option}", set()).add(value)
    return found


def unstable(one: State, other: State) -> set[str]:
    """What differs between two runs of the same: clocks, identities, ports."""
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


def reachable(start: Any) -> Iterator[Any]:
    seen: dict[int, Any] = {}
    left = [start]
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, type):
            continue
        seen[id(each)] = each
        if isinstance(each, CONTAINERS):
            left.extend(each)
        elif isinstance(each, dict):
            left.extend(each.values())
        elif type(each).__module__.partition(".")[0] == "pymongo":
            yield each
            left.extend(value for _, value in attributes(each))


def attributes(each: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(each, "__dict__", {}).items()
    for cls in type(each).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            mangled = f"_{cls.__name__.lstrip('_')}{name}"
            stored = mangled if name.startswith("__") and not name.endswith("__") else name
            if stored not in {"__dict__", "__weakref__"} and hasattr(each, stored):
                yield stored, getattr(each, stored)


def socket_options(sock: Any) -> Iterator[tuple[str, int]]:
    for name in dir(socket):
        level = LEVELS.get(name.partition("_")[0] + "_")
        if level is None or name in READ_ONLY:
            continue
        try:
            yield name, sock.getsockopt(level, getattr(socket, name))
        except OSError:
            continue
