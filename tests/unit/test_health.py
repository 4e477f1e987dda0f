"""Which failures count against a server."""

from __future__ import annotations

import pytest

from pymongo_resilience.rules.failure import (
    RETRYABLE,
    SYSTEM_OVERLOADED,
    Evidence,
    Failure,
    RetryReason,
    Stage,
    evidence,
)

R = RetryReason
NOT_SENT, IN_FLIGHT, ANSWERED = Stage.NOT_SENT, Stage.IN_FLIGHT, Stage.ANSWERED
LABEL = frozenset({SYSTEM_OVERLOADED})
BOTH = frozenset({SYSTEM_OVERLOADED, RETRYABLE})
HURRIED = {"timed_out": True}


def failure(stage: Stage, reason: RetryReason, **facts: bool | frozenset[str]) -> Failure:
    return Failure(OSError(), stage, reason, **facts)  # type: ignore[arg-type]


CASES = {
    "a cut in flight": (failure(IN_FLIGHT, R.SOCKET_CLOSED_WHILE_IN_FLIGHT), Evidence.UNHEALTHY),
    "an attempt's timeout": (failure(IN_FLIGHT, R.ATTEMPT_TIMEOUT), Evidence.UNHEALTHY),
    "an interruption": (failure(IN_FLIGHT, R.INTERRUPTED), Evidence.UNHEALTHY),
    "a dead peer": (failure(IN_FLIGHT, R.DEAD_PEER), Evidence.UNHEALTHY),
    "no reply": (failure(IN_FLIGHT, R.NO_REPLY), Evidence.UNHEALTHY),
    "a timeout in flight": (failure(IN_FLIGHT, R.NO_REPLY, **HURRIED), Evidence.UNHEALTHY),
    "no connection": (failure(NOT_SENT, R.SOCKET_NOT_AVAILABLE), Evidence.UNHEALTHY),
    "no connection in time": (failure(NOT_SENT, R.SOCKET_NOT_AVAILABLE, **HURRIED), Evidence.NONE),
    "no connection in time, with the labels": (
        failure(NOT_SENT, R.OVERLOADED, labels=BOTH, **HURRIED), Evidence.NONE),
    "no connection, with the labels": (
        failure(NOT_SENT, R.OVERLOADED, labels=BOTH), Evidence.UNHEALTHY),
    "overloaded": (failure(ANSWERED, R.OVERLOADED, labels=BOTH), Evidence.UNHEALTHY),
    "a refused transaction number": (
        failure(ANSWERED, R.NO_RETRYABLE_WRITES),
        Evidence.HEALTHY,
    ),
    "throttled": (failure(ANSWERED, R.THROTTLED), Evidence.NONE),
    "overloaded, one label": (failure(ANSWERED, R.UNKNOWN, labels=LABEL), Evidence.UNHEALTHY),
    "a network error behind it": (failure(ANSWERED, R.TEMPORARILY_UNAVAILABLE), Evidence.UNHEALTHY),
    "it says that the time was exceeded": (
        failure(ANSWERED, R.UNKNOWN, **HURRIED), Evidence.UNHEALTHY),
    "the driver says that too little time is left": (
        failure(NOT_SENT, R.UNKNOWN, **HURRIED), Evidence.NONE),
    "a full pool": (failure(NOT_SENT, R.POOL_EXHAUSTED, **HURRIED), Evidence.NONE),
    "a full pool within the attempt": (
        failure(IN_FLIGHT, R.POOL_EXHAUSTED, **HURRIED), Evidence.NONE),
    "a duplicate key": (failure(ANSWERED, R.UNKNOWN), Evidence.HEALTHY),
    "a write conflict": (failure(ANSWERED, R.WRITE_CONFLICT), Evidence.HEALTHY),
    "a lock timeout": (failure(ANSWERED, R.LOCK_TIMEOUT), Evidence.HEALTHY),
    "not authorized": (failure(ANSWERED, R.ACCESS_ERROR), Evidence.HEALTHY),
    "a wrong password": (failure(NOT_SENT, R.AUTHENTICATION_ERROR), Evidence.NONE),
    "an untrusted certificate": (failure(NOT_SENT, R.TLS_ERROR), Evidence.NONE),
    "a document that cannot be encoded": (failure(IN_FLIGHT, R.UNKNOWN), Evidence.NONE),
    "not primary": (failure(ANSWERED, R.NOT_PRIMARY), Evidence.NONE),
    "not primary and overloaded": (
        failure(ANSWERED, R.OVERLOADED, labels=BOTH), Evidence.UNHEALTHY),
    "no server": (failure(NOT_SENT, R.NODE_NOT_AVAILABLE, selection=True), Evidence.NONE),
    "no server for another client within": (
        failure(IN_FLIGHT, R.UNKNOWN, selection=True, **HURRIED), Evidence.NONE),
    "its cursor is gone": (failure(ANSWERED, R.CURSOR_LOST), Evidence.HEALTHY),
    "its breaker is open": (failure(NOT_SENT, R.CIRCUIT_BREAKER_OPEN), Evidence.NONE),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_a_failure_says_of_the_server(name: str) -> None:
    failed, said = CASES[name]
    assert evidence(failed) is said


def test_every_reason_is_among_the_cases() -> None:
    assert {failed.reason for failed, _ in CASES.values()} == set(RetryReason)


@pytest.mark.parametrize("reason", RetryReason)
def test_no_failure_selection_counts_whatever_else_is_said(reason: RetryReason) -> None:
    failed = failure(IN_FLIGHT, reason, selection=True, timed_out=True, labels=BOTH)
    assert evidence(failed) is Evidence.NONE
