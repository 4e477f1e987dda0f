"""One client as a state machine: its operations, in any order of their steps, share one budget."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.engine.endless_failures import permitted
from support.engine.engine_inputs import (
    Tokens,
    any_retry_rules,
    budgets,
    calls,
    faults,
    forgiving_calls,
    forgiving_faults,
    own_numbers,
    seconds,
    strategies,
)
from support.engine.failing_work import START, Fault
from support.engine.retry_strategies import BEST_EFFORT
from support.engine.stepped_operations import Running, SharedClock, SteppedWork
from support.examples import scaled

from pymongo_resilience.events import RetryScheduled
from pymongo_resilience.rules.failure import RETRYABLE, SYSTEM_OVERLOADED, RetryReason
from pymongo_resilience.rules.retry_rules import RetryRules, Rule

if TYPE_CHECKING:
    from support.engine.failing_work import Call

    from pymongo_resilience.rules.strategy import RetryStrategy

TENTH = Fraction(1, 10)
MOST = 6
"""Operations under way at a time."""
EPSILON = 1e-9
LONG = 1000.0
"""Seconds."""
OVERLOAD = Fault(reason=RetryReason.OVERLOADED, labels=frozenset({SYSTEM_OVERLOADED, RETRYABLE}))
some = st.integers(0, MOST - 1)
"""Which one, of those there are."""
times = st.none() | seconds
any_faults = st.builds(
    lambda fault, next_command: fault(next_command=next_command),
    forgiving_faults | faults,
    st.sampled_from([False, False, False, True]),
)


@dataclass
class Called:
    """One operation, with what a client may know of it."""

    run: Running
    call: Call
    ends_at: float | None
    """Its deadline, on the clock."""
    window: float | None
    failed: int = 0
    """Attempts of the command at hand."""
    overloaded: bool = False
    window_closes_at: float | None = None

    def failed_with(self, fault: Fault, now: float) -> None:
        if fault.next_command:
            self.failed, self.overloaded = 0, False
        self.failed += 1
        self.overloaded = self.overloaded or overloads(fault)
        if self.window is not None and self.window_closes_at is None:
            self.window_closes_at = now + self.window

    @property
    def time_limit(self) -> float | None:
        return self.window_closes_at if self.ends_at is None else self.ends_at


def overloads(fault: Fault) -> bool:
    return SYSTEM_OVERLOADED in fault.labels


class Client(RuleBasedStateMachine):
    """Whatever is due next: an attempt ends, a wait ends, time passes, another operation begins."""

    @initialize(tokens=budgets, retry_rules=any_retry_rules, own=own_numbers)
    def made(self, tokens: Tokens, retry_rules: RetryRules, own: int | None) -> None:
        self.bucket = tokens.bucket()
        self.capacity = Fraction(tokens.capacity, 10)
        self.model = self.income = Fraction(tokens.there, 10)
        self.spent = 0
        self.retry_rules = retry_rules
        self.own = own
        self.cap = retry_rules.max_retries if own is None else own
        self.clock = SharedClock(START)
        self.under_way: list[Called] = []

    def attempting(self) -> list[Called]:
        return [each for each in self.under_way if each.run.wakes_at is None]

    def waiting(self) -> list[Called]:
        return [each for each in self.under_way if each.run.wakes_at is not None]

    @precondition(lambda self: len(self.under_way) < MOST)
    @rule(call=calls | forgiving_calls, strategy=strategies, timeout=times, window=times)
    def called(
        self, call: Call, strategy: RetryStrategy, timeout: float | None, window: float | None
    ) -> None:
        work = SteppedWork(
            call,
            (),
            strategy,
            clock=self.clock,
            timeout=timeout,
            window=window,
            own_max_retries=self.own,
            budget=self.bucket,
        )
        ends_at = None if timeout is None else self.clock.now() + timeout
        self.under_way.append(Called(Running(self.retry_rules, work), call, ends_at, window))

    @precondition(lambda self: len(self.under_way) < MOST)
    @rule(call=forgiving_calls)
    def called_with_all_the_time_there_is(self, call: Call) -> None:
        self.called(call, BEST_EFFORT, LONG, None)

    @precondition(attempting)
    @rule(which=some)
    def server_is_overloaded(self, which: int) -> None:
        self.attempt_fails(which, OVERLOAD)

    @precondition(attempting)
    @rule(which=some, fault=forgiving_faults)
    def server_is_overloaded_no_more(self, which: int, fault: Fault) -> None:
        self.attempt_fails(which, fault(labels=frozenset()))

    @precondition(attempting)
    @rule(which=some, fault=any_faults)
    def attempt_fails(self, which: int, fault: Fault) -> None:
        called = self.one_of(self.attempting(), which)
        if called.failed and fault.next_command:
            self.returned(1 + TENTH)
        elif called.failed and not overloads(fault) and fault.reason is not RetryReason.LOAD_SHED:
            self.returned(Fraction(1))
        called.run.fail(fault)
        called.failed_with(fault, self.clock.now())
        decision = called.run.decision
        if isinstance(decision, RetryScheduled):
            self.check_retry(called, fault, decision.delay)
            return
        assert called.run.ended
        self.under_way.remove(called)
        if decision.rule is Rule.BUDGET:
            assert overloads(fault)
            assert self.model < 1

    def check_retry(self, called: Called, fault: Fault, delay: float) -> None:
        assert permitted(called.call, fault)
        if called.overloaded:
            assert called.failed <= self.cap
        elif called.time_limit is None:
            assert called.failed == 1
        if called.time_limit is not None:
            assert self.clock.now() < called.time_limit
            assert self.clock.now() + delay <= called.time_limit + EPSILON
        if overloads(fault):
            assert self.model >= 1, "repeated without a token"
            self.model -= 1
            self.spent += 1

    @precondition(attempting)
    @rule(which=some)
    def attempt_succeeds(self, which: int) -> None:
        called = self.one_of(self.attempting(), which)
        called.run.succeed()
        assert called.run.ended
        self.under_way.remove(called)
        self.returned(TENTH if called.run.work.attempts == 1 else 1 + TENTH)

    @precondition(waiting)
    @rule(which=some)
    def wait_ends(self, which: int) -> None:
        self.one_of(self.waiting(), which).run.wake()

    @rule(taken=seconds)
    def time_passes(self, taken: float) -> None:
        self.clock.advance(taken)

    @invariant()
    def the_budget_is_what_the_text_says(self) -> None:
        assert 0 <= self.bucket.tokens <= float(self.capacity)
        assert self.bucket.tokens == float(self.model)

    @invariant()
    def no_more_retries_after_overloads_than_tokens(self) -> None:
        assert self.spent <= self.income

    def one_of(self, several: list[Called], which: int) -> Called:
        return several[which % len(several)]

    def returned(self, tokens: Fraction) -> None:
        self.income += tokens
        self.model = min(self.capacity, self.model + tokens)

    def teardown(self) -> None:
        for called in getattr(self, "under_way", []):
            called.run.abandon()


TestClient = Client.TestCase
TestClient.settings = settings(max_examples=scaled(200), stateful_step_count=60)
