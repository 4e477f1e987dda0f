"""A fault of ours never replaces the error that it was about to judge."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from support.engine.failing_work import AttemptFailed, AwaitedWork, BlockingWork, FakeWork
from support.engine.retry_strategies import FAST_FAIL, half
from support.engine.scenarios import CUT, READ

from pymongo_resilience.events import RetryScheduled
from pymongo_resilience.executor import AsyncExecutor, Executor
from pymongo_resilience.rules.retry_rules import RetryRules
from pymongo_resilience.testing import RecordingListener

RETRY_RULES = RetryRules(random=half)
Run = Callable[[FakeWork, RecordingListener], Any]


class OurFault(RuntimeError):  # noqa: N818 - a fault, as the log calls it
    pass


def in_thread(work: FakeWork, heard: RecordingListener) -> Any:
    assert isinstance(work, BlockingWork)
    return work.run(Executor(RETRY_RULES, work.clock, heard))


def in_task(work: FakeWork, heard: RecordingListener) -> Any:
    assert isinstance(work, AwaitedWork)
    return asyncio.run(work.run(AsyncExecutor(RETRY_RULES, work.clock, heard)))


both = pytest.mark.parametrize(
    ("kind", "run"), [(BlockingWork, in_thread), (AwaitedWork, in_task)], ids=["thread", "task"]
)


def broken(step: str, work: FakeWork, monkeypatch: pytest.MonkeyPatch) -> FakeWork:
    def fail(*_: object) -> Any:
        raise OurFault(step)

    monkeypatch.setattr(work, step, fail)
    return work


def assert_logged(caplog: pytest.LogCaptureFixture, step: str) -> None:
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("pymongo_resilience", logging.ERROR)
    assert (
        record.getMessage()
        == "internal error in pymongo-resilience while classifying AttemptFailed"
    )
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], OurFault)
    assert str(record.exc_info[1]) == step


@both
@pytest.mark.parametrize("step", ["retry_state", "classify", "report", "prepare"])
def test_the_original_error_is_raised_and_the_fault_logged(
    step: str,
    kind: type[FakeWork],
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    work = broken(step, kind(READ, [CUT], FAST_FAIL), monkeypatch)
    heard = RecordingListener()
    with pytest.raises(AttemptFailed) as caught:
        run(work, heard)
    assert work.attempts == 1, "no attempt after a fault"
    assert caught.value.__cause__ is None
    assert not [event for event in heard.events if isinstance(event, RetryScheduled)], (
        "a retry was announced that never came"
    )
    assert_logged(caplog, step)


@both
def test_a_listener_that_nobody_kept_apart(
    kind: type[FakeWork], run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    class Faulty(RecordingListener):
        def on_event(self, event: object, /) -> None:
            raise OurFault("on_event")

    with pytest.raises(AttemptFailed):
        run(kind(READ, [CUT], FAST_FAIL), Faulty())
    assert_logged(caplog, "on_event")
