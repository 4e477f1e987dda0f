"""How many reads may be hedged, and after how long: the arithmetic."""

from __future__ import annotations

import math
import random

import pytest
from pymongo_resilience_instrumentation.features.hedged_reads.hedge_budget import (
    MIN_READS,
    READS_PER_HEDGE,
    REMEMBERED_READS,
    HedgeBudget,
    Latencies,
)
from pymongo_resilience_instrumentation.features.hedged_reads.hedge_registry import (
    REMEMBERED_NAMESPACES,
    ClientHedges,
)
from pymongo_resilience_instrumentation.selection.client_limits import ClientLimits
from support.engine.fake_clock import FakeClock

from pymongo_resilience.events import Broadcast


@pytest.fixture
def budget(clock: FakeClock) -> HedgeBudget:
    return HedgeBudget(clock, lambda: -math.inf)


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


def test_the_percentile_is_exact() -> None:
    dice, latencies = random.Random(1), Latencies()  # noqa: S311 - no secrets
    times = [each / 1000 for each in range(REMEMBERED_READS)]
    for each in dice.sample(times, len(times)):
        latencies.add(each)
    assert latencies.percentile == times[round(0.95 * len(times)) - 1]


def test_what_has_become_slower_is_known_soon() -> None:
    latencies = Latencies()
    for _ in range(100 * REMEMBERED_READS):
        latencies.add(0.001)
    for _ in range(REMEMBERED_READS // 10):
        latencies.add(0.1)
    found = latencies.percentile
    assert found == 0.1


def test_the_delay_is_what_the_policy_names_or_what_was_observed(clock: FakeClock) -> None:
    hedging = ClientHedges(clock, ClientLimits(None, clock, Broadcast([]), None))
    assert hedging.delay(1, "a.b") == 0.001
    assert hedging.delay(True, "a.b") is None
    for _ in range(MIN_READS):
        hedging.observe("a.b", 0.01)
    found = hedging.delay(True, "a.b")
    assert found == 0.01
    assert hedging.delay(True, "a.c") is None


def test_the_namespaces_that_are_kept_are_the_last_ones(clock: FakeClock) -> None:
    hedging = ClientHedges(clock, ClientLimits(None, clock, Broadcast([]), None))
    for _ in range(MIN_READS):
        hedging.observe("a.used", 0.01)
    for number in range(REMEMBERED_NAMESPACES):
        hedging.observe(f"a.{number}", 0.01)
        hedging.observe("a.used", 0.01)
    assert hedging.delay(True, "a.used") is not None
    assert len(hedging._latencies) == REMEMBERED_NAMESPACES
