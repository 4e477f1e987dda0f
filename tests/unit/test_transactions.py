"""What is repeated after an error in a transaction, and after which pause."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from support.engine.fake_clock import FakeClock
from support.engine.retry_strategies import FAST_FAIL

from pymongo_resilience.clock import Deadline
from pymongo_resilience.rules import backoff
from pymongo_resilience.rules.budget import RatioBudget, TokenBucket
from pymongo_resilience.rules.failure import (
    RETRYABLE,
    SYSTEM_OVERLOADED,
    Failure,
    RetryReason,
    Stage,
)
from pymongo_resilience.rules.retried_operation import Kind, Operation
from pymongo_resilience.rules.retry_rules import (
    GiveUp,
    Repeat,
    Retry,
    RetryRules,
    Rule,
    transaction_verdict,
    what_to_repeat,
)

TRANSIENT, UNKNOWN = "TransientTransactionError", "UnknownTransactionCommitResult"


@pytest.mark.parametrize(
    ("labels", "code", "committing", "expected"),
    [
        ((), None, False, Repeat.NOTHING),
        ((), 112, True, Repeat.NOTHING),
        ((TRANSIENT,), 112, False, Repeat.TRANSACTION),
        ((TRANSIENT,), 112, True, Repeat.TRANSACTION),
        ((UNKNOWN,), 64, True, Repeat.COMMIT),
        ((UNKNOWN, TRANSIENT), None, True, Repeat.COMMIT),
        ((UNKNOWN,), 50, True, Repeat.NOTHING),
        ((UNKNOWN,), None, False, Repeat.NOTHING),
    ],
)
def test_what_is_repeated(
    labels: tuple[str, ...], code: int | None, *, committing: bool, expected: Repeat
) -> None:
    assert what_to_repeat(labels.__contains__, code, committing=committing) is expected


def test_pauses_grow_to_half_a_second() -> None:
    assert [backoff.transaction(retry, lambda: 1.0) for retry in (1, 2, 3)] == pytest.approx(
        [0.0075, 0.01125, 0.016875]
    )
    assert backoff.transaction(10_000, lambda: 0.5) == 0.25


TIME = SimpleNamespace(now=lambda: 0.0)
RULES = RetryRules(random=lambda: 1.0)


def failed(reason: RetryReason = RetryReason.WRITE_CONFLICT, **facts: object) -> Failure:
    return Failure(ValueError(), Stage.ANSWERED, reason, **{"code": 112, **facts})  # type: ignore[arg-type]


def transaction(left: float | None = None, **facts: object) -> Operation:
    made = Operation("transaction", "admin", Kind.TRANSACTION, FAST_FAIL, **facts)  # type: ignore[arg-type]
    limit = Deadline(TIME, 120.0 if left is None else left, 20.0)  # type: ignore[arg-type]
    made.deadline, made.retry_window = (None, limit) if left is None else (limit, None)
    return made


def test_what_is_transient_is_repeated_after_growing_pauses_with_and_without_a_deadline() -> None:
    for left in (20.0, None):
        operation = transaction(left)
        pauses = [
            transaction_verdict(RULES, operation, failed(), Repeat.TRANSACTION) for _ in range(3)
        ]
        delays = [each.delay for each in pauses if isinstance(each, Retry)]
        assert delays == pytest.approx([0.0075, 0.01125, 0.016875])
        assert operation.reasons == [RetryReason.WRITE_CONFLICT] * 3


@pytest.mark.parametrize(
    ("failure", "what", "left", "rule"),
    [
        (failed(), Repeat.NOTHING, 20.0, Rule.UNKNOWN_REASON),
        (failed(), Repeat.TRANSACTION, 0.0, Rule.DEADLINE),
        (failed(timed_out=True), Repeat.COMMIT, 0.0, Rule.DEADLINE),
        (failed(timed_out=True), Repeat.NOTHING, 20.0, Rule.DEADLINE),
        (failed(selection=True), Repeat.TRANSACTION, 20.0, Rule.SELECTION),
        (failed(selection=True, terminal=True), Repeat.TRANSACTION, 20.0, Rule.TERMINAL),
        (failed(next_probe_in=30.0), Repeat.TRANSACTION, 20.0, Rule.BREAKER),
    ],
)
def test_what_is_not_repeated_all_the_same(
    failure: Failure, what: Repeat, left: float, rule: Rule
) -> None:
    assert transaction_verdict(RULES, transaction(left), failure, what) == GiveUp(rule)


def test_without_a_timeout_it_ends_with_its_time_limit() -> None:
    operation = transaction()
    operation.retry_window = Deadline(TIME, 0.0, 120.0)  # type: ignore[arg-type]
    assert transaction_verdict(RULES, operation, failed(), Repeat.COMMIT) == GiveUp(Rule.ATTEMPTS)


def test_an_overloaded_server_gets_few_of_them_and_the_budget_says_how_many() -> None:
    labels = frozenset({SYSTEM_OVERLOADED, RETRYABLE})
    overload = failed(RetryReason.OVERLOADED, labels=labels)
    few = transaction(None)
    answers = [transaction_verdict(RULES, few, overload, Repeat.TRANSACTION) for _ in range(6)]
    assert [isinstance(each, Retry) for each in answers] == [True] * 5 + [False]
    assert answers[-1] == GiveUp(Rule.ATTEMPTS)
    bucket = TokenBucket(2)
    for expected in (Retry, Retry, GiveUp):
        again = transaction(20.0, budget=bucket)
        verdict = transaction_verdict(RULES, again, overload, Repeat.TRANSACTION)
        assert isinstance(verdict, expected)
        bucket.spend(overload)
    assert verdict == GiveUp(Rule.BUDGET)


def test_its_commands_have_told_the_budget_already() -> None:
    budget = RatioBudget(FakeClock())
    before = budget.tokens
    operation = transaction(20.0, budget=budget)
    for _ in itertools.repeat(None, 50):
        transaction_verdict(RULES, operation, failed(RetryReason.NOT_PRIMARY), Repeat.TRANSACTION)
    assert budget.tokens == before
    assert operation.budget is budget
    assert budget.allows(failed(RetryReason.NOT_PRIMARY))
