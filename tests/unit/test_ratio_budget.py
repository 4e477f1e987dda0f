"""The budget in proportion to what succeeds: its arithmetic, and what the rules make of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.engine.fake_clock import FakeClock
from support.engine.retry_strategies import BEST_EFFORT, MONGODB, half

from pymongo_resilience.clock import Deadline
from pymongo_resilience.rules.budget import (
    DEBT,
    FORGOTTEN_S,
    RATIO,
    RESERVE,
    RatioBudget,
    RetryBudget,
    TokenBucket,
)
from pymongo_resilience.rules.failure import (
    RETRYABLE,
    SYSTEM_OVERLOADED,
    Failure,
    RetryReason,
    Stage,
)
from pymongo_resilience.rules.retried_operation import DISTRESS, Kind, Operation
from pymongo_resilience.rules.retry_rules import GiveUp, Retry, RetryRules, Rule
from pymongo_resilience.rules.strategy import RetryAction

OVERLOAD = Failure(
    RuntimeError(),
    Stage.ANSWERED,
    RetryReason.OVERLOADED,
    labels=frozenset({SYSTEM_OVERLOADED, RETRYABLE}),
)
CUT = Failure(RuntimeError(), Stage.IN_FLIGHT, RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT)
NOT_PRIMARY = Failure(RuntimeError(), Stage.ANSWERED, RetryReason.NOT_PRIMARY)
RULES = RetryRules(random=half)


def failed(budget: RetryBudget, times: int = 1) -> None:
    for _ in range(times):
        budget.failed(overloaded=True, retried=False, distress=True)


def operation(
    budget: RetryBudget, timeout: float | None = 5.0, strategy: object = BEST_EFFORT
) -> Operation:
    deadline = None if timeout is None else Deadline.after(FakeClock(100.0), timeout)
    return Operation("find", "a.b", Kind.READ, strategy, budget=budget, deadline=deadline)  # type: ignore[arg-type]


def decided(operation: Operation, failure: Failure) -> GiveUp | Retry:
    operation.record(failure)
    verdict = RULES.check_rules(operation, failure)
    return (
        verdict
        if isinstance(verdict, (GiveUp, Retry))
        else RULES.apply_strategy(operation, failure, RetryAction(0.0))
    )


def spent() -> RatioBudget:
    """Both accounts."""
    budget = RatioBudget()
    for _ in range(round(RESERVE)):
        budget.failed(overloaded=True, retried=False, distress=True)
        budget.failed(overloaded=False, retried=False, distress=True)
    return budget


class Budgets(RuleBasedStateMachine):
    """Any order of failures and successes, beside exact arithmetic."""

    @initialize(reserve=st.integers(1, 20), debt=st.integers(0, 20), tenths=st.integers(1, 5))
    def begin(self, reserve: int, debt: int, tenths: int) -> None:
        self.incomplete: set[RetryBudget] = set()
        self.budget = RatioBudget(reserve, debt, tenths / 10, self.incomplete)
        self.reserve, self.debt, self.earned = reserve, debt, Fraction(tenths, 10)
        self.model = self.others = Fraction(reserve)

    @rule(times=st.integers(1, 5), overloaded=st.booleans(), retried=st.booleans())
    def attempts_fail(self, times: int, overloaded: bool, retried: bool) -> None:
        for _ in range(times):
            self.budget.failed(overloaded=overloaded, retried=retried, distress=True)
        if overloaded:
            self.model = max(Fraction(-self.debt), self.model - times)
        else:
            self.others = max(Fraction(-self.debt), self.others - times)

    @rule(retried=st.booleans())
    def another_failure(self, retried: bool) -> None:
        self.budget.failed(overloaded=False, retried=retried, distress=False)

    @rule(times=st.integers(1, 40), retried=st.booleans())
    def attempts_succeed(self, times: int, retried: bool) -> None:
        for _ in range(times):
            self.budget.succeeded(retried=retried)
        self.model = min(Fraction(self.reserve), self.model + times * self.earned)
        self.others = min(Fraction(self.reserve), self.others + times * self.earned)

    @rule(overloaded=st.booleans())
    def a_retry_that_is_not_made(self, overloaded: bool) -> None:
        self.budget.never_repeated(overloaded=overloaded)

    @rule()
    def a_child(self) -> None:
        self.budget.reset_after_fork()
        self.model = self.others = Fraction(self.reserve)

    @invariant()
    def as_the_model(self) -> None:
        assert self.budget.tokens == float(max(Fraction(0), self.model))
        assert self.budget.allows(overloaded=True) == (self.model > 0)
        assert self.budget.allows(overloaded=False) == (self.others > 0)
        full = self.model == self.others == self.reserve
        assert (self.budget in self.incomplete) == (not full)


TestBudgets = Budgets.TestCase


def test_the_numbers_that_the_simulation_chose() -> None:
    assert (RESERVE, DEBT, RATIO) == (8, 8, 0.2)


def test_one_operation_of_a_quiet_client_has_its_five_retries() -> None:
    one = operation(RatioBudget(), timeout=None)
    assert [type(decided(one, OVERLOAD)) for _ in range(5)] == [Retry] * 5
    assert decided(one, OVERLOAD) == GiveUp(Rule.ATTEMPTS)


def test_spent_it_declines_what_is_overloaded_until_successes_have_paid() -> None:
    budget = spent()
    assert decided(operation(budget), OVERLOAD) == GiveUp(Rule.BUDGET)
    # The failure that is repeated costs a token as well.
    for _ in range(10):
        budget.succeeded(retried=False)
    assert budget.tokens == 1
    assert decided(operation(budget), OVERLOAD) == GiveUp(Rule.BUDGET)
    for _ in range(6):
        budget.succeeded(retried=False)
    assert isinstance(decided(operation(budget), OVERLOAD), Retry)


@pytest.mark.parametrize("failure", [CUT, NOT_PRIMARY])
def test_spent_it_holds_back_every_other_retry_but_the_first(failure: Failure) -> None:
    one = operation(spent())
    first, *others = (decided(one, failure) for _ in range(5))
    assert isinstance(first, Retry)
    assert first.delay <= 0.001
    assert others == [Retry(pytest.approx(each), held_back=True) for each in (0.075, 0.3, 1.2, 1.2)]


def test_a_connection_that_cannot_be_made_is_held_back_too() -> None:
    """The driver gives it both labels; no server has rejected anything."""
    refused = replace(OVERLOAD, stage=Stage.NOT_SENT, reason=RetryReason.SOCKET_NOT_AVAILABLE)
    one = operation(spent(), timeout=20.0)
    assert [decided(one, refused) for _ in range(5)] == [
        Retry(0.1),
        Retry(0.2),
        Retry(0.4),
        Retry(pytest.approx(1.2), held_back=True),
        Retry(1.6),
    ]
    assert decided(one, refused) == GiveUp(Rule.ATTEMPTS)
    bucket = TokenBucket(1)
    assert bucket.consume()
    assert decided(operation(bucket), refused) == GiveUp(Rule.BUDGET)


def test_an_election_is_waited_for_to_the_last_attempt() -> None:
    one = operation(spent(), timeout=0.05)
    decided(one, NOT_PRIMARY)
    assert decided(one, NOT_PRIMARY) == Retry(pytest.approx(0.045), held_back=True)


def test_without_a_deadline_the_one_retry_is_made() -> None:
    one = operation(spent(), timeout=None)
    assert decided(one, CUT) == Retry(0.0)
    assert decided(one, CUT) == GiveUp(Rule.ATTEMPTS)


def test_what_is_not_spent_holds_nothing_back() -> None:
    one = operation(RatioBudget())
    assert [decided(one, CUT) for _ in range(3)] == [Retry(0.0)] * 3


def test_the_specifications_strategy_and_bucket_hold_nothing_back() -> None:
    by_strategy = operation(spent(), strategy=MONGODB)
    bucket = TokenBucket(1)
    assert bucket.consume()
    for one in (by_strategy, operation(bucket)):
        assert [decided(one, CUT) for _ in range(3)] == [Retry(0.0)] * 3


@pytest.mark.parametrize("reason", [RetryReason.WRITE_CONFLICT, RetryReason.LOCK_TIMEOUT])
def test_a_conflict_is_not_held_back_by_what_an_election_spent(reason: RetryReason) -> None:
    one = operation(spent())
    assert [decided(one, Failure(RuntimeError(), Stage.ANSWERED, reason)) for _ in range(5)] == [
        Retry(0.0)
    ] * 5


@pytest.mark.parametrize("reason", RetryReason)
def test_only_what_a_server_in_distress_causes_costs_a_token(reason: RetryReason) -> None:
    budget = RatioBudget(1, 0)
    operation(budget).record(Failure(RuntimeError(), Stage.ANSWERED, reason))
    assert budget.allows(overloaded=False) == (reason not in DISTRESS)
    assert budget.allows(overloaded=True)


def test_after_a_minute_without_a_failure_it_is_full_again() -> None:
    clock = FakeClock(100.0)
    budget = RatioBudget(clock=clock)
    failed(budget, 16)
    clock.advance(FORGOTTEN_S - 1)
    failed(budget)
    assert not budget.allows(overloaded=True)
    clock.advance(FORGOTTEN_S)
    assert budget.tokens == RESERVE
    failed(budget)
    assert budget.tokens == RESERVE - 1
    assert budget.allows(overloaded=True)


def test_many_threads_lose_no_token() -> None:
    budget = RatioBudget(500, 500)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: failed(budget), range(400)))
    assert budget.tokens == 100
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: budget.succeeded(retried=False), range(1000)))
    assert budget.tokens == 300
