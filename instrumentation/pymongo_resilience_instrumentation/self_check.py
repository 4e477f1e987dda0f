"""Compares the installed pymongo with what ``driver`` uses, and chooses what the library does; and
whether this process has sockets and threads that the library can act with."""

from __future__ import annotations

import enum
import importlib
import inspect
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

import pymongo

from pymongo_resilience.internal_errors import logger

_PATCHERS = (("gevent.monkey", "is_module_patched"), ("eventlet.patcher", "is_monkey_patched"))
_GREEN = ("socket", "thread", "threading")


class State(enum.Enum):
    """What the library does with the installed pymongo; the value says it to people."""

    ALL = "everything works"
    TELEMETRY = "telemetry alone: pymongo's own retries and timeouts decide"
    OFF = "pymongo-resilience stays switched off"


class Part(NamedTuple):
    """What is used of one place in the driver."""

    place: str
    """``"module"``, ``"module:class"`` or ``"module:function"``."""
    names: tuple[str, ...]
    """Attributes; ``"name(a, b)"`` has these first parameters."""
    without: State = State.TELEMETRY
    """What is left where a name is missing."""


def refusal() -> str | None:
    """Why the library cannot act in this process; None where it can. Imports nothing.

    What is retried, for how long, and in which order spans end is proved for threads and asyncio,
    and not with green threads below.
    """
    for module, says in _PATCHERS:
        is_patched = getattr(sys.modules.get(module), says, None)
        if is_patched is not None and any(is_patched(name) for name in _GREEN):
            return (
                f"{module.partition('.')[0]} has monkey-patched this process, which is not "
                "supported: use threads or asyncio, or leave instrument() out"
            )
    return None


def check(parts: Iterable[Part]) -> State:
    """The state for the installed pymongo; one loud line where that is not ``ALL``."""
    lacking = missing(parts)
    if not lacking:
        return State.ALL
    state = State.OFF if State.OFF in lacking else State.TELEMETRY
    names = ", ".join(name for found in lacking.values() for name in found)
    logger.error("pymongo %s lacks %s: %s", pymongo.version, names, state.value)
    return state


def missing(parts: Iterable[Part]) -> dict[State, list[str]]:
    """The names that the installed pymongo lacks, by what is left without them."""
    lacking: dict[State, list[str]] = {}
    for part in parts:
        names = _missing_names(part)
        if names:
            lacking.setdefault(part.without, []).extend(names)
    return lacking


def _missing_names(part: Part) -> list[str]:
    module_name, _, inner = part.place.partition(":")
    try:
        place: Any = importlib.import_module(module_name)
        if inner:
            place = getattr(place, inner)
    except (ImportError, AttributeError):
        return [part.place]
    return [f"{part.place}.{name}" for name in part.names if not _has(place, name)]


def _has(place: object, name: str) -> bool:
    name, _, parameters = name.partition("(")
    if not parameters:
        return hasattr(place, name)
    expected, found = parameters.rstrip(")").split(", "), getattr(place, name, None)
    return callable(found) and [*inspect.signature(found).parameters][: len(expected)] == expected
