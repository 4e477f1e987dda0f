"""Numbers that are none: NaN, infinite, negative. No wait lasts for ever, and no loop."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st
from support.engine.failing_work import START
from support.engine.fake_clock import FakeClock
from support.engine.retry_strategies import AT_ONCE, half, waiting
from support.hostile_input import examples, strange_floats

from pymongo_resilience.clock import Deadline
from pymongo_resilience.rules import backoff
from pymongo_resilience.rules.failure import (
    RETRYABLE,
    SYSTEM_OVERLOADED,
    Failure,
    RetryReason,
    Stage,
)
from pymongo_resilience.rules.retry_rules import GiveUp, Retry, RetryRules, Verdict
from pymongo_resilience.rules.retry_state import Kind, RetryState

numbers = st.floats() | strange_floats
READ = RetryState("find", "shop.orders", Kind.READ, AT_ONCE)
NETWORK = Failure(OSError(), Stage.IN_FLIGHT, RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT)
OVERLOADED = Failure(
    OSError(),
    Stage.ANSWERED,
    RetryReason.OVERLOADED,
    labels=frozenset({SYSTEM_OVERLOADED, RETRYABLE}),
)


def decided(operation: RetryState, failure: Failure, delay: float) -> Verdict:
    """The verdict on a failure, where the strategy answers with ``delay``."""
    operation.count(failure)
    answered = replace(operation, strategy=waiting(delay))
    return RetryRules(random=half).decide(answered, failure)


@examples(100)
@given(
    base=numbers,
    min_rtt=numbers,
    timeout=st.none() | numbers,
    window=st.none() | numbers,
    attempts=st.integers(0, 6),
    failure=st.sampled_from([NETWORK, OVERLOADED]),
    answer=st.floats(max_value=86_400.0, allow_nan=False),
)
def test_every_wait_is_finite_and_ends_in_time(
    base: float,
    min_rtt: float,
    timeout: float | None,
    window: float | None,
    attempts: int,
    failure: Failure,
    answer: float,
) -> None:
    clock = FakeClock(START)
    operation = replace(
        READ,
        attempts=attempts,
        deadline=None if timeout is None else Deadline.after(clock, timeout),
        retry_window=None if window is None else Deadline.after(clock, window),
        reasons=[],
    )
    verdict = decided(operation, replace(failure, base_backoff=base, min_rtt=min_rtt), answer)
    if isinstance(verdict, Retry):
        assert 0 <= verdict.delay < math.inf
        limit = operation.time_limit
        assert limit is None or verdict.delay <= limit.remaining()


@pytest.mark.parametrize("delay", [0.0, 0.5, 86_400.0])
def test_a_deadline_that_is_no_number_ends_repeating(delay: float) -> None:
    for failure in (NETWORK, OVERLOADED):
        operation = replace(READ, deadline=Deadline.after(FakeClock(START), math.nan), reasons=[])
        assert isinstance(decided(operation, failure, delay), GiveUp)
    assert operation.deadline is not None
    assert operation.deadline.expired()
    assert not operation.deadline.allows(delay)


@pytest.mark.parametrize("min_rtt", [math.nan, -1.0, -math.inf])
def test_a_round_trip_time_that_is_none_takes_nothing_from_the_deadline(min_rtt: float) -> None:
    operation = replace(READ, deadline=Deadline.after(FakeClock(START), 0.5), reasons=[])
    assert decided(operation, replace(NETWORK, min_rtt=min_rtt), 9.0) == Retry(0.495)


@examples(60)
@given(
    attempt=st.integers(-3, 10**6),
    dice=st.floats(0, 1, exclude_max=True),
    base=numbers,
    limit=st.floats(1e-6, 1e6),
)
def test_the_overload_back_off_stays_within_its_limit(
    attempt: int, dice: float, base: float, limit: float
) -> None:
    assert 0 <= backoff.overload(attempt, lambda: dice, base, limit) <= limit
