"""Policies for databases and collections, by pattern.

The rules come from code or from tables such as ``[policies."shop.*"]`` in a TOML file.
"""

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
"""Size of the cache of policies by namespace. It is limited because some applications create a
collection for each day.
"""
EXPECTED_PATTERN = 'expected "database.collection", in which * matches any text, as in "shop.*"'
KEYS = {**FIELDS, "strategy": NAMES}
"""The fields of a Policy that a file may set."""


def matches(pattern: str, name: str) -> bool:
    """Return True if ``name`` matches ``pattern``, in which each ``*`` stands for any text or
    none.
    """
    # Only ``*`` is special here; escape the other wildcards of fnmatch.
    return fnmatchcase(name, re.sub(r"([?[])", r"[\1]", pattern))


def is_pattern(pattern: object) -> bool:
    """Return True if ``pattern`` names a database and a collection. Collection names may contain
    dots.
    """
    return isinstance(pattern, str) and all(pattern.partition("."))


def problems_of(policies: object) -> list[str]:
    """Return what is wrong with rules given in code; an empty list if they are valid."""
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
    """Return a sort key that is smaller for more specific patterns. Consecutive ``*`` count
    as one.
    """
    # More literal characters are more specific, so the number is negated.
    return -len(pattern.replace("*", "")), len(re.findall(r"\*+", pattern))


def policies_of(tables: object, path: str, problems: list[str]) -> dict[str, Policy]:
    """Return the rules in ``tables``. Append errors to ``problems``, and warn about unknown
    keys.
    """
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
    """Namespace rules, and the strategy of the process for namespaces without one.

    All rules that match apply. If several set the same field, the one with more characters other
    than ``*`` takes precedence, then the one with fewer ``*``, then the one given first. Thread-
    and task-safe: only a cache changes.
    """

    def __init__(self, strategy: RetryStrategy, policies: Mapping[str, Policy]) -> None:
        self.strategy = strategy
        # From specific to general, because the first policy that sets a field takes precedence.
        self._policies = {pattern: policies[pattern] for pattern in sorted(policies, key=_breadth)}
        self._of = lru_cache(REMEMBERED)(self._combined)
        self.any = bool(policies)
        """True if there is at least one rule."""
        self.have_timeouts = any(
            (policy.timeout_ms, policy.attempt_timeout_ms) != (None, None)
            for policy in policies.values()
        )

    def policy_of(self, database: str, collection: str | None) -> Policy:
        """Return the combined policy of the rules that match one namespace.

        Without a collection, only rules whose collection is ``*`` apply. If the database is unknown
        as well, pass an empty string; then only ``*.*`` applies.
        """
        return self._of(database, collection) if self._policies else EMPTY_POLICY

    def strategy_of(self, policy: Policy) -> RetryStrategy:
        """Return the policy's strategy, or else the strategy of the process."""
        chosen = self.strategy if policy.strategy is None else policy.strategy
        # The constructor of Policy has replaced a name by its strategy.
        return cast("RetryStrategy", chosen)

    def _combined(self, database: str, collection: str | None) -> Policy:
        policies = self._policies.items()
        matching = [
            policy for pattern, policy in policies if _covers(pattern, database, collection)
        ]
        return reduce(Policy.over, matching, EMPTY_POLICY)


def _covers(pattern: str, database: str, collection: str | None) -> bool:
    of_database, _, of_collection = pattern.partition(".")
    if collection is None:
        # Without a collection, only a rule for all collections of the database applies.
        return not of_collection.strip("*") and matches(of_database, database)
    return matches(of_database, database) and matches(of_collection, collection)
