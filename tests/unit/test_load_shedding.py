"""Which requests a client refuses itself, by what its server accepts."""

from __future__ import annotations

import random
from typing import Literal

import pytest
from support.engine.fake_clock import FakeClock

from pymongo_resilience.option_types import PRIORITIES
from pymongo_resilience.rules.failure import (
    RETRYABLE,
    SYSTEM_OVERLOADED,
    Failure,
    RetryReason,
    Stage,
)
from pymongo_resilience.rules.limits import WINDOW_S, Limits, LoadShedder
from pymongo_resilience.rules.retried_operation import Kind, Operation
from pymongo_resilience.rules.retry_rules import RetryRules, Rule
from pymongo_resilience.rules.strategy import BestEffort

Priority = Literal["high", "normal", "low"]
SERVER = "db1:27017"


def shedder(clock: FakeClock | None = None, dice: float = 0.5) -> LoadShedder:
    return LoadShedder(FakeClock() if clock is None else clock, lambda: dice)


def sent(made: LoadShedder, priority: Priority, *, accepted: int, rejected: int) -> None:
    for _ in range(accepted + rejected):
        assert made.admits(priority)
    for _ in range(rejected):
        made.rejected()


@pytest.mark.parametrize("priority", PRIORITIES)
def test_nothing_is_refused_while_nothing_is_rejected(priority: Priority) -> None:
    made = shedder(dice=0.0)
    assert all(made.admits(priority) for _ in range(1000))
    assert made.refused(priority) == 0


@pytest.mark.parametrize(("accepted", "rejected", "refused"), [
    (50, 50, 0), (60, 40, 0), (10, 90, (100 - 2 * 10) / 101), (0, 9, 9 / 10), (0, 1, 1 / 2),
])  # fmt: skip
@pytest.mark.parametrize("priority", ["high", "normal"])
def test_the_part_that_is_refused_is_that_of_the_book(
    priority: Priority, accepted: int, rejected: int, refused: float
) -> None:
    """max(0, (requests - K * accepts) / (requests + 1)), with K = 2."""
    made = LoadShedder(FakeClock(), lambda: 1.0)
    sent(made, priority, accepted=accepted, rejected=rejected)
    assert made.refused(priority) == pytest.approx(refused)


def test_what_is_refused_here_counts_as_a_request() -> None:
    made = shedder(dice=0.0)
    sent(made, "normal", accepted=0, rejected=1)
    for already in range(1, 20):
        assert made.refused() == pytest.approx(already / (already + 1))
        assert not made.admits()


def test_low_priority_has_what_the_higher_ones_leave() -> None:
    made = LoadShedder(FakeClock(), lambda: 1.0)
    sent(made, "high", accepted=92, rejected=8)
    sent(made, "low", accepted=50, rejected=0)
    k = 1.2 - 5 * 8 / 142
    assert made.refused("low") == pytest.approx((50 + 100 - k * 142) / 50)
    sent(made, "low", accepted=0, rejected=40)
    assert made.refused("low") == 1, "nothing at all: the higher ones tell when that is over"
    assert made.refused("normal") == made.refused("high") == 0


def test_low_priority_alone_has_a_k_of_its_own() -> None:
    made = LoadShedder(FakeClock(), lambda: 1.0)
    sent(made, "low", accepted=50, rejected=50)
    assert made.refused("low") == pytest.approx((100 - 1.2 * 50) / 101)


def test_of_low_priority_alone_something_is_always_sent() -> None:
    made = LoadShedder(FakeClock(), lambda: 1.0)
    sent(made, "low", accepted=0, rejected=99)
    assert made.refused("low") == pytest.approx(99 / 100)


def test_the_order_is_that_of_the_priorities() -> None:
    made = LoadShedder(FakeClock(), lambda: 1.0)
    for priority in PRIORITIES:
        sent(made, priority, accepted=10, rejected=40)
    assert [made.refused(each) for each in PRIORITIES] == [0, pytest.approx(0.8), 1]


@pytest.mark.parametrize("seconds", [WINDOW_S, 10 * WINDOW_S, 1e9])
def test_what_is_older_than_the_window_does_not_count(seconds: float) -> None:
    clock = FakeClock()
    made = LoadShedder(clock, lambda: 1.0)
    sent(made, "normal", accepted=0, rejected=9)
    clock.advance(WINDOW_S / 2)
    assert made.refused() == pytest.approx(9 / 10)
    clock.advance(seconds)
    assert made.refused() == 0


@pytest.mark.parametrize("priority", PRIORITIES)
def test_a_server_that_recovers_gets_all_of_it_again(priority: Priority) -> None:
    clock, dice = FakeClock(), random.Random(8).random  # noqa: S311 - no secrets
    made = LoadShedder(clock, dice)
    for _ in range(300):
        clock.advance(0.01)
        if made.admits(priority):
            made.rejected()
    assert made.refused(priority) > 0.5
    admitted = []
    for _ in range(1200):
        clock.advance(0.01)
        admitted.append(made.admits(priority))
    assert all(admitted[-300:])


def failure(reason: RetryReason, stage: Stage, *labels: str) -> Failure:
    return Failure(RuntimeError(), stage, reason, labels=frozenset(labels), server=SERVER)


OVERLOAD = SYSTEM_OVERLOADED, RETRYABLE


@pytest.mark.parametrize(("failed", "counts"), [
    (failure(RetryReason.OVERLOADED, Stage.ANSWERED, *OVERLOAD), True),
    (failure(RetryReason.UNKNOWN, Stage.ANSWERED, SYSTEM_OVERLOADED), True),
    (failure(RetryReason.OVERLOADED, Stage.NOT_SENT, *OVERLOAD), False),
    (failure(RetryReason.LOAD_SHED, Stage.NOT_SENT, *OVERLOAD), False),
    (failure(RetryReason.NOT_PRIMARY, Stage.ANSWERED), False),
    (failure(RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT, Stage.IN_FLIGHT), False),
])  # fmt: skip
def test_only_what_a_server_rejected_counts(failed: Failure, counts: bool) -> None:
    shedder = LoadShedder(FakeClock(), lambda: 1.0)
    shedder.admits()
    Limits(shedders={SERVER: shedder}).failed(failed, retried=False)
    assert (shedder.refused() > 0) is counts


def test_what_was_refused_is_not_repeated() -> None:
    operation = Operation("find", "db.c", Kind.READ, BestEffort())
    refused = failure(RetryReason.LOAD_SHED, Stage.NOT_SENT, *OVERLOAD)
    operation.count(refused)
    assert RetryRules().declined(operation, refused) is Rule.LOAD_SHEDDING


def test_in_a_forked_child_no_lock_is_held() -> None:
    held = LoadShedder(FakeClock(), lambda: 0.0)
    before = held._lock
    held.reset_after_fork()
    assert held._lock is not before
