"""A signal handler's exception at any line of an async retry leaves no coroutine unawaited."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Coroutine
from typing import Any

import pytest
from support.engine.failing_work import START, AwaitedWork
from support.engine.retry_strategies import Answering, half
from support.engine.scenarios import CUT, READ
from support.striking import SoftTimeLimitExceeded, Tracer

from pymongo_resilience.rules.executor import AsyncExecutor
from pymongo_resilience.rules.retry_rules import RetryRules
from pymongo_resilience.rules.strategy import RetryAction
from pymongo_resilience.testing import FakeClock, RecordingListener


async def _answer() -> RetryAction:
    return RetryAction()


def _retry(tracer: Tracer) -> None:
    """Without an event loop, which would keep a KeyboardInterrupt."""
    executor = AsyncExecutor(RetryRules(random=half), FakeClock(START), RecordingListener())
    made: Coroutine[Any, Any, str] = executor.run(AwaitedWork(READ, [CUT], Answering(_answer)))
    with tracer:
        try:
            while True:
                made.send(None)
        except StopIteration:
            pass


@pytest.mark.parametrize("raises", [KeyboardInterrupt, SoftTimeLimitExceeded])
def test_no_coroutine_is_left_unawaited(raises: type[BaseException]) -> None:
    healthy = Tracer()
    _retry(healthy)
    assert len(set(healthy.lines)) > 50
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for at in range(len(healthy.lines)):
            with pytest.raises(raises):
                _retry(tracer := Tracer(at, raises))
            gc.collect(0)
            assert [str(each.message) for each in seen] == [], tracer.struck
