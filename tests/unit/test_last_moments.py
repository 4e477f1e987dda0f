"""Limits to the instant: the last attempt that fits, an end that is close, a clock that stops."""

from __future__ import annotations

import math

import pytest
from support.engine.fake_clock import FakeClock
from support.engine.retry_strategies import AT_ONCE, half, waiting

from pymongo_resilience.clock import SHORTEST, Deadline
from pymongo_resilience.rules.failure import (
    RETRYABLE,
    SYSTEM_OVERLOADED,
    Failure,
    RetryReason,
    Stage,
)
from pymongo_resilience.rules.retry_rules import (
    LAST_ATTEMPT,
    MAX_ATTEMPTS,
    GiveUp,
    Retry,
    RetryRules,
    Rule,
    is_over,
)
from pymongo_resilience.rules.retry_state import Kind, RetryState
from pymongo_resilience.rules.strategy import RetryStrategy

CUT = Failure(ValueError(), Stage.IN_FLIGHT, RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT)
OVERLOAD = Failure(
    ValueError(),
    Stage.ANSWERED,
    RetryReason.OVERLOADED,
    labels=frozenset({SYSTEM_OVERLOADED, RETRYABLE}),
)
RULES = RetryRules(random=half)


def decided(strategy: RetryStrategy, left: float, failure: Failure = CUT) -> GiveUp | Retry:
    """With so many seconds left. The clock is at zero, so that they are exact."""
    deadline = Deadline(FakeClock(), left, 60.0)
    state = RetryState("find", "a.b", Kind.READ, strategy, deadline=deadline)
    state.count(failure)
    return RULES.decide(state, failure)


@pytest.mark.parametrize(
    ("strategy", "left", "verdict"),
    [
        (AT_ONCE, SHORTEST, Retry(0.0)),
        (AT_ONCE, SHORTEST * 0.9, GiveUp(Rule.DEADLINE)),
        (waiting(1.0), LAST_ATTEMPT, Retry(0.0)),
        (waiting(1.0), LAST_ATTEMPT * 0.9, GiveUp(Rule.DEADLINE)),
        (waiting(1.0), 0.25 + LAST_ATTEMPT, Retry(0.25)),
    ],
)
def test_the_last_attempt_has_a_moment(
    strategy: RetryStrategy, left: float, verdict: GiveUp | Retry
) -> None:
    assert decided(strategy, left) == verdict


def test_a_round_trip_that_is_no_number_takes_no_time() -> None:
    strange = Failure(ValueError(), Stage.IN_FLIGHT, CUT.reason, min_rtt=math.nan)
    assert decided(waiting(1.0), 0.5, strange) == Retry(0.5 - LAST_ATTEMPT)
    assert decided(AT_ONCE, math.nan) == GiveUp(Rule.DEADLINE)


def test_after_an_overload_the_delay_of_the_specification_is_the_least() -> None:
    # The overload delay is half of twice the base.
    assert decided(waiting(0.1), 5.0, OVERLOAD) == Retry(0.1)
    assert decided(waiting(0.3), 5.0, OVERLOAD) == Retry(0.3)
    assert decided(waiting(0.3), 0.2, OVERLOAD) == Retry(0.2 - LAST_ATTEMPT)
    assert decided(waiting(0.3), 0.101, OVERLOAD) == Retry(0.1)


@pytest.mark.parametrize(
    ("left", "timeout", "stage", "over"),
    [
        (SHORTEST, 10.0, Stage.IN_FLIGHT, False),
        (SHORTEST * 0.9, 10.0, Stage.IN_FLIGHT, True),
        (SHORTEST * 0.9, 10.0, Stage.NOT_SENT, True),
        # A server that stops a command counts a hundredth and 10 ms faster at most.
        (0.1105, 10.0, Stage.ANSWERED, True),
        (0.1115, 10.0, Stage.ANSWERED, False),
        (math.nan, 10.0, Stage.IN_FLIGHT, True),
    ],
)
def test_practically_nothing_is_left(left: float, timeout: float, stage: Stage, over: bool) -> None:
    assert is_over(left, timeout, stage) is over


@pytest.mark.parametrize(
    ("waited", "attempts", "rule"),
    [
        (59.0, 3, None),
        (61.0, 3, Rule.DEADLINE),
        (0.0, MAX_ATTEMPTS - 1, None),
        (0.0, MAX_ATTEMPTS, Rule.DEADLINE),
    ],
)
def test_an_operation_ends_although_the_clock_stands_still(
    waited: float, attempts: int, rule: Rule | None
) -> None:
    deadline = Deadline.after(FakeClock(), 60.0)
    state = RetryState("find", "a.b", Kind.READ, AT_ONCE, deadline=deadline)
    state.waited, state.attempts = waited, attempts
    assert RULES.declined(state, CUT) is rule
