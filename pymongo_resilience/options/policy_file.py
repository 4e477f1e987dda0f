"""Namespace rules as a TOML file has them: a table ``[policies."shop.*"]`` for each pattern."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience.option_types import (
    ATTEMPT_TIMEOUT_MS,
    BOOLEAN,
    HEDGE,
    PRIORITY,
    TIMEOUT_MODE,
    TIMEOUT_MS,
    OptionType,
    one_of,
    shown,
    warn_unknown,
)
from pymongo_resilience.policies.namespaces import EXPECTED_PATTERN, is_pattern
from pymongo_resilience.policies.policy import Policy
from pymongo_resilience.rules.strategy import NAMED

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# A file's own words: what variables may call true and false beside that is no boolean there.
_TRUTH = BOOLEAN._replace(allowed="true or false")
_TABLE = OptionType(
    "table", "a table, as in {robot = true}", str, lambda value: isinstance(value, dict)
)
KEYS: Mapping[str, OptionType] = {
    "timeout_ms": TIMEOUT_MS,
    "attempt_timeout_ms": ATTEMPT_TIMEOUT_MS,
    "timeout_mode": TIMEOUT_MODE,
    "idempotent": _TRUTH,
    "strategy": one_of(NAMED),
    "data": _TABLE,
    "priority": PRIORITY,
    "hedge": HEDGE,
    "resumable": _TRUTH,
    "atomic": _TRUTH,
}
"""The fields of a Policy, as the file has them."""
CONFIDENTIAL = "data"


def policies_of(tables: object, path: Path, problems: list[str]) -> dict[str, Policy]:
    """The rules in ``tables``; what is wrong with them is added to ``problems``.

    An unknown key is a warning with the nearest name.
    """
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
            confidential = f"is of type {type(value).__name__}"
            said = confidential if name == CONFIDENTIAL else f"= {shown(value)}"
            problems.append(f"{path}: {place}.{name} {said}: expected {kind.allowed}")
    return Policy(**values)
