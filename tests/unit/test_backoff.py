"""How long to wait: the values at the ends of the dice, the limits, and numbers that overflow."""

from __future__ import annotations

import pytest
from support.engine.retry_strategies import half

from pymongo_resilience.rules import backoff
from pymongo_resilience.rules.failure import Failure, RetryReason, Stage
from pymongo_resilience.rules.retry_state import Kind, RetryState
from pymongo_resilience.rules.strategy import BestEffort, FastFail, RetryAction


def lowest() -> float:
    return 0.0


def highest() -> float:
    return 1.0


def never_thrown() -> float:
    raise AssertionError("no dice for the first retry")


def test_the_first_retry_comes_at_once() -> None:
    assert backoff.exponential(1, never_thrown) == 0.0


@pytest.mark.parametrize(
    ("attempt", "full"),
    [(2, 0.001), (3, 0.002), (4, 0.004), (5, 0.008), (10, 0.256), (11, 0.5), (12, 0.5), (99, 0.5)],
)
def test_exponential_doubles_from_1_to_500_ms(attempt: int, full: float) -> None:
    assert backoff.exponential(attempt, highest) == pytest.approx(full)
    assert backoff.exponential(attempt, half) == pytest.approx(full * 0.75)
    assert backoff.exponential(attempt, lowest) == pytest.approx(full / 2)


@pytest.mark.parametrize(
    ("attempt", "full"),
    [(1, 0.2), (2, 0.4), (3, 0.8), (4, 1.6), (5, 3.2), (6, 6.4), (7, 10.0), (8, 10.0), (99, 10.0)],
)
def test_overload_doubles_from_200_ms_to_10_s(attempt: int, full: float) -> None:
    assert backoff.overload(attempt, highest) == pytest.approx(full)
    assert backoff.overload(attempt, half) == pytest.approx(full / 2)
    assert backoff.overload(attempt, lowest) == 0.0


def test_controlled_has_its_six_steps_and_stays_at_the_last() -> None:
    delays = [backoff.controlled(attempt) for attempt in range(1, 9)]
    assert delays == [0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("attempt", "most"), [(1, 0.1), (2, 0.1), (3, 0.4), (4, 1.6), (5, 1.6), (10**6, 1.6)]
)
def test_what_is_held_back_waits_four_times_as_long_each_time(attempt: int, most: float) -> None:
    assert backoff.held_back(attempt, lambda: 0.0) == most / 2
    assert backoff.held_back(attempt, lambda: 1.0) == most


@pytest.mark.parametrize("strategy", [BestEffort(), FastFail()])
def test_the_strategies_wait_exponentially_with_dice_of_their_own(strategy: BestEffort) -> None:
    failure = Failure(ValueError(), Stage.IN_FLIGHT, RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT)
    operation = RetryState("find", "shop.orders", Kind.READ, strategy)
    delays: dict[int, set[float]] = {}
    for attempt in (1, 2, 11):
        operation.attempts = attempt
        answers = [strategy.retry_after(operation, failure) for _ in range(50)]
        delays[attempt] = {answer.delay for answer in answers if isinstance(answer, RetryAction)}
    assert delays[1] == {0.0}
    assert all(0.0005 <= delay <= 0.001 for delay in delays[2])
    assert all(0.25 <= delay <= 0.5 for delay in delays[11])
    assert len(delays[11]) > 1, "without jitter all clients come back at the same time"


def test_a_calculator_of_ones_own() -> None:
    seen: list[int] = []

    def linear(attempt: int) -> float:
        seen.append(attempt)
        return attempt * 0.125

    failure = Failure(ValueError(), Stage.IN_FLIGHT, RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT)
    operation = RetryState("find", "shop.orders", Kind.READ, BestEffort(linear), attempts=3)
    assert BestEffort(linear).retry_after(operation, failure) == RetryAction(0.375)
    assert seen == [3]


@pytest.mark.parametrize("delay", [float("inf"), float("nan"), 86_401.0, 1e300])
def test_a_delay_that_nobody_waits_for_is_an_error(delay: float) -> None:
    with pytest.raises(ValueError, match=r"delay=.*: expected seconds, at most 86400"):
        RetryAction(delay)


@pytest.mark.parametrize("delay", [-1.0, 0.0, 0.5, 86_400.0])
def test_a_delay_up_to_a_day_is_none(delay: float) -> None:
    assert RetryAction(delay).delay == delay
