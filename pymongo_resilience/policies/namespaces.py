"""Namespace rules: which policy holds for which databases and collections, from code or from the
tables ``[policies."shop.*"]`` of a TOML file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any

from pymongo_resilience.option_types import one_of, shown, warn_unknown
from pymongo_resilience.rules.strategy import NAMED, RetryStrategy

from .policy import FIELDS, NOTHING, Policy

REMEMBERED = 1024
"""Namespaces whose policy is kept; an application may name collections by the day."""
EXPECTED_PATTERN = 'expected "database.collection", where * is any text, as in "shop.*"'
EXPECTED_POLICIES = (
    'expected patterns with a Policy each, as in {"shop.*": Policy(idempotent=True)}'
)

KEYS = {**FIELDS, "strategy": one_of(*NAMED)}
"""The fields of a Policy, as a file has them."""


def matches(pattern: str, name: str) -> bool:
    """Whether ``name`` is ``pattern``, where each ``*`` stands for any text, the empty one too."""
    return fnmatchcase(name, re.sub(r"([?[])", r"[\1]", pattern))


def is_pattern(text: str) -> bool:
    """Whether ``text`` has a database and a collection; a collection's name may have dots."""
    database, dot, collection = text.partition(".")
    return bool(database and dot and collection)


def problems_of(policies: object) -> list[str]:
    """What is wrong with rules that were given in code; nothing where they can be used."""
    if not isinstance(policies, Mapping):
        return [f"policies is of type {type(policies).__name__}: {EXPECTED_POLICIES}"]
    return [
        f"policies[{shown(pattern)}]{problem}"
        for pattern, policy in policies.items()
        if (problem := _problem(pattern, policy))
    ]


def _problem(pattern: object, policy: object) -> str | None:
    if not isinstance(pattern, str) or not is_pattern(pattern):
        return f": {EXPECTED_PATTERN}"
    if not isinstance(policy, Policy):
        return f" is of type {type(policy).__name__}: expected a Policy"
    return None


def _breadth(pattern: str) -> tuple[int, int]:
    """Smaller for patterns that say more; several ``*`` in a row are one."""
    return -len(pattern.replace("*", "")), len(re.findall(r"\*+", pattern))


def policies_of(tables: object, path: Path, problems: list[str]) -> dict[str, Policy]:
    """The rules in ``tables``; adds to ``problems``, and warns of unknown keys."""
    if not isinstance(tables, dict):
        # Only the type, here and below: the data may be inside, and they may be confidential.
        said = f"policies is of type {type(tables).__name__}"
        problems.append(f'{path}: {said}: expected tables, as in [policies."shop.*"]')
        return {}
    return {pattern: _policy(table, pattern, path, problems) for pattern, table in tables.items()}


def _policy(table: object, pattern: str, path: Path, problems: list[str]) -> Policy:
    place = f"policies.{pattern!r}"
    if not is_pattern(pattern):
        problems.append(f"{path}: {place}: {EXPECTED_PATTERN}")
    if not isinstance(table, dict):
        problems.append(f"{path}: {place} is of type {type(table).__name__}: expected a table")
        return Policy()
    values: dict[str, Any] = {}
    for name, value in table.items():
        kind = KEYS.get(name)
        if kind is None:
            warn_unknown(name, f"key of {place} in {path}", KEYS)
        elif kind.legal(normal := kind.normal(value)):
            values[name] = NAMED[normal] if name == "strategy" else normal
        else:
            problems.append(f"{path}: {kind.problem(f'{place}.{name}', value)}")
    return Policy(**values)


class NamespaceRules:
    """The policies of patterns over the strategy of the process.

    All rules that match hold, field by field: of two that say something, the one with more
    characters besides ``*``, then the one with fewer ``*``, then the one given first.
    Thread- and task-safe: nothing changes but a cache.
    """

    def __init__(self, strategy: RetryStrategy, policies: Mapping[str, Policy]) -> None:
        self.strategy = strategy
        self._policies = {pattern: policies[pattern] for pattern in sorted(policies, key=_breadth)}
        self._of = lru_cache(REMEMBERED)(self._combined)
        self.any = bool(policies)
        """Whether there are any."""
        self.have_timeouts = any(
            (each.timeout_ms, each.attempt_timeout_ms) != (None, None) for each in policies.values()
        )

    def policy_of(self, database: str, collection: str | None) -> Policy:
        """What the rules say on one namespace. Without a collection, those hold whose collection is
        ``*``; where the database is not known either, it is empty, and ``*.*`` alone holds."""
        return self._of(database, collection) if self._policies else NOTHING

    def _combined(self, database: str, collection: str | None) -> Policy:
        return reduce(
            Policy.over,
            (
                policy
                for pattern, policy in self._policies.items()
                if _covers(pattern, database, collection)
            ),
            NOTHING,
        )


def _covers(pattern: str, database: str, collection: str | None) -> bool:
    of_database, _, of_collection = pattern.partition(".")
    if collection is None:
        return not of_collection.strip("*") and matches(of_database, database)
    return matches(of_database, database) and matches(of_collection, collection)
