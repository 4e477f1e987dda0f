"""The rules by which a case is judged must be able to fail it."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Int64
from pymongo import monitoring
from pymongo.errors import AutoReconnect, NotPrimaryError, OperationFailure
from support.conformance.events import Recorder, match_events
from support.conformance.matching import CaseFailed, NotUnderstood, match, match_error

EQUAL: list[tuple[Any, Any]] = [
    (1, Int64(1)),
    (1, 1.0),
    ({"a": 1}, {"a": 1, "more": 2}),
    ([{"a": 1}], [{"a": 1, "more": 2}]),
    ({"a": {"b": [1, {"c": 2}]}}, {"a": {"b": [1, {"c": 2}]}}),
    ({"$$matchesHexBytes": "0aff"}, b"\x0a\xff"),
]
DIFFERENT: list[tuple[Any, Any]] = [
    (1, 2),
    (1, True),
    (False, 0),
    (1, "1"),
    (None, 0),
    ({"a": 1}, {"a": 2}),
    ({"a": 1}, {"b": 1}),
    ({"a": None}, {}),
    ({"a": {}}, {"a": {"more": 2}}),
    ({"a": [{"b": 1}]}, {"a": [{"b": 1, "more": 2}]}),
    ([[{"a": 1}]], [[{"a": 1, "more": 2}]]),
    ([1], [1, 2]),
    ([1, 2], [1]),
    ([1, 2], [2, 1]),
    ([], {}),
    ({}, []),
    ({"$$matchesHexBytes": "0aff"}, b"\x0a"),
]


@pytest.mark.parametrize(("expected", "actual"), EQUAL)
def test_what_is_expected_matches(expected: Any, actual: Any) -> None:
    match(expected, actual)


@pytest.mark.parametrize(("expected", "actual"), DIFFERENT)
def test_anything_else_does_not(expected: Any, actual: Any) -> None:
    with pytest.raises(CaseFailed):
        match(expected, actual)


def test_an_operator_that_is_not_known_is_no_mismatch() -> None:
    with pytest.raises(NotUnderstood, match=r"\$\$sessionLsid"):
        match({"a": {"$$sessionLsid": "session0"}}, {"a": 1})


REPLY = {"ok": 0, "code": 91, "codeName": "ShutdownInProgress", "errorLabels": ["RetryableError"]}
FROM_SERVER = OperationFailure("shutting down", 91, REPLY)


@pytest.mark.parametrize(
    ("expected", "error"),
    [
        ({"isError": True, "isClientError": False}, FROM_SERVER),
        ({"isClientError": False}, NotPrimaryError("not primary", REPLY)),
        ({"isClientError": True}, AutoReconnect("connection closed")),
        ({"errorCode": 91, "errorCodeName": "ShutdownInProgress"}, FROM_SERVER),
        ({"errorCode": 91}, NotPrimaryError("not primary", REPLY)),
        ({"errorContains": "Shutting"}, FROM_SERVER),
        ({"errorLabelsContain": ["RetryableError"], "errorLabelsOmit": ["Other"]}, FROM_SERVER),
    ],
)
def test_an_error_matches(expected: dict[str, Any], error: Exception) -> None:
    match_error(expected, error)


@pytest.mark.parametrize(
    "expected",
    [
        {"isClientError": True},
        {"errorCode": 6},
        {"errorCodeName": "HostUnreachable"},
        {"errorContains": "closed"},
        {"errorLabelsContain": ["RetryableError", "Other"]},
        {"errorLabelsOmit": ["RetryableError"]},
    ],
)
def test_another_error_does_not(expected: dict[str, Any]) -> None:
    with pytest.raises(CaseFailed):
        match_error({"isError": True, **expected}, FROM_SERVER)


def test_a_rule_for_errors_that_is_not_known_is_no_mismatch() -> None:
    with pytest.raises(NotUnderstood, match="isTimeoutError"):
        match_error({"isTimeoutError": True}, FROM_SERVER)


def _started(name: str, **fields: Any) -> monitoring.CommandStartedEvent:
    command = {name: "coll", **fields, "$db": "db"}
    return monitoring.CommandStartedEvent(command, "db", 1, ("127.0.0.1", 1), 1)


def _expected(*commands: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"client": "c", "events": [{"commandStartedEvent": each} for each in commands], **more}


FIND = {"command": {"find": "coll", "filter": {"a": 1}}, "commandName": "find"}
SEEN = [_started("find", filter={"a": 1}), _started("getMore")]


def test_the_expected_events_match() -> None:
    match_events(_expected(FIND, {"databaseName": "db"}), SEEN)
    match_events(_expected(FIND, ignoreExtraEvents=True), SEEN)
    match_events(_expected(eventType="cmap"), SEEN)


@pytest.mark.parametrize(
    "expected",
    [
        pytest.param(_expected(FIND), id="one too many"),
        pytest.param(_expected(FIND, {}, {}), id="one missing"),
        pytest.param(_expected({}, {}, {}, ignoreExtraEvents=True), id="missing, more allowed"),
        pytest.param(_expected({}, {"commandName": "find"}), id="another command"),
        pytest.param(_expected({"databaseName": "other"}, {}), id="another database"),
        pytest.param(_expected({"command": {"limit": 1}}, {}), id="a field missing"),
        pytest.param(_expected({"command": {"filter": {}}}, {}), id="a field too many, inside"),
        pytest.param(
            {"client": "c", "events": [{"commandStartedEvent": {}}, {"commandFailedEvent": {}}]},
            id="another event",
        ),
        pytest.param(
            {"client": "c", "eventType": "cmap", "events": [{"poolClearedEvent": {}}]},
            id="another type of event",
        ),
    ],
)
def test_other_events_do_not(expected: dict[str, Any]) -> None:
    with pytest.raises(CaseFailed):
        match_events(expected, SEEN)


def test_a_field_of_an_event_that_is_not_known_is_no_mismatch() -> None:
    with pytest.raises(NotUnderstood, match="hasServiceId"):
        match_events(_expected({"hasServiceId": False}, {}), SEEN)


def test_a_recorder_keeps_what_is_asked_for_alone() -> None:
    recorder = Recorder(["commandStartedEvent"], ["killCursors"])
    for name in ("find", "killCursors", "configureFailPoint", "saslContinue"):
        recorder.started(_started(name))
    recorder.connection_check_out_started(monitoring.ConnectionCheckOutStartedEvent(("host", 1)))
    assert [event.command_name for event in recorder.events] == ["find"]
