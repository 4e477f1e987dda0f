"""Every kind of operation, at every stage, after every cause: what was not sent is retried, and the
words claim no more than what is known of the attempt."""

from __future__ import annotations

from itertools import product

import pytest
from support.engine.retry_strategies import BEST_EFFORT, FAST_FAIL, MONGODB

from pymongo_resilience.rules.explanations import why_not_retried
from pymongo_resilience.rules.failure import Failure, RetryReason, Stage
from pymongo_resilience.rules.retry_rules import GiveUp, Retry, RetryRules, Rule, Verdict
from pymongo_resilience.rules.retry_state import Kind, RetryState
from pymongo_resilience.rules.strategy import TERMINAL, RetryStrategy

RULES = RetryRules()
ONCE_SENT = [Kind.COMMAND, Kind.GET_MORE, Kind.AGGREGATE_WRITE]
PASSING = set(RetryReason) - {
    RetryReason.UNKNOWN,
    RetryReason.POOL_EXHAUSTED,
    RetryReason.NO_RETRYABLE_WRITES,
}
ENDED = "may have", "may be there", "was executed", "was sent", "once it was sent", "half"
"""Words that are true only of an attempt that was sent."""


def decided(
    kind: Kind,
    stage: Stage,
    reason: RetryReason,
    strategy: RetryStrategy = BEST_EFFORT,
    *,
    in_transaction: bool = False,
    acknowledged: bool = True,
    declared: bool = False,
) -> tuple[Verdict, str]:
    """What follows a first attempt without a transaction number, and the words for it."""
    state = RetryState(
        "name",
        "shop.orders",
        kind,
        strategy,
        in_transaction=in_transaction,
        acknowledged=acknowledged,
        declared_idempotent=declared,
    )
    failure = Failure(ValueError(), stage, reason, listed_retryable=False)
    state.count(failure)
    verdict = RULES.decide(state, failure)
    text = why_not_retried(verdict.rule, state, failure) if isinstance(verdict, GiveUp) else ""
    return verdict, text


@pytest.mark.parametrize("in_transaction", [False, True])
@pytest.mark.parametrize("acknowledged", [False, True])
@pytest.mark.parametrize("kind", Kind)
def test_what_was_not_sent_is_retried(kind: Kind, acknowledged: bool, in_transaction: bool) -> None:
    for reason in PASSING:
        verdict, text = decided(
            kind,
            Stage.NOT_SENT,
            reason,
            in_transaction=in_transaction,
            acknowledged=acknowledged,
        )
        # Nobody waits for what the server cleans up by itself.
        assert isinstance(verdict, GiveUp if kind is Kind.CLEANUP else Retry), (reason, text)


@pytest.mark.parametrize("stage", [Stage.IN_FLIGHT, Stage.ANSWERED])
@pytest.mark.parametrize("kind", ONCE_SENT)
def test_what_may_have_been_sent_and_cannot_be_repeated_is_not(kind: Kind, stage: Stage) -> None:
    for reason in PASSING:
        verdict, _ = decided(kind, stage, reason)
        assert verdict == GiveUp(Rule.NEVER_RETRIED)


@pytest.mark.parametrize("acknowledged", [False, True])
@pytest.mark.parametrize("stage", [Stage.IN_FLIGHT, Stage.ANSWERED])
@pytest.mark.parametrize("kind", Kind)
def test_a_declaration_retries_every_kind_except_these(
    kind: Kind, stage: Stage, acknowledged: bool
) -> None:
    keeps_its_rule = kind in {Kind.GET_MORE, Kind.CLEANUP}
    unacknowledged_write = kind is Kind.WRITE and not acknowledged
    expected = GiveUp if keeps_its_rule or unacknowledged_write else Retry
    for reason in PASSING:
        verdict, text = decided(kind, stage, reason, acknowledged=acknowledged, declared=True)
        assert isinstance(verdict, expected), (reason, text)
        assert "not declared" not in text


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("stage", [Stage.IN_FLIGHT, Stage.ANSWERED])
def test_a_statement_that_may_have_been_sent_is_not_repeated_without_its_transaction(
    stage: Stage, declared: bool
) -> None:
    for kind, reason in product(Kind, PASSING):
        verdict, text = decided(kind, stage, reason, in_transaction=True, declared=declared)
        if kind is Kind.TRANSACTION_END:
            assert isinstance(verdict, Retry)
        else:
            assert verdict == GiveUp(Rule.NEVER_RETRIED)
            assert "a transaction must be retried as a whole" in text


@pytest.mark.parametrize("strategy", [BEST_EFFORT, FAST_FAIL, MONGODB])
@pytest.mark.parametrize("in_transaction", [False, True])
@pytest.mark.parametrize("kind", Kind)
def test_no_text_about_what_was_not_sent_says_that_it_was(
    kind: Kind, in_transaction: bool, strategy: RetryStrategy
) -> None:
    for reason in RetryReason:
        _, text = decided(kind, Stage.NOT_SENT, reason, strategy, in_transaction=in_transaction)
        said = text.replace("was not sent", "")
        assert not [each for each in ENDED if each in said], text


def test_a_strategy_that_follows_the_specification_makes_no_exception_for_it() -> None:
    for kind, reason in product(ONCE_SENT, PASSING):
        verdict, text = decided(kind, Stage.NOT_SENT, reason, MONGODB)
        assert verdict == GiveUp(Rule.NEVER_RETRIED)
        assert text == "name was not sent, and the strategy MongoDB does not retry it"


def test_a_terminal_cause_of_what_was_not_sent_is_named() -> None:
    for kind, reason in product(Kind, TERMINAL):
        verdict, text = decided(kind, Stage.NOT_SENT, reason, FAST_FAIL)
        if kind is not Kind.CLEANUP:
            assert verdict == GiveUp(Rule.TERMINAL)
            assert reason.value in text
