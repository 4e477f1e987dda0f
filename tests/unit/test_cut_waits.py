"""Waits that are cut short give back what they took, and a clock that stands still ends them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.engine.failing_work import START, AwaitedWork, BlockingWork, Final
from support.engine.retry_strategies import AT_ONCE, FAST_FAIL, half, waiting
from support.engine.scenarios import CUT, OVERLOAD, READ

from pymongo_resilience.clock import Postponed
from pymongo_resilience.rules.budget import TokenBucket
from pymongo_resilience.rules.executor import AsyncExecutor, Executor
from pymongo_resilience.rules.retry_rules import RetryRules, Rule
from pymongo_resilience.testing import FakeClock, RecordingListener

both = pytest.mark.parametrize("kind", [BlockingWork, AwaitedWork], ids=["thread", "task"])
RETRY_RULES = RetryRules(random=half)


class Cut(FakeClock):
    """Nobody waits on it to the end."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(START)
        self._error = error

    def sleep(self, seconds: float, /) -> None:
        raise self._error


class Standing(FakeClock):
    """As one that a test has frozen."""

    def sleep(self, seconds: float, /) -> None:
        self.sleeps.append(seconds)


def run(work: Any) -> Any:
    heard = RecordingListener()
    if isinstance(work, BlockingWork):
        return Executor(RETRY_RULES, work.clock, heard).run(work)
    return asyncio.run(AsyncExecutor(RETRY_RULES, work.clock, heard).run(work))


@both
@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), LookupError()])
def test_a_wait_that_is_cut_short_returns_its_token(kind: Any, error: BaseException) -> None:
    bucket = TokenBucket(10)
    work = kind(READ, [OVERLOAD], FAST_FAIL, clock=Cut(error), budget=bucket)
    with pytest.raises(type(error)):
        run(work)
    assert bucket.tokens == 10


@both
def test_after_no_overload_there_is_no_token_to_return(kind: Any) -> None:
    bucket = TokenBucket(10)
    bucket.consume(5)
    work = kind(READ, [CUT], waiting(1), clock=Cut(KeyboardInterrupt()), budget=bucket, timeout=9)
    with pytest.raises(KeyboardInterrupt):
        run(work)
    assert bucket.tokens == 5


@both
def test_what_is_only_put_off_keeps_its_token(kind: Any) -> None:
    bucket = TokenBucket(10)
    work = kind(READ, [OVERLOAD], FAST_FAIL, clock=Cut(Postponed()), budget=bucket)
    with pytest.raises(Postponed):
        run(work)
    assert bucket.tokens == 9


@both
@pytest.mark.parametrize("limit", ["timeout", "window"])
@pytest.mark.parametrize("delay", [0.25, 0])
def test_a_clock_that_stands_still_does_not_repeat_for_ever(
    kind: Any, limit: str, delay: float
) -> None:
    work = kind(
        READ,
        [CUT] * 5000,
        waiting(delay) if delay else AT_ONCE,
        clock=Standing(START),
        **{limit: 2.0},
    )
    with pytest.raises(Final) as caught:
        run(work)
    assert caught.value.rule is (Rule.DEADLINE if limit == "timeout" else Rule.ATTEMPTS)
    assert sum(work.clock.sleeps) <= 2.5
    assert 1 < work.attempts < 1100


@both
def test_a_clock_that_moves_costs_nobody_any_time(kind: Any) -> None:
    work = kind(READ, [CUT] * 7, waiting(0.25), timeout=2.0)
    assert run(work)
    assert work.attempts == 8
