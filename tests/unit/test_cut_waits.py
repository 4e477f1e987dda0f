"""Waits that are cut short give back what they took."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.engine.failing_work import START, AwaitedWork, BlockingWork
from support.engine.fake_clock import FakeClock
from support.engine.retry_strategies import FAST_FAIL, half, waiting
from support.engine.scenarios import CUT, OVERLOAD, READ

from pymongo_resilience.executor import AsyncExecutor, Executor
from pymongo_resilience.rules.budget import TokenBucket
from pymongo_resilience.rules.retry_rules import RetryRules
from pymongo_resilience.testing import RecordingListener

both = pytest.mark.parametrize("kind", [BlockingWork, AwaitedWork], ids=["thread", "task"])
RETRY_RULES = RetryRules(random=half)


class Cut(FakeClock):
    """Nobody waits on it to the end."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(START)
        self._error = error

    def sleep(self, seconds: float, /) -> None:
        raise self._error


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
