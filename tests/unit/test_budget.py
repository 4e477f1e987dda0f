"""Both kinds of retry budget: their arithmetic, many threads, and what the rules make of them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.engine.fake_clock import FakeClock
from support.engine.retry_strategies import AT_ONCE, MONGODB, half

from pymongo_resilience.clock import Deadline
from pymongo_resilience.rules.budget import (
    CAPACITY,
    DEBT,
    DISTRESS,
    FORGOTTEN_S,
    GRACE_S,
    MAX_FAILED,
    PATIENCE_BACKOFFS,
    PATIENCE_S,
    PYMONGO_RETRIES,
    RATIO,
    RESERVE,
    RETURN_RATE,
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
from pymongo_resilience.rules.retry_rules import GiveUp, Retry, RetryRules, Rule
from pymongo_resilience.rules.retry_state import Kind, RetryState

OVERLOAD = Failure(
    RuntimeError(),
    Stage.ANSWERED,
    RetryReason.OVERLOADED,
    labels=frozenset({SYSTEM_OVERLOADED, RETRYABLE}),
)
CUT = Failure(RuntimeError(), Stage.IN_FLIGHT, RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT)
NOT_PRIMARY = Failure(RuntimeError(), Stage.ANSWERED, RetryReason.NOT_PRIMARY)
THROTTLED = Failure(RuntimeError(), Stage.ANSWERED, RetryReason.THROTTLED)
CONFLICT = Failure(RuntimeError(), Stage.ANSWERED, RetryReason.WRITE_CONFLICT)
UNREACHABLE = replace(OVERLOAD, stage=Stage.NOT_SENT, reason=RetryReason.SOCKET_NOT_AVAILABLE)
RULES = RetryRules(random=half)


def operation(
    budget: RetryBudget, timeout: float | None = 5.0, strategy: object = AT_ONCE
) -> RetryState:
    deadline = None if timeout is None else Deadline.after(FakeClock(100.0), timeout)
    return RetryState("find", "a.b", Kind.READ, strategy, budget=budget, deadline=deadline)  # type: ignore[arg-type]


def decided(operation: RetryState, failure: Failure) -> GiveUp | Retry:
    granted = operation.budget.failed(
        failure, retried=operation.attempts > 0, rejections=operation.rejections
    )
    operation.in_grace = operation.in_grace or granted
    operation.count(failure)
    verdict = RULES.decide(operation, failure)
    if isinstance(verdict, Retry):
        assert operation.budget.spend(failure)
    return verdict


def spent() -> RatioBudget:
    """Both accounts, and no grace period is left."""
    clock = FakeClock()
    budget = RatioBudget(clock)
    for _ in range(round(RESERVE)):
        budget.failed(OVERLOAD, retried=False)
        budget.failed(CUT, retried=False)
    clock.advance(GRACE_S)
    return budget


def empty_bucket() -> TokenBucket:
    bucket = TokenBucket(1)
    assert bucket.consume()
    return bucket


class Buckets(RuleBasedStateMachine):
    """Any order of retries, successes and failures, beside exact arithmetic."""

    @initialize(capacity=st.integers(1, 50))
    def begin(self, capacity: int) -> None:
        self.bucket = TokenBucket(capacity)
        self.capacity = self.model = Fraction(capacity)

    @rule()
    def retry(self) -> None:
        allowed = self.bucket.allows(OVERLOAD)
        assert self.bucket.allows(OVERLOAD) == allowed == (self.model >= 1), "asking spends nothing"
        assert self.bucket.spend(OVERLOAD) == allowed
        self.model -= allowed

    @rule()
    def retry_after_something_else(self) -> None:
        assert self.bucket.allows(CUT)
        assert self.bucket.spend(CUT)

    @rule(times=st.integers(1, 40), retried=st.booleans())
    def attempts_succeed(self, times: int, retried: bool) -> None:
        for _ in range(times):
            self.bucket.succeeded(retried=retried)
        each = Fraction(1, 10) + retried
        self.model = min(self.capacity, self.model + times * each)

    @rule(failure=st.sampled_from([OVERLOAD, CUT, CONFLICT]), retried=st.booleans())
    def attempt_fails(self, failure: Failure, retried: bool) -> None:
        self.bucket.failed(failure, retried=retried)
        if retried and failure is not OVERLOAD:
            self.model = min(self.capacity, self.model + 1)

    @invariant()
    def as_the_model(self) -> None:
        assert self.bucket.tokens == float(self.model)
        assert self.bucket.full == (self.model == self.capacity)


class Ratios(RuleBasedStateMachine):
    """Any order of failures and successes, beside exact arithmetic."""

    @initialize(reserve=st.integers(1, 20), debt=st.integers(0, 20), tenths=st.integers(1, 5))
    def begin(self, reserve: int, debt: int, tenths: int) -> None:
        self.budget = RatioBudget(FakeClock(), reserve, debt, tenths / 10)
        self.reserve, self.debt, self.earned = reserve, debt, Fraction(tenths, 10)
        self.model = {OVERLOAD: Fraction(reserve), CUT: Fraction(reserve)}

    @rule(times=st.integers(1, 5), failure=st.sampled_from([OVERLOAD, CUT]), retried=st.booleans())
    def attempts_fail(self, times: int, failure: Failure, retried: bool) -> None:
        for _ in range(times):
            self.budget.failed(failure, retried=retried)
        self.model[failure] = max(Fraction(-self.debt), self.model[failure] - times)

    @rule(retried=st.booleans())
    def another_failure(self, retried: bool) -> None:
        self.budget.failed(CONFLICT, retried=retried)

    @rule(times=st.integers(1, 40), rejections=st.integers(0, 5))
    def attempts_succeed(self, times: int, rejections: int) -> None:
        for _ in range(times):
            self.budget.succeeded(retried=rejections > 0, rejections=rejections)
        refund = {OVERLOAD: rejections if rejections <= PYMONGO_RETRIES else 0, CUT: 0}
        for account, there in self.model.items():
            earned = times * (self.earned + refund[account])
            self.model[account] = min(Fraction(self.reserve), there + earned)

    @rule(failure=st.sampled_from([OVERLOAD, CUT]))
    def retry(self, failure: Failure) -> None:
        assert self.budget.spend(failure), "the failure has cost, not the retry"

    @rule()
    def a_child(self) -> None:
        self.budget.reset_after_fork()
        self.model = dict.fromkeys(self.model, Fraction(self.reserve))

    @invariant()
    def as_the_model(self) -> None:
        assert self.budget.tokens == float(max(Fraction(0), self.model[OVERLOAD]))
        for failure, there in self.model.items():
            assert self.budget.allows(failure) == (there > 0)
        assert self.budget.full == all(each == self.reserve for each in self.model.values())


TestBuckets, TestRatios = Buckets.TestCase, Ratios.TestCase


def test_the_numbers_of_the_text_and_those_that_the_simulation_chose() -> None:
    assert (CAPACITY, RETURN_RATE, TokenBucket().tokens) == (1000, 0.1, 1000)
    assert (RESERVE, DEBT, RATIO) == (8, 8, 0.2)
    assert (PYMONGO_RETRIES, GRACE_S, MAX_FAILED) == (2, 1, 4)


@pytest.mark.parametrize("failure", [OVERLOAD, CUT])
def test_a_failure_costs_one_token_and_a_success_earns_a_part_of_one(failure: Failure) -> None:
    budget = RatioBudget(FakeClock(), 3, 5, 0.1)
    for _ in range(3):
        assert budget.allows(failure)
        budget.failed(failure, retried=False)
    assert not budget.allows(failure)
    budget.succeeded(retried=False)
    assert budget.allows(failure)
    for _ in range(4):
        budget.failed(failure, retried=False)
    for _ in range(39):
        budget.succeeded(retried=False)
    assert not budget.allows(failure)
    budget.succeeded(retried=False)
    assert budget.allows(failure)


def test_rejections_and_other_failures_have_accounts_of_their_own() -> None:
    budget = RatioBudget(FakeClock(), 2, 5, 0.1)
    for failure, other in ((CUT, OVERLOAD), (OVERLOAD, CUT)):
        for _ in range(2):
            budget.failed(failure, retried=False)
        assert not budget.allows(failure)
        assert budget.allows(other) is (failure is CUT)


@pytest.mark.parametrize("failure", [CUT, CONFLICT, UNREACHABLE])
def test_only_a_rejection_begins_a_grace_period(failure: Failure) -> None:
    budget = RatioBudget(FakeClock())
    assert not budget.failed(failure, retried=False)
    assert budget.failed(OVERLOAD, retried=False)


@pytest.mark.parametrize(("rejections", "tokens"), [(0, 3.2), (1, 4.2), (2, 5.2), (3, 3.2)])
def test_pymongos_retries_are_refunded_if_they_help(rejections: int, tokens: float) -> None:
    budget = RatioBudget(FakeClock())
    for _ in range(5):
        budget.failed(OVERLOAD, retried=False)
    budget.succeeded(retried=True, rejections=rejections)
    assert budget.tokens == tokens


def test_a_grace_period_is_for_operations_that_began_before_its_end() -> None:
    clock = FakeClock(100.0)
    budget = RatioBudget(clock)
    assert budget.failed(OVERLOAD, retried=False, began=0.0)
    clock.advance(GRACE_S + 5)
    assert budget.failed(OVERLOAD, retried=False, began=100.0 + GRACE_S * 0.9)
    assert not budget.failed(OVERLOAD, retried=False, began=100.0 + GRACE_S)
    assert not budget.failed(OVERLOAD, retried=False)
    assert not budget.failed(OVERLOAD, retried=True, rejections=1, began=0.0), "at its first"


def test_a_later_rejection_begins_no_grace_period() -> None:
    """As in a forked child, which begins with a full account in the middle of an operation."""
    budget = RatioBudget(FakeClock())
    assert not budget.failed(OVERLOAD, retried=True, rejections=1)
    assert not budget.failed(OVERLOAD, retried=False)


@pytest.mark.parametrize("make", [lambda: RatioBudget(FakeClock()), lambda: TokenBucket(8)])
def test_a_full_budget_says_so(make: Callable[[], RetryBudget]) -> None:
    budget = make()
    assert budget.full
    budget.failed(OVERLOAD, retried=False)
    assert budget.spend(OVERLOAD)
    assert not budget.full
    for _ in range(10):
        budget.succeeded(retried=False)
    assert budget.full


def test_a_budget_without_a_limit_allows_everything() -> None:
    budget = RetryBudget()
    assert (budget.full, budget.tokens) == (True, None)
    assert not budget.failed(OVERLOAD, retried=False)
    assert budget.allows(OVERLOAD)
    assert budget.spend(OVERLOAD)
    assert not budget.is_too_late(0.0, 1e9, 0.0)
    assert budget.is_rejection(OVERLOAD)


def test_one_operation_of_a_quiet_client_has_its_five_retries() -> None:
    one = operation(RatioBudget(FakeClock()), timeout=None)
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


def test_throttling_costs_the_default_budget_nothing_and_the_bucket_a_token() -> None:
    budget, bucket = spent(), empty_bucket()
    before = budget.tokens
    assert isinstance(decided(operation(budget), THROTTLED), Retry)
    assert budget.tokens == before
    assert decided(operation(bucket), THROTTLED) == GiveUp(Rule.BUDGET)


def held_back(*seconds: float) -> list[Retry]:
    return [Retry(pytest.approx(each), held_back=True) for each in seconds]


@pytest.mark.parametrize(("failure", "budget", "strategy", "expected"), [
    (CUT, spent, AT_ONCE, [Retry(0.0), *held_back(0.075, 0.3, 1.2, 1.2)]),
    (NOT_PRIMARY, spent, AT_ONCE, [Retry(0.001), *held_back(0.075, 0.3, 1.2, 1.2)]),
    # The driver gives it both labels; no server has rejected anything.
    (UNREACHABLE, spent, AT_ONCE,
     [Retry(0.1), Retry(0.2), Retry(0.4), *held_back(1.2), Retry(1.6), GiveUp(Rule.ATTEMPTS)]),
    (UNREACHABLE, empty_bucket, AT_ONCE, [GiveUp(Rule.BUDGET)]),
    (CUT, lambda: RatioBudget(FakeClock()), AT_ONCE, [Retry(0.0)] * 3),
    (CUT, spent, MONGODB, [Retry(0.0)] * 3),
    (CUT, empty_bucket, AT_ONCE, [Retry(0.0)] * 3),
    (CONFLICT, spent, AT_ONCE, [Retry(0.0)] * 5),
    (replace(CONFLICT, reason=RetryReason.LOCK_TIMEOUT), spent, AT_ONCE, [Retry(0.0)] * 5),
])  # fmt: skip
def test_spent_it_holds_back_what_distress_has_caused_but_for_the_first_retry(
    failure: Failure,
    budget: Callable[[], RetryBudget],
    strategy: object,
    expected: list[GiveUp | Retry],
) -> None:
    one = operation(budget(), timeout=20.0, strategy=strategy)
    assert [decided(one, failure) for _ in expected] == expected


def test_an_election_is_waited_for_to_the_last_attempt() -> None:
    one = operation(spent(), timeout=0.05)
    decided(one, NOT_PRIMARY)
    assert decided(one, NOT_PRIMARY) == Retry(pytest.approx(0.045), held_back=True)


def test_without_a_deadline_the_one_retry_is_made() -> None:
    one = operation(spent(), timeout=None)
    assert [decided(one, CUT) for _ in range(2)] == [Retry(0.0), GiveUp(Rule.ATTEMPTS)]


@pytest.mark.parametrize("reason", RetryReason)
def test_only_what_a_server_in_distress_causes_costs_a_token(reason: RetryReason) -> None:
    budget = RatioBudget(FakeClock(), 1, 0)
    budget.failed(Failure(RuntimeError(), Stage.ANSWERED, reason), retried=False)
    assert budget.allows(CUT) == (reason not in DISTRESS)
    assert budget.allows(OVERLOAD)


def test_after_a_minute_without_a_failure_it_is_full_again() -> None:
    clock = FakeClock(100.0)
    budget = RatioBudget(clock)
    for _ in range(16):
        budget.failed(OVERLOAD, retried=False)
    clock.advance(FORGOTTEN_S - 1)
    budget.failed(OVERLOAD, retried=False)
    assert not budget.allows(OVERLOAD)
    clock.advance(FORGOTTEN_S)
    assert budget.tokens == RESERVE
    assert budget.failed(OVERLOAD, retried=False), "and may grant retries"
    assert budget.tokens == RESERVE - 1
    assert budget.allows(OVERLOAD)


def test_a_rejected_handshake_is_a_rejection() -> None:
    """A connection that cannot be made has no code."""
    handshake = replace(OVERLOAD, stage=Stage.NOT_SENT, code=462)
    assert (handshake.rejected, OVERLOAD.rejected, UNREACHABLE.rejected) == (True, True, False)
    assert decided(operation(spent()), handshake) == GiveUp(Rule.BUDGET)


def rejected_often(budget: RatioBudget, at_once: int, times: int) -> list[GiveUp | Retry]:
    """Operations at once, each rejected so often before it succeeds: the decisions."""
    states = [operation(budget) for _ in range(at_once)]
    verdicts = [decided(each, OVERLOAD) for _ in range(times) for each in states]
    for each in states:
        budget.succeeded(retried=True, rejections=each.rejections)
    return verdicts


@pytest.mark.parametrize("at_once", [1, 8, 40, 80, 512])
@pytest.mark.parametrize("times", [1, 2])
def test_a_blip_is_no_error_however_many_operations_it_strikes(at_once: int, times: int) -> None:
    budget = RatioBudget(FakeClock())
    for _ in range(3):
        verdicts = rejected_often(budget, at_once, times)
        assert all(isinstance(each, Retry) for each in verdicts)
        assert budget.tokens == RESERVE, "what succeeds as soon as by pymongo costs nothing"


def test_a_quiet_client_is_retried_for_as_long_as_that_helps() -> None:
    clock = FakeClock()
    budget = RatioBudget(clock)
    for _ in range(100):
        clock.advance(0.25)
        assert all(isinstance(each, Retry) for each in rejected_often(budget, 1, 2))


def test_two_calls_succeed_after_two_that_were_given_up() -> None:
    budget = RatioBudget(FakeClock())
    for _ in range(2):
        one = operation(budget)
        for _ in range(PYMONGO_RETRIES):
            assert isinstance(decided(one, OVERLOAD), Retry)
    assert all(isinstance(each, Retry) for each in rejected_often(budget, 1, 2))
    assert all(isinstance(each, Retry) for each in rejected_often(budget, 1, 2))


def in_overload(budget: RatioBudget) -> RetryState:
    """An operation that is rejected for the first time, and not retried by the account."""
    one = operation(budget)
    one.in_grace = budget.failed(OVERLOAD, retried=False)
    one.count(OVERLOAD)
    return one


def test_the_grace_ends_after_a_second() -> None:
    clock = FakeClock()
    budget = RatioBudget(clock)
    assert all(in_overload(budget).in_grace for _ in range(100))
    clock.advance(GRACE_S)
    late = in_overload(budget)
    assert not late.in_grace
    assert RULES.decide(late, OVERLOAD) == GiveUp(Rule.BUDGET)


def test_the_grace_ends_once_it_does_not_help() -> None:
    budget = RatioBudget(FakeClock())
    states = [operation(budget) for _ in range(20)]
    for _ in range(PYMONGO_RETRIES):
        assert all(isinstance(decided(each, OVERLOAD), Retry) for each in states)
    for index, each in enumerate(states):
        assert in_overload(budget).in_grace == (index < MAX_FAILED)
        assert decided(each, OVERLOAD) == GiveUp(Rule.BUDGET), "the account is empty"


@pytest.mark.parametrize(
    ("base", "patience"), [(0.001, PATIENCE_S), (1.0, PATIENCE_BACKOFFS)], ids=["short", "long"]
)
def test_an_operation_is_retried_often_only_for_a_while(base: float, patience: float) -> None:
    failure = replace(OVERLOAD, base_backoff=base)
    one = operation(RatioBudget(clock := FakeClock(100.0)), timeout=None)
    one.rejected_since = clock.now()
    for _ in range(PYMONGO_RETRIES):
        assert isinstance(decided(one, failure), Retry)
    clock.advance(patience * 0.5)
    assert isinstance(decided(one, failure), Retry)
    clock.advance(patience * 0.6)
    assert decided(one, failure) == GiveUp(Rule.BUDGET)
    one.budget.succeeded(retried=False)
    assert isinstance(decided(one, failure), Retry), "not all is rejected"


def test_a_retry_is_too_late_if_its_wait_is() -> None:
    budget = RatioBudget(FakeClock(100.0))
    assert not budget.is_too_late(99.0, 0.9, 0.001)
    assert budget.is_too_late(99.0, 1.1, 0.001)


def test_pymongos_own_retries_have_no_such_limit() -> None:
    one = operation(RatioBudget(clock := FakeClock()), timeout=None)
    one.rejected_since = clock.now()
    for _ in range(PYMONGO_RETRIES):
        clock.advance(PATIENCE_S)
        assert isinstance(decided(one, OVERLOAD), Retry)
    assert decided(one, OVERLOAD) == GiveUp(Rule.BUDGET)


def test_pymongos_own_retries_have_no_such_limit_without_a_grace_period_either() -> None:
    budget = RatioBudget(clock := FakeClock())
    budget.failed(OVERLOAD, retried=False)
    clock.advance(GRACE_S)
    one = operation(budget, timeout=None)
    one.rejected_since = clock.now()
    for _ in range(PYMONGO_RETRIES):
        clock.advance(PATIENCE_S)
        assert isinstance(decided(one, OVERLOAD), Retry)
        assert not one.in_grace
    assert decided(one, OVERLOAD) == GiveUp(Rule.BUDGET)


@pytest.mark.parametrize("make", [TokenBucket, RetryBudget])
def test_other_budgets_have_no_such_limit(make: Callable[[], RetryBudget]) -> None:
    one = operation(make(), timeout=None)
    one.rejected_since = -1000.0
    assert [type(decided(one, OVERLOAD)) for _ in range(5)] == [Retry] * 5


@pytest.mark.parametrize("threads", [2, 16])
def test_many_threads_take_what_is_there_and_no_more(threads: int) -> None:
    bucket, budget = TokenBucket(500), RatioBudget(FakeClock(), 500, 500)
    with ThreadPoolExecutor(threads) as pool:
        granted = list(pool.map(lambda _: bucket.spend(OVERLOAD), range(2000)))
        list(pool.map(lambda _: budget.failed(OVERLOAD, retried=False), range(400)))
    assert (granted.count(True), bucket.tokens, budget.tokens) == (500, 0, 100)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: bucket.succeeded(retried=False), range(1000)))
        list(pool.map(lambda _: budget.succeeded(retried=False), range(1000)))
    assert (bucket.tokens, budget.tokens) == (100, 300)


@pytest.mark.parametrize("timeout", [None, 20.0])
def test_the_end_of_a_transaction_is_not_declined_by_a_spent_budget(timeout: float | None) -> None:
    end = operation(spent(), timeout=timeout)
    end.kind, end.once = Kind.TRANSACTION_END, True
    verdicts = [decided(end, OVERLOAD) for _ in range(8)]
    if timeout is None:
        assert [type(each) for each in verdicts[:6]] == [Retry] * 5 + [GiveUp]
    else:
        assert [type(each) for each in verdicts] == [Retry] * 8, "until the deadline"


def test_by_the_specification_the_end_of_a_transaction_is_like_any_command() -> None:
    end = operation(empty_bucket(), strategy=MONGODB)
    end.kind = Kind.TRANSACTION_END
    assert decided(end, OVERLOAD) == GiveUp(Rule.BUDGET)
