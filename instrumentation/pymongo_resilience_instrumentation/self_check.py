"""The check that the installed pymongo has the private names ``driver`` builds on."""

from __future__ import annotations

import enum
import importlib
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

import pymongo

from pymongo_resilience.internal_errors import logger

if TYPE_CHECKING:
    from collections.abc import Iterable


class Feature(enum.Enum):
    """What is lost where pymongo lacks a private name; the value says it to people."""

    RETRIES = "retries (pymongo's own loop decides)"
    CURSORS = "operation spans of cursor batches, and timeouts of cursors and change streams"
    RESUMPTION = "resumable finds"
    TIMEOUT = "the default timeout"
    TIME_LIMITS = "refusing commands with less than a millisecond left, and timeouts of 0"
    WAITS = (
        "waits that end with the deadline, serverSelectionTimeoutMS and connectTimeoutMS under one,"
        " and the metric of who waits for a connection"
    )
    FAST_FAIL = "failing fast on certificates, replica set names and passwords"
    WHOLE_TIMEOUTS = "the timeout of a transaction as a whole"
    END_SESSION = "the end of a transaction's span with its session"
    OPEN_COMMITS = "the abort of a transaction whose commit or abort was interrupted"
    GRIDFS = "the timeout of a GridFS stream as a whole"
    RETARGETING = "avoiding a failed server while the driver waits for one"
    SELECTION = "choosing servers by the attempts in progress"
    WHY_NOT = "the reason for each server in the error of a failed selection"
    IN_FLIGHT = "the number of operations in progress that status() shows"
    POOLS = "the metrics of a pool's connections and of who waits for one"
    CLEANUP = "retries of killCursors and endSessions, and the timeout of a cursor's close()"
    BREAKERS = "circuit breakers"
    INTERRUPTIONS = "the failed event of a command that was cancelled or interrupted"
    BULKS = "the repetition of bulk writes that an election stops half-way"
    COMMENTS = "comments on commands that lead to their traces"
    RECOVERY = "checking a server at once after a network error, and often while one waits for it"
    DEAD_PEERS = "closing connections to a host that is silent"
    LOST_PRIMARIES = "interrupting what waits for a member that is no longer the primary"
    EXISTING_CLIENTS = "the warning about clients that exist already"


class Part(NamedTuple):
    """Private names in one place of the driver, and the feature that needs them."""

    feature: Feature
    place: str
    """``"module"``, ``"module:class"`` or ``"module:function"``."""
    names: tuple[str, ...]
    """Attributes; of a function, its local variables."""
    set_by: str = "__init__"
    """The method that sets those that are attributes of instances."""


def log_missing(parts: Iterable[Part]) -> dict[Feature, list[str]]:
    """As ``missing``; one loud line for each feature."""
    lacking = missing(parts)
    for feature, names in lacking.items():
        logger.error(
            "pymongo %s lacks %s: disabled: %s; everything else works",
            pymongo.version,
            ", ".join(names),
            feature.value,
        )
    return lacking


def missing(parts: Iterable[Part]) -> dict[Feature, list[str]]:
    """The private names that the installed pymongo lacks, by the feature that needs them."""
    lacking: dict[Feature, list[str]] = {}
    for part in parts:
        names = _missing_names(part)
        if names:
            lacking.setdefault(part.feature, []).extend(names)
    return lacking


def _missing_names(part: Part) -> list[str]:
    module_name, _, inner = part.place.partition(":")
    try:
        place: Any = importlib.import_module(module_name)
        if inner:
            place = getattr(place, inner)
    except (ImportError, AttributeError):
        return [part.place]
    return [f"{part.place}.{name}" for name in part.names if not _has(place, name, part.set_by)]


def _has(place: object, name: str, set_by: str) -> bool:
    if hasattr(place, name) or name in getattr(_code(place), "co_varnames", ()):
        return True
    # Attributes that a constructor sets are no attributes of the class unless it has slots.
    for cls in getattr(place, "__mro__", ()):
        code = _code(vars(cls).get(set_by))
        if name in (*getattr(code, "co_names", ()), *getattr(code, "co_varnames", ())):
            return True
    return False


def _code(function: object) -> Any:
    """Of what a decorator of the driver's may be around."""
    return getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
