"""What strikes from outside, as a signal handler's exception does, is told from a fault of ours."""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.engine.failing_work import AwaitedWork, BlockingWork
from support.engine.retry_strategies import FAST_FAIL, half
from support.engine.scenarios import CUT, READ

from pymongo_resilience import internal_errors
from pymongo_resilience.rules.events import Broadcast
from pymongo_resilience.rules.executor import AsyncExecutor, Executor
from pymongo_resilience.rules.retry_rules import RetryRules
from pymongo_resilience.testing import RecordingListener

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="no such signals here")


class SoftTimeLimitExceeded(Exception):  # noqa: N818 - as Celery calls it
    pass


def strike(signum: int, frame: Any) -> None:
    raise SoftTimeLimitExceeded


def strike_by_another(signum: int, frame: Any) -> None:
    strike_at_once()


def strike_at_once() -> None:
    raise SoftTimeLimitExceeded


def strike_whatever(*_: Any) -> None:
    raise TimeoutError


STRUCK = (SoftTimeLimitExceeded, TimeoutError)


class Handler:
    def method(self, signum: int, frame: Any) -> None:
        raise SoftTimeLimitExceeded

    def __call__(self, signum: int, frame: Any) -> None:
        raise SoftTimeLimitExceeded


HANDLERS: dict[str, Callable[..., Any]] = {
    "function": strike,
    "helper": strike_by_another,
    "any arguments": strike_whatever,
    "method": Handler().method,
    "object": Handler(),
    "partial": functools.partial(strike),
}


@pytest.fixture(params=HANDLERS)
def struck(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    before = signal.signal(signal.SIGUSR1, HANDLERS[request.param])
    yield lambda: signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_handlers_exception_comes_from_outside(struck: Callable[[], None]) -> None:
    with pytest.raises(STRUCK) as caught:
        struck()
    assert internal_errors.from_outside(caught.value)


def test_a_fault_does_not(caplog: pytest.LogCaptureFixture) -> None:
    def takes_two(one: Any, other: Any) -> None:
        raise SoftTimeLimitExceeded

    for fault in (lambda: takes_two(1, 2), strike_at_once, lambda: {}["a"], lambda: int("x")):
        caplog.clear()
        try:
            fault()
        except Exception:
            internal_errors.logger.exception("internal error in pymongo-resilience %s", "here")
        (record,) = caplog.records
        assert record.getMessage() == "internal error in pymongo-resilience here"
        assert record.funcName == "test_a_fault_does_not"
        assert record.exc_info is not None


def test_a_shielded_fault_is_logged_where_it_was_and_goes_no_further(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with internal_errors.shielded("here"):
        {}["a"]
    (record,) = caplog.records
    assert record.getMessage() == "internal error in pymongo-resilience here"
    assert record.funcName == "test_a_shielded_fault_is_logged_where_it_was_and_goes_no_further"
    assert record.exc_info is not None
    assert record.exc_info[0] is KeyError


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_no_shield_holds_what_is_no_fault(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(error), internal_errors.shielded("here"):
        raise error
    assert not caplog.records


def test_no_shield_holds_what_strikes(
    struck: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(STRUCK), internal_errors.shielded("here"):
        struck()
    assert not caplog.records


def test_what_another_thread_sets_in_a_line_of_ours_comes_from_outside() -> None:
    # As PyThreadState_SetAsyncExc does it: no frame but that of the line.
    code = compile("raise strange", "ours", "exec")
    names = {
        "__name__": "pymongo_resilience.rules.retry_rules",
        "strange": SoftTimeLimitExceeded(),
    }
    with pytest.raises(SoftTimeLimitExceeded) as caught:
        exec(code, names)  # noqa: S102 - a line of ours that raises what is not ours
    assert not internal_errors.from_outside(KeyError())
    error = caught.value
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next
    assert internal_errors.from_outside(error)


def test_it_is_delivered_where_a_fault_is_logged(
    struck: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    def shielded() -> None:
        try:
            struck()
        except Exception:
            internal_errors.logger.exception("internal error in pymongo-resilience")

    with pytest.raises(STRUCK) as caught:
        shielded()
    assert internal_errors.from_outside(caught.value)
    assert caplog.records == []


@pytest.mark.parametrize("again", [False, True], ids=["first time", "after a fault of its own"])
def test_it_passes_who_keeps_listeners_apart(struck: Callable[[], None], again: bool) -> None:
    class Faulty:
        act: Callable[[], None] = staticmethod(strike_at_once)

        def on_event(self, event: Any) -> None:
            self.act()

    faulty = Faulty()
    broadcast = Broadcast([faulty])
    if again:
        broadcast.on_event(None)  # type: ignore[arg-type]  # any event
    faulty.act = struck  # type: ignore[misc]  # as above
    with pytest.raises(STRUCK) as caught:
        broadcast.on_event(None)  # type: ignore[arg-type]  # as above
    assert internal_errors.from_outside(caught.value)


@pytest.mark.parametrize("kind", [BlockingWork, AwaitedWork], ids=["thread", "task"])
@pytest.mark.parametrize("step", ["attempt", "operation", "classify", "prepare", "strategy"])
def test_no_step_of_an_executor_takes_it_for_a_fault(
    step: str,
    kind: Any,
    struck: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Strategy:
        def retry_after(self, operation: Any, failure: Any) -> Any:
            return struck()

    heard = RecordingListener()
    work = kind(READ, [CUT], Strategy() if step == "strategy" else FAST_FAIL, timeout=1.0)
    if step != "strategy":
        monkeypatch.setattr(work, step, lambda *_: struck())

    def run() -> None:
        if kind is BlockingWork:
            Executor(RetryRules(random=half), work.clock, heard).run(work)
        else:
            asyncio.run(AsyncExecutor(RetryRules(random=half), work.clock, heard).run(work))

    with caplog.at_level(logging.DEBUG), pytest.raises(STRUCK) as caught:
        run()
    assert internal_errors.from_outside(caught.value)
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
    assert heard.events == []
