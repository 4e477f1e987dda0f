"""What the loops do around the decisions: once, in order, and not after a cancellation."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
from typing import TYPE_CHECKING, Any

import pytest
from support.engine.failing_work import (
    RESULT,
    START,
    AwaitedWork,
    BlockingWork,
    Final,
    run_in_task,
    run_in_thread,
)
from support.engine.fake_clock import FakeClock
from support.engine.retry_strategies import AT_ONCE, FAST_FAIL, Answering, half, waiting
from support.engine.scenarios import CUT, NOT_PRIMARY, OVERLOAD, READ, UNKNOWN

from pymongo_resilience.executor import AsyncExecutor, Executor
from pymongo_resilience.rules.failure import RetryReason
from pymongo_resilience.rules.retry_rules import RetryRules, Rule
from pymongo_resilience.rules.strategy import RetryAction
from pymongo_resilience.testing import RecordingListener

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from pymongo_resilience.rules.failure import Failure
    from pymongo_resilience.rules.retry_state import RetryState

RETRY_RULES = RetryRules(random=half)


class Awaiting:
    """A strategy that asks elsewhere before it answers."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def retry_after(self, operation: RetryState, failure: Failure, /) -> Any:
        await asyncio.sleep(0)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def test_a_coroutine_strategy_is_awaited_in_a_task() -> None:
    work = AwaitedWork(READ, [CUT] * 2, Awaiting(RetryAction(0.25)), timeout=10)
    outcome = run_in_task(RETRY_RULES, work)
    assert (outcome.result, outcome.waits) == (RESULT, [0.25, 0.25])


def test_a_coroutine_strategy_counts_as_no_in_a_thread_and_its_coroutine_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Python warns of one that is forgotten, long after, and far from where it was made."""
    given: list[Coroutine[Any, Any, RetryAction]] = []

    async def answer() -> RetryAction:
        return RetryAction()

    def ask() -> Coroutine[Any, Any, RetryAction]:
        given.append(answer())
        return given[0]

    outcome = run_in_thread(RETRY_RULES, BlockingWork(READ, [CUT], Answering(ask)))
    assert outcome.rule is Rule.STRATEGY
    (record,) = caplog.records
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "expected a RetryAction or None, not coroutine"
    assert [inspect.getcoroutinestate(coroutine) for coroutine in given] == [inspect.CORO_CLOSED]


def test_a_broken_strategy_is_logged_with_what_it_raised(caplog: pytest.LogCaptureFixture) -> None:
    mistake = LookupError("mine")
    work = AwaitedWork(READ, [CUT], Awaiting(mistake))
    run_in_task(RETRY_RULES, work)
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("pymongo_resilience", logging.ERROR)
    assert record.exc_info is not None
    assert repr(record.exc_info[1]) == repr(mistake)


def test_the_strategy_sees_the_operation_and_the_failure() -> None:
    strategy = Answering(lambda: RetryAction(0.0))
    work = BlockingWork(READ, [CUT, NOT_PRIMARY, OVERLOAD], strategy, timeout=10)
    run_in_thread(RETRY_RULES, work)
    assert {id(asked) for asked, _ in strategy.asked} == {id(work.state)}
    assert [failure.reason for _, failure in strategy.asked] == [
        RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT,
        RetryReason.OVERLOADED,
    ], "not primary is repeated without asking"


@pytest.mark.parametrize(
    ("kind", "run"), [(BlockingWork, run_in_thread), (AwaitedWork, run_in_task)]
)
def test_every_attempt_is_left_and_every_retry_planned(kind: Any, run: Any) -> None:
    work = kind(READ, [CUT, NOT_PRIMARY, UNKNOWN], AT_ONCE, timeout=10)
    run(RETRY_RULES, work)
    assert work.state.reasons == [RetryReason(each.reason) for each in (CUT, NOT_PRIMARY, UNKNOWN)]
    servers = ["host1:27017", "host2:27017", "host3:27017"]
    assert [failure.server for failure in work.left] == servers
    assert [failure.server for failure in work.planned] == servers[:2]


def test_the_last_error_comes_from_the_work_with_nothing_in_its_wake() -> None:
    work = BlockingWork(READ, [CUT, CUT], FAST_FAIL)
    executor = Executor(RETRY_RULES, work.clock, RecordingListener())
    with pytest.raises(Final) as caught:
        work.run(executor)
    assert caught.value.rule is Rule.ATTEMPTS
    assert caught.value.failure.server == "host2:27017"
    assert caught.value.__context__ is None, "an error of an earlier attempt would be shown with it"


class EndlessClock(FakeClock):
    """Waits in earnest, so that only a cancellation ends it."""

    async def sleep_async(self, seconds: float, /) -> None:
        self.sleeps.append(seconds)
        await asyncio.Event().wait()


@pytest.mark.parametrize("where", ["again", "wait", "strategy", "report"])
def test_a_cancellation_ends_it_wherever_it_comes(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> Any:
        await asyncio.Event().wait()

    async def main() -> None:
        strategy = Answering(never) if where == "strategy" else waiting(1.0)
        work = AwaitedWork(READ, [CUT] * 3, strategy, clock=EndlessClock(START), timeout=10)
        if where in ("again", "report"):
            monkeypatch.setattr(work, where, never if where == "again" else lambda *_: never)
        heard = RecordingListener()
        executor = AsyncExecutor(RETRY_RULES, work.clock, heard)
        task = asyncio.create_task(work.run(executor))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert work.attempts == (0 if where == "again" else 1), "an attempt after the end"
        assert len(heard.events) == (1 if where == "wait" else 0)

    asyncio.run(main())


def test_waits_end_under_a_clock_that_stands_still() -> None:
    """As a test's may: no deadline passes then."""

    class Standing(FakeClock):
        def sleep(self, seconds: float, /) -> None:
            self.sleeps.append(seconds)

    clock = Standing(START)
    work = BlockingWork(READ, itertools.repeat(CUT), FAST_FAIL, clock, timeout=10)
    with pytest.raises(Final) as ended:
        work.run(Executor(RETRY_RULES, clock, RecordingListener()))
    assert ended.value.rule is Rule.DEADLINE
    assert 10 < sum(clock.sleeps) < 11


def test_who_plans_and_who_listens_does_not_make_the_wait_end_later() -> None:
    clock = FakeClock(START)

    class Slow(RecordingListener):
        def on_event(self, event: object, /) -> None:
            clock.advance(0.25)

    work = BlockingWork(READ, [CUT(takes=0.5), CUT], waiting(0.4), clock, timeout=1.0)
    plan = work.plan
    work.plan = lambda *given: (clock.advance(0.0625), plan(*given))[1]  # type: ignore[method-assign]
    assert work.run(Executor(RETRY_RULES, clock, Slow())) == RESULT
    assert clock.sleeps[0] == pytest.approx(0.4 - 0.25 - 0.0625)
    assert clock.now() <= START + 1.0 + 0.25 + 0.0625
