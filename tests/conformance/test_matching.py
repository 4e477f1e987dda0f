"""The rules by which a case is judged must be able to fail it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bson import Int64
from pymongo.errors import AutoReconnect, NotPrimaryError, OperationFailure
from support.conformance.matching import CaseFailed, match, match_error

EQUAL: list[tuple[Any, Any]] = [
    (1, Int64(1)),
    ([{"a": 1}], [{"a": 1, "more": 2}]),
    ({"a": {"b": [1, {"c": 2}]}}, {"a": {"b": [1, {"c": 2}]}, "more": 2}),
]
DIFFERENT: list[tuple[Any, Any]] = [
    (1, 2),
    (1, True),
    ({"a": 1}, {"b": 1}),
    ({"a": None}, {}),
    ({"a": [{"b": 1}]}, {"a": [{"b": 1, "more": 2}]}),
    ([1], [1, 2]),
    ([1, 2], [2, 1]),
    ([], {}),
]
REPLY = {"ok": 0, "code": 91, "codeName": "ShutdownInProgress", "errorLabels": ["RetryableError"]}
FROM_SERVER = OperationFailure("shutting down", 91, REPLY)
ERRORS: list[tuple[dict[str, Any], Exception]] = [
    ({"isError": True, "isClientError": False}, FROM_SERVER),
    ({"isClientError": False}, NotPrimaryError("not primary", REPLY)),
    ({"isClientError": True}, AutoReconnect("connection closed")),
    ({"errorCode": 91, "errorCodeName": "ShutdownInProgress"}, FROM_SERVER),
    ({"errorContains": "Shutting"}, FROM_SERVER),
    ({"errorLabelsContain": ["RetryableError"], "errorLabelsOmit": ["Other"]}, FROM_SERVER),
]
OTHER_ERRORS: list[tuple[dict[str, Any], Exception]] = [
    ({"isClientError": True}, FROM_SERVER),
    ({"errorCode": 6}, FROM_SERVER),
    ({"errorCodeName": "HostUnreachable"}, FROM_SERVER),
    ({"errorContains": "closed"}, FROM_SERVER),
    ({"errorLabelsContain": ["RetryableError", "Other"]}, FROM_SERVER),
    ({"errorLabelsOmit": ["RetryableError"]}, FROM_SERVER),
]


@pytest.mark.parametrize(
    ("rule", "matching", "others"),
    [(match, EQUAL, DIFFERENT), (match_error, ERRORS, OTHER_ERRORS)],
)
def test_what_is_expected_matches_and_nothing_else(
    rule: Callable[[Any, Any], None], matching: list[Any], others: list[Any]
) -> None:
    for each in matching:
        rule(*each)
    for each in others:
        with pytest.raises(CaseFailed):
            rule(*each)
