"""Namespace rules: which policy holds for which databases and collections, from code or from the
tables ``[policies."shop.*"]`` of a TOML file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache, reduce
from typing import Any, cast

from pymongo_resilience.option_types import shown, warn_unknown, wrong_type
from pymongo_resilience.rules.strategy import NAMES, RetryStrategy

from .policy import EMPTY_POLICY, FIELDS, Policy

REMEMBERED = 1024
"""Namespaces whose policy is kept; an application may name collections by the day."""
EXPECTED_PATTERN = 'expected "database.collection", where * is any text, as in "shop.*"'
KEYS = {**FIELDS, "strategy": NAMES}
"""The fields of a Policy, as a file has them."""


def matches(pattern: str, name: str) -> bool:
    """Whether ``name`` is ``pattern``, where each ``*`` stands for any text, the empty one too."""
    return fnmatchcase(name, re.sub(r"([?[])", r"[\1]", pattern))


def is_pattern(pattern: object) -> bool:
    """Whether it has a database and a collection; a collection's name may have dots."""
    return isinstance(pattern, str) and all(pattern.partition("."))


def problems_of(policies: object) -> list[str]:
    """What is wrong with rules that were given in code; nothing where they can be used."""
    if not isinstance(policies, Mapping):
        expected = 'patterns with a Policy each, as in {"shop.*": Policy(idempotent=True)}'
        return [wrong_type("policies", policies, expected)]
    problems: list[str] = []
    for pattern, policy in cast("Mapping[object, object]", policies).items():
        place = f"policies[{shown(pattern)}]"
        if not is_pattern(pattern):
            problems.append(f"{place}: {EXPECTED_PATTERN}")
        elif not isinstance(policy, Policy):
            problems.append(wrong_type(place, policy, "a Policy"))
    return problems


def _breadth(pattern: str) -> tuple[int, int]:
    """Smaller for patterns that say more; several ``*`` in a row are one."""
    return -len(pattern.replace("*", "")), len(re.findall(r"\*+", pattern))


def policies_of(tables: object, path: str, problems: list[str]) -> dict[str, Policy]:
    """The rules in ``tables``; adds to ``problems``, and warns of unknown keys."""
    if not isinstance(tables, dict):
        problems.append(
            wrong_type(f"{path}: policies", tables, 'tables, as in [policies."shop.*"]')
        )
        return {}
    rules = cast("dict[str, object]", tables)
    return {pattern: _policy(table, pattern, path, problems) for pattern, table in rules.items()}


def _policy(table: object, pattern: str, path: str, problems: list[str]) -> Policy:
    place = f"{path}: policies.{pattern!r}"
    if not is_pattern(pattern):
        problems.append(f"{place}: {EXPECTED_PATTERN}")
    if not isinstance(table, dict):
        problems.append(wrong_type(place, table, "a table"))
        return Policy()
    values: dict[str, Any] = {}
    for name, value in cast("dict[str, object]", table).items():
        kind = KEYS.get(name)
        if kind is None:
            warn_unknown(name, f"key of policies.{pattern!r} in {path}", KEYS)
        elif kind.legal(value):
            values[name] = value
        else:
            problems.append(kind.problem(f"{place}.{name}", value))
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
        return self._of(database, collection) if self._policies else EMPTY_POLICY

    def strategy_of(self, policy: Policy) -> RetryStrategy:
        """The policy's, or else the process's."""
        chosen = self.strategy if policy.strategy is None else policy.strategy
        return cast("RetryStrategy", chosen)  # a Policy has turned a name into the strategy

    def _combined(self, database: str, collection: str | None) -> Policy:
        policies = self._policies.items()
        found = [policy for pattern, policy in policies if _covers(pattern, database, collection)]
        return reduce(Policy.over, found, EMPTY_POLICY)


def _covers(pattern: str, database: str, collection: str | None) -> bool:
    of_database, _, of_collection = pattern.partition(".")
    if collection is None:
        return not of_collection.strip("*") and matches(of_database, database)
    return matches(of_database, database) and matches(of_collection, collection)
