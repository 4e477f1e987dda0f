"""How many reads may be hedged, and after how long: the arithmetic."""

from __future__ import annotations

import random

import pytest

from pymongo_resilience.server_choice.hedging import (
    GROWTH,
    LEAST_READS,
    MOST_HEDGES,
    OVERLOAD_PAUSE_S,
    READS_PER_HEDGE,
    REMEMBERED_NAMESPACES,
    REMEMBERED_READS,
    RESERVED_HEDGES,
    HedgeBudget,
    Hedging,
    Latencies,
)
from pymongo_resilience.testing import FakeClock


@pytest.fixture
def budget(clock: FakeClock) -> HedgeBudget:
    return HedgeBudget(clock)


def reads(budget: HedgeBudget, count: int) -> None:
    for _ in range(count):
        budget.read()


def test_no_read_is_hedged_before_twenty(budget: HedgeBudget) -> None:
    reads(budget, READS_PER_HEDGE - 1)
    assert not budget.take(again=True)
    budget.read()
    assert budget.take(again=True)
    assert not budget.take(again=True)
    assert (budget.reads, budget.sent) == (READS_PER_HEDGE, 1)


@pytest.mark.parametrize("seed", range(5))
def test_at_most_one_read_in_twenty_is_hedged_at_any_time(budget: HedgeBudget, seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311 - no secrets
    for _ in range(3000):
        reads(budget, dice.randrange(8))
        if dice.random() < 0.5:
            budget.take(again=True)
        assert budget.sent * READS_PER_HEDGE <= budget.reads
    assert budget.sent == budget.reads // READS_PER_HEDGE


def test_what_was_saved_up_is_ten_hedges(budget: HedgeBudget) -> None:
    reads(budget, 100 * READS_PER_HEDGE)
    assert [budget.take(again=True) for _ in range(20)].count(True) == MOST_HEDGES


def test_some_are_left_to_reads_that_ask_again(budget: HedgeBudget) -> None:
    reads(budget, 100 * READS_PER_HEDGE)
    assert [budget.take(again=False) for _ in range(20)].count(
        True
    ) == MOST_HEDGES - RESERVED_HEDGES
    assert [budget.take(again=True) for _ in range(20)].count(True) == RESERVED_HEDGES


@pytest.mark.parametrize("asking", [0.06, 0.08])
def test_slow_reads_are_hedged_though_others_ask_first(budget: HedgeBudget, asking: float) -> None:
    """2 % are slow. Of all that ask, the others are answered before they would ask again."""
    dice = random.Random(7)  # noqa: S311 - no secrets
    waiting: list[int] = []
    refused = 0
    for number in range(50_000):
        budget.read()
        if waiting and waiting[0] <= number:
            waiting.pop(0)
            refused += not budget.take(again=True)
        if (
            dice.random() < asking
            and not budget.take(again=False)
            and dice.random() < 0.02 / asking
        ):
            waiting.append(number + 5)
    assert refused < 50_000 * 0.001


def test_what_was_not_sent_is_given_back(budget: HedgeBudget) -> None:
    reads(budget, READS_PER_HEDGE)
    assert budget.take(again=True)
    budget.give_back()
    assert budget.sent == 0
    assert budget.take(again=True)


def test_none_is_sent_while_a_server_rejects_for_overload(
    budget: HedgeBudget, clock: FakeClock
) -> None:
    reads(budget, 2 * READS_PER_HEDGE)
    budget.overloaded()
    clock.advance(OVERLOAD_PAUSE_S - 0.1)
    assert not budget.take(again=True)
    budget.overloaded()
    clock.advance(OVERLOAD_PAUSE_S - 0.1)
    assert not budget.take(again=True)
    clock.advance(0.2)
    assert budget.take(again=True)


@pytest.mark.parametrize("seed", range(5))
def test_the_percentile_is_exact_to_a_bucket(seed: int) -> None:
    dice, latencies = random.Random(seed), Latencies()  # noqa: S311 - no secrets
    times = sorted(dice.expovariate(100) for _ in range(REMEMBERED_READS - 1))
    for each in dice.sample(times, len(times)):
        latencies.add(each)
    exact, found = times[round(0.95 * len(times)) - 1], latencies.percentile
    assert found is not None
    assert exact * 0.97 <= found <= exact * GROWTH * 1.03


def test_two_in_a_hundred_that_are_slow_do_not_matter() -> None:
    latencies = Latencies()
    for each in range(500):
        latencies.add(0.5 if each % 50 == 0 else 0.002)
    found = latencies.percentile
    assert found is not None
    assert 0.002 <= found <= 0.002 * GROWTH


def test_too_few_tell_nothing() -> None:
    latencies = Latencies()
    for _ in range(LEAST_READS - 1):
        latencies.add(0.01)
    assert latencies.percentile is None
    latencies.add(0.01)
    assert latencies.percentile is not None


def test_what_has_become_slower_is_known_soon() -> None:
    latencies = Latencies()
    for _ in range(100 * REMEMBERED_READS):
        latencies.add(0.001)
    for _ in range(REMEMBERED_READS // 10):
        latencies.add(0.1)
    found = latencies.percentile
    assert found is not None
    assert found >= 0.1 / GROWTH


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 1e9])
def test_any_time_has_a_bucket(seconds: float) -> None:
    latencies = Latencies()
    for _ in range(LEAST_READS):
        latencies.add(seconds)
    assert latencies.percentile is not None


def test_the_delay_is_what_the_policy_names_or_what_was_observed(clock: FakeClock) -> None:
    hedging = Hedging(clock)
    assert hedging.delay(1, "a.b") == 0.001
    assert hedging.delay(True, "a.b") is None
    for _ in range(LEAST_READS):
        hedging.observe("a.b", 0.01)
    found = hedging.delay(True, "a.b")
    assert found is not None
    assert 0.01 <= found <= 0.01 * GROWTH
    assert hedging.delay(True, "a.c") is None


def test_the_namespaces_that_are_kept_are_the_last_ones(clock: FakeClock) -> None:
    hedging = Hedging(clock)
    for _ in range(LEAST_READS):
        hedging.observe("a.used", 0.01)
    for number in range(REMEMBERED_NAMESPACES):
        hedging.observe(f"a.{number}", 0.01)
        hedging.observe("a.used", 0.01)
    assert hedging.delay(True, "a.used") is not None
    assert len(hedging._latencies) == REMEMBERED_NAMESPACES
