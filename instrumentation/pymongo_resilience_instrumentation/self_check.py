"""Checks whether the library can work with the installed pymongo and in this process.

It compares the installed pymongo with the names that ``driver`` uses, and checks for monkey-patched
sockets and threads.
"""

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
    """What the library does with the installed pymongo. The value is the text for users."""

    ALL = "everything works"
    TELEMETRY = "only telemetry is on, and pymongo's own retries and timeouts apply"
    OFF = "pymongo-resilience stays off"


class Part(NamedTuple):
    """The names that are used of one place in pymongo."""

    place: str
    """``"module"``, ``"module:class"`` or ``"module:function"``."""
    names: tuple[str, ...]
    """Attributes. ``"name(a, b)"`` is a function with these first parameters; ``"name[a, b]"`` is
    one whose closures have these variables.
    """
    without: State = State.TELEMETRY
    """What still works if a name is missing."""


def refusal() -> str | None:
    """Return why the library cannot work in this process, or None. Imports nothing.

    Retries, deadlines and the order of spans were only verified with threads and asyncio, not with
    green threads.
    """
    for module, name_of_check in _PATCHERS:
        is_patched = getattr(sys.modules.get(module), name_of_check, None)
        if is_patched is not None and any(is_patched(name) for name in _GREEN):
            return (
                f"{module.partition('.')[0]} has monkey-patched this process, which "
                "pymongo-resilience does not support. Use threads or asyncio, or do not call "
                "instrument()"
            )
    return None


def check(parts: Iterable[Part]) -> State:
    """Return the state for the installed pymongo, and log an error if it is not ``ALL``."""
    lacking = missing(parts)
    if not lacking:
        return State.ALL
    state = State.OFF if State.OFF in lacking else State.TELEMETRY
    names = ", ".join(name for found in lacking.values() for name in found)
    logger.error(
        "pymongo %s lacks %s, which this version of pymongo-resilience needs: %s. Install a "
        "supported pymongo, or a newer pymongo-resilience",
        pymongo.version,
        names,
        state.value,
    )
    return state


def report_missing(parts: Iterable[Part], feature: str, consequence: str) -> bool:
    """Log an error if the installed pymongo lacks a name that one feature needs.

    Returns:
        True if a name is missing.
    """
    lacking = missing(parts)
    if lacking:
        logger.error(
            "pymongo %s does not have %s, which this version of pymongo-resilience needs for %s: "
            "%s. Upgrade pymongo-resilience",
            pymongo.version,
            ", ".join(name for names in lacking.values() for name in names),
            feature,
            consequence,
        )
    return bool(lacking)


def missing(parts: Iterable[Part]) -> dict[State, list[str]]:
    """Return the names that the installed pymongo lacks, by what works without them."""
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
        # A whole module or class is missing, so do not list its names one by one.
        return [part.place]
    return [f"{part.place}.{name}" for name in part.names if not _has(place, name)]


def _has(place: object, name: str) -> bool:
    name, _, variables = name.partition("[")
    if variables:
        # ``_has`` stands in for a missing function, because it has no such variables.
        code = getattr(inspect.unwrap(getattr(place, name, _has)), "__code__", None)
        return code is not None and {*variables.rstrip("]").split(", ")} <= {*code.co_cellvars}
    name, _, parameters = name.partition("(")
    if not parameters:
        return hasattr(place, name)
    expected, found = parameters.rstrip(")").split(", "), getattr(place, name, None)
    return callable(found) and [*inspect.signature(found).parameters][: len(expected)] == expected
