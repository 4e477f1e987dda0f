"""The table of reasons: whole, without contradictions, and what the classification goes by."""

from __future__ import annotations

import ssl

import pytest
from pymongo.errors import (
    AutoReconnect,
    NetworkTimeout,
    NotPrimaryError,
    OperationFailure,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
)
from pymongo_resilience_instrumentation.driver.attempts import AttemptFacts
from pymongo_resilience_instrumentation.failures import classify, reasons
from pymongo_resilience_instrumentation.failures.reasons import (
    AttemptTimeoutError,
    LostConnectionError,
)
from pymongo_resilience_instrumentation.selection.client_limits import CircuitBreakerOpenError

from pymongo_resilience.rules.failure import RetryReason

pytestmark = pytest.mark.oldest

SENT = AttemptFacts(reached_connection=True, carried_txn_number=False, server=None, min_rtt=0.0)
OF_THE_TEXT = {6, 7, 89, 91, 134, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436}
"""Retryable Reads, "Retryable Error"."""


def test_no_code_has_two_reasons() -> None:
    assert sum(map(len, reasons.CODES.values())) == len(reasons.BY_CODE)


@pytest.mark.parametrize(("code", "reason"), reasons.BY_CODE.items())
def test_a_code_is_classified_as_the_table_has_it(code: int, reason: RetryReason) -> None:
    error = OperationFailure("", code, {"ok": 0, "code": code})
    failure = classify.failure_of(error, SENT)
    assert (failure.reason, failure.listed_retryable) == (reason, code in OF_THE_TEXT)
    assert not failure.reason.allows_non_idempotent_retry, "a code alone proves nothing"


@pytest.mark.parametrize(
    ("reason", "labels"),
    [
        (RetryReason.OVERLOADED, {"SystemOverloadedError", "RetryableError"}),
        (RetryReason.TEMPORARILY_UNAVAILABLE, {"RetryableWriteError"}),
    ],
)
def test_labels_are_classified(reason: RetryReason, labels: set[str]) -> None:
    whole = OperationFailure("", 1, {"ok": 0, "errorLabels": sorted(labels)})
    assert classify.failure_of(whole, SENT).reason is reason
    for label in labels:
        part = OperationFailure("", 1, {"ok": 0, "errorLabels": sorted(labels - {label})})
        assert classify.failure_of(part, SENT).reason is RetryReason.UNKNOWN


def _caused_by(cause: Exception) -> AutoReconnect:
    error = AutoReconnect("of this cause")
    error.__cause__ = cause
    return error


DEAD_PEER = LostConnectionError(RetryReason.DEAD_PEER, "")
INTERRUPTED = LostConnectionError(RetryReason.INTERRUPTED, "")
UNTRUSTED = ssl.SSLCertVerificationError("certificate verify failed")
CLASSES = [
    (WaitQueueTimeoutError("full"), False, RetryReason.POOL_EXHAUSTED),
    (ServerSelectionTimeoutError("none"), False, RetryReason.NODE_NOT_AVAILABLE),
    (NotPrimaryError("not primary"), True, RetryReason.NOT_PRIMARY),
    (AutoReconnect("refused"), False, RetryReason.SOCKET_NOT_AVAILABLE),
    (AutoReconnect("closed"), True, RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT),
    (NetworkTimeout("timed out"), True, RetryReason.NO_REPLY),
    (_caused_by(DEAD_PEER), True, RetryReason.DEAD_PEER),
    (_caused_by(DEAD_PEER), False, RetryReason.SOCKET_NOT_AVAILABLE),
    (_caused_by(INTERRUPTED), True, RetryReason.INTERRUPTED),
    (_caused_by(AttemptTimeoutError(1)), True, RetryReason.ATTEMPT_TIMEOUT),
    (_caused_by(INTERRUPTED), False, RetryReason.INTERRUPTED),
    (_caused_by(UNTRUSTED), False, RetryReason.TLS_ERROR),
    (CircuitBreakerOpenError("open"), False, RetryReason.CIRCUIT_BREAKER_OPEN),
]


@pytest.mark.parametrize(("error", "sent", "reason"), CLASSES)
def test_a_class_is_classified(error: Exception, sent: bool, reason: RetryReason) -> None:
    attempt = SENT._replace(reached_connection=sent)
    assert classify.failure_of(error, attempt).reason is reason


@pytest.mark.parametrize(
    ("cause", "sent"),
    [(ssl.SSLEOFError("hung up"), False), (ssl.SSLZeroReturnError("closed"), False),
     (OSError("refused"), False), (UNTRUSTED, True)],
)  # fmt: skip
def test_a_peer_that_hangs_up_is_not_about_tls(cause: Exception, sent: bool) -> None:
    attempt = SENT._replace(reached_connection=sent)
    assert classify.failure_of(_caused_by(cause), attempt).reason is not RetryReason.TLS_ERROR


def test_a_selection_that_fails_within_an_attempt_is_another_clients() -> None:
    failure = classify.failure_of(ServerSelectionTimeoutError("of a key vault"), SENT)
    assert failure.reason is RetryReason.UNKNOWN
    assert failure.selection, "never repeated, as pymongo has it"
