"""The table of reasons: whole, without contradictions, and what the classification goes by."""

from __future__ import annotations

import ssl

import pytest
from pymongo.errors import (
    AutoReconnect,
    NotPrimaryError,
    OperationFailure,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
)
from pymongo_resilience_instrumentation.failures import classify, reasons
from pymongo_resilience_instrumentation.failures.reasons import (
    AttemptTimeoutError,
    DeadPeerError,
    InterruptedAttemptError,
)
from pymongo_resilience_instrumentation.selection.refusals import (
    CircuitBreakerOpenError,
    OverloadShedError,
)

from pymongo_resilience.rules.failure import RetryReason

pytestmark = pytest.mark.oldest

SENT = classify.Attempt(reached_connection=True, carried_txn_number=False, server=None, min_rtt=0.0)
OF_THE_TEXT = {6, 7, 89, 91, 134, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436}
"""Retryable Reads, "Retryable Error"."""
BY_REASON = {row.reason: row for row in reasons.ROWS}
CODES = [(row, code) for row in reasons.ROWS for code in row.codes]


def test_every_reason_has_one_row() -> None:
    assert sorted(row.reason.name for row in reasons.ROWS) == sorted(RetryReason.__members__)


def test_no_code_has_two_reasons() -> None:
    numbers = [code.number for _, code in CODES]
    assert len(numbers) == len(set(numbers)) == len(reasons.BY_CODE)


@pytest.mark.parametrize(("row", "code"), CODES, ids=lambda each: getattr(each, "name", ""))
def test_a_code_is_classified_as_the_table_has_it(row: reasons.Row, code: reasons.Code) -> None:
    error = OperationFailure("", code.number, {"ok": 0, "code": code.number})
    failure = classify.failure_of(error, SENT)
    assert (failure.reason, failure.listed_retryable) == (row.reason, code.listed)
    assert not failure.reason.allows_non_idempotent_retry, "a code alone proves nothing"


def test_the_codes_of_the_text_are_in_the_texts_and_no_others() -> None:
    assert {code.number for _, code in CODES if code.listed} == OF_THE_TEXT


@pytest.mark.parametrize("row", [row for row in reasons.ROWS if row.labels])
def test_labels_are_classified_as_the_table_has_them(row: reasons.Row) -> None:
    whole = OperationFailure("", 1, {"ok": 0, "errorLabels": sorted(row.labels)})
    assert classify.failure_of(whole, SENT).reason is row.reason
    for label in row.labels:
        part = OperationFailure("", 1, {"ok": 0, "errorLabels": sorted(row.labels - {label})})
        assert classify.failure_of(part, SENT).reason is RetryReason.UNKNOWN


def _caused_by(cause: Exception) -> AutoReconnect:
    error = AutoReconnect("of this cause")
    error.__cause__ = cause
    return error


UNTRUSTED = ssl.SSLCertVerificationError("certificate verify failed")
CLASSES = [
    (WaitQueueTimeoutError("full"), False, reasons.UNKNOWN),
    (ServerSelectionTimeoutError("none"), False, reasons.NODE_NOT_AVAILABLE),
    (NotPrimaryError("not primary"), True, reasons.NOT_PRIMARY),
    (AutoReconnect("refused"), False, BY_REASON[RetryReason.SOCKET_NOT_AVAILABLE]),
    (AutoReconnect("closed"), True, BY_REASON[RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT]),
    (_caused_by(DeadPeerError(5)), True, BY_REASON[RetryReason.DEAD_PEER]),
    (_caused_by(DeadPeerError(5)), False, BY_REASON[RetryReason.SOCKET_NOT_AVAILABLE]),
    (_caused_by(InterruptedAttemptError()), True, BY_REASON[RetryReason.INTERRUPTED]),
    (_caused_by(AttemptTimeoutError(1)), True, BY_REASON[RetryReason.ATTEMPT_TIMEOUT]),
    (_caused_by(InterruptedAttemptError()), False, BY_REASON[RetryReason.INTERRUPTED]),
    (_caused_by(UNTRUSTED), False, BY_REASON[RetryReason.TLS_ERROR]),
    (CircuitBreakerOpenError("open"), False, reasons.CIRCUIT_BREAKER_OPEN),
    (OverloadShedError("refused"), False, reasons.LOAD_SHED),
]


@pytest.mark.parametrize(("error", "sent", "row"), CLASSES)
def test_a_class_is_classified_as_the_table_has_it(
    error: Exception, sent: bool, row: reasons.Row
) -> None:
    assert isinstance(error, row.errors)
    attempt = SENT._replace(reached_connection=sent)
    assert classify.failure_of(error, attempt).reason is row.reason


def test_every_row_of_a_class_is_among_them() -> None:
    assert [row for row in reasons.ROWS if row.errors and row not in [c[2] for c in CLASSES]] == []


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
