"""The rules by which a case is judged must be able to fail it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bson import Int64
from pymongo import monitoring
from pymongo.errors import AutoReconnect, NotPrimaryError, OperationFailure
from support.conformance.events import match_events
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


def _started(name: str, **fields: Any) -> monitoring.CommandStartedEvent:
    command = {name: "coll", **fields, "$db": "db"}
    return monitoring.CommandStartedEvent(command, "db", 1, ("127.0.0.1", 1), 1)


def _expected(*commands: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"client": "c", "events": [{"commandStartedEvent": each} for each in commands], **more}


FIND = {"command": {"find": "coll", "filter": {"a": 1}}, "commandName": "find"}
SEEN = [_started("find", filter={"a": 1}), _started("getMore")]
EVENTS: list[tuple[Any, Any]] = [
    (_expected(FIND, {"databaseName": "db"}), SEEN),
    (_expected(FIND, ignoreExtraEvents=True), SEEN),
    (_expected(eventType="cmap"), SEEN),
]
OTHER_EVENTS: list[tuple[Any, Any]] = [
    (_expected(FIND), SEEN),
    (_expected({}, {}, {}, ignoreExtraEvents=True), SEEN),
    (_expected({"databaseName": "other"}, {}), SEEN),
    (_expected({"command": {"limit": 1}}, {}), SEEN),
    (_expected({"command": {"filter": {}}}, {}), SEEN),
    ({"client": "c", "events": [{"commandStartedEvent": {}}, {"commandFailedEvent": {}}]}, SEEN),
    ({"client": "c", "eventType": "cmap", "events": [{"poolClearedEvent": {}}]}, SEEN),
]


@pytest.mark.parametrize(
    ("rule", "matching", "others"),
    [
        (match, EQUAL, DIFFERENT),
        (match_error, ERRORS, OTHER_ERRORS),
        (match_events, EVENTS, OTHER_EVENTS),
    ],
)
def test_what_is_expected_matches_and_nothing_else(
    rule: Callable[[Any, Any], None], matching: list[Any], others: list[Any]
) -> None:
    for each in matching:
        rule(*each)
    for each in others:
        with pytest.raises(CaseFailed):
            rule(*each)
