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


K_LOW = 1.2 - 5 * 8 / 142
"""Of low priority, beside 142 accepted and 8 rejected requests of higher ones."""


@pytest.mark.parametrize(("requests", "refused"), [
    # max(0, (requests - K * accepts) / (requests + 1)), with K = 2.
    (["high 50 50"], {"high": 0}),
    (["normal 60 40"], {"normal": 0}),
    (["normal 10 90"], {"normal": (100 - 2 * 10) / 101}),
    (["high 0 9"], {"high": 9 / 10}),
    (["normal 0 1"], {"normal": 1 / 2}),
    # Alone, low priority has a K of 1.2, and something of it is always sent.
    (["low 50 50"], {"low": (100 - 1.2 * 50) / 101}),
    (["low 0 99"], {"low": 99 / 100}),
    # It has what higher ones leave, perhaps nothing: they show when that is over.
    (["high 92 8", "low 50 0"], {"low": (50 + 100 - K_LOW * 142) / 50}),
    (["high 92 8", "low 50 40"], {"low": 1, "normal": 0, "high": 0}),
    (["high 10 40", "normal 10 40", "low 10 40"], {"high": 0, "normal": 0.8, "low": 1}),
])  # fmt: skip
def test_the_part_that_is_refused_is_that_of_the_book(
    requests: list[str], refused: dict[Priority, float]
) -> None:
    """``requests``: a priority, how many were accepted, and how many rejected."""
    made = LoadShedder(FakeClock(), lambda: 1.0)
    for each in requests:
        priority, accepted, rejected = each.split()
        sent(made, priority, accepted=int(accepted), rejected=int(rejected))  # type: ignore[arg-type]
    assert {each: made.refused(each) for each in refused} == pytest.approx(refused)


def test_what_is_refused_here_counts_as_a_request() -> None:
    made = shedder(dice=0.0)
    sent(made, "normal", accepted=0, rejected=1)
    for already in range(1, 20):
        assert made.refused() == pytest.approx(already / (already + 1))
        assert not made.admits()


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
