"""The record of one operation: its failed attempts, and why retries ended."""

from __future__ import annotations

from pymongo_resilience.rules.failure import RetryReason, Stage
from pymongo_resilience.rules.outcome import AttemptRecord, Outcome
from pymongo_resilience.rules.retry_rules import Rule

CUT, NOT_PRIMARY = RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT, RetryReason.NOT_PRIMARY


def record(reason: RetryReason, delay: float | None) -> AttemptRecord:
    return AttemptRecord("db1:27017", Stage.ANSWERED, reason, 1.0, delay)


def test_an_operation_without_a_failed_attempt() -> None:
    outcome = Outcome()
    assert (outcome.attempts, outcome.retry_reasons, outcome.declined_by) == ((), (), None)
    assert (outcome.is_retried, outcome.number_of_attempts, outcome.backoff) == (False, 1, 0)


def test_failed_attempts_are_kept_in_order_with_their_delays() -> None:
    outcome, records = Outcome(), [record(CUT, 0.0), record(NOT_PRIMARY, 0.5), record(CUT, None)]
    outcome.retried(records[0])
    assert (outcome.is_retried, outcome.number_of_attempts) == (True, 2)
    outcome.retried(records[1])
    outcome.declined(records[2], Rule.ATTEMPTS)
    assert outcome.attempts == tuple(records)
    assert outcome.retry_reasons == (CUT, NOT_PRIMARY)
    assert (outcome.number_of_attempts, outcome.backoff) == (3, 0.5)
    assert outcome.declined_by is Rule.ATTEMPTS


def test_an_operation_that_is_not_retried() -> None:
    outcome = Outcome()
    outcome.declined(record(CUT, None), Rule.NOT_SAFE)
    assert (outcome.is_retried, outcome.number_of_attempts) == (False, 1)
    # One operation may run several commands.
    outcome.declined(record(NOT_PRIMARY, None), Rule.STRATEGY)
    assert [each.reason for each in outcome.attempts] == [CUT, NOT_PRIMARY]


def test_an_operation_that_begins_again_keeps_its_attempts() -> None:
    outcome = Outcome()
    outcome.declined(record(CUT, None), Rule.NOT_SAFE)
    outcome.final_error = ValueError()
    outcome.begin_again()
    assert (outcome.declined_by, outcome.final_error) == (None, None)
    assert len(outcome.attempts) == 1
