"""Filters that at most one document can match: they pin ``_id``, which is unique.

Under the collation of its collection, that is: for a call's own, two may be equal.
"""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from bson import SON, Binary, Decimal128, Int64, ObjectId, Timestamp

_VALUES = frozenset({
    ObjectId, str, int, float, bool, bytes, dt.datetime, uuid.UUID,
    Binary, Decimal128, Int64, Timestamp,
})  # fmt: skip
"""Exactly these types: another may be encoded as an operator, and a regular expression is none."""
_DOCUMENTS = (dict, SON)
_ARRAYS = (list, tuple)


def pins_id(criteria: Any) -> bool:
    """Whether a condition that holds for all matches is that ``_id`` equals one value."""
    if type(criteria) not in _DOCUMENTS:
        return False
    if "_id" in criteria and _is_equality(criteria["_id"]):
        return True
    parts = criteria.get("$and")
    return type(parts) in _ARRAYS and any(pins_id(part) for part in parts)


def _is_equality(condition: Any) -> bool:
    if _is_value(condition):
        return True
    if type(condition) not in _DOCUMENTS or len(condition) != 1:
        return False
    ((operator, operand),) = condition.items()
    if operator == "$eq":
        return _is_value(operand)
    return (
        operator == "$in" and type(operand) in _ARRAYS and len(operand) == 1 and _is_value(*operand)
    )


def _is_value(value: Any) -> bool:
    """An ``_id`` is never an array, and one that is null may be one that is not there."""
    if type(value) in _DOCUMENTS:
        return all(type(name) is str and not name.startswith("$") for name in value)
    return type(value) in _VALUES
