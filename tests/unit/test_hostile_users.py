"""A user's strategies and listeners that misbehave, and faults of ours: no retry, nothing worse."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import repeat
from typing import Any

import pytest
from support.engine.failing_work import (
    AttemptFailed,
    AwaitedWork,
    BlockingWork,
    Call,
    FakeWork,
    Fault,
    Final,
)
from support.engine.retry_strategies import FAST_FAIL, Answering, half

from pymongo_resilience.events import Broadcast, RetryScheduled
from pymongo_resilience.executor import AsyncExecutor, Executor, UndecidedError
from pymongo_resilience.rules.failure import RetryReason
from pymongo_resilience.rules.retry_rules import RetryRules
from pymongo_resilience.rules.retry_state import Kind
from pymongo_resilience.rules.strategy import RetryAction
from pymongo_resilience.testing import RecordingListener

READ = Call(kind=Kind.READ)
CUT = Fault(reason=RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT, takes=1 / 64)
RETRY_RULES = RetryRules(random=half)
INTERRUPTS = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError)
Run = Callable[[FakeWork, Any], Any]


def in_thread(work: FakeWork, listener: Any) -> Any:
    assert isinstance(work, BlockingWork)
    return work.run(Executor(RETRY_RULES, work.clock, listener))


def in_task(work: FakeWork, listener: Any) -> Any:
    """A loop of its own, stepped manually: asyncio's would catch what ends the process."""
    assert isinstance(work, AwaitedWork)
    coroutine = work.run(AsyncExecutor(RETRY_RULES, work.clock, listener))
    try:
        while True:
            coroutine.send(None)
    except StopIteration as end:
        return end.value


both = pytest.mark.parametrize(
    ("kind", "run"), [(BlockingWork, in_thread), (AwaitedWork, in_task)], ids=["thread", "task"]
)


class Talkative:
    """Is no answer, and does not even compare, print or hash."""

    def _refuse(self, *_: object) -> Any:
        raise LookupError("a user's class with a mistake")

    delay = property(_refuse)
    __eq__ = __hash__ = __repr__ = __bool__ = __lt__ = __float__ = _refuse


class Late(RetryAction):
    """A subclass that was never checked."""

    def __post_init__(self) -> None: ...


class Asked(RetryAction):
    """One that answers something else whenever it is asked."""

    def __post_init__(self) -> None: ...

    delay = property(Talkative._refuse)  # type: ignore[assignment]  # on purpose


def forged(delay: object) -> RetryAction:
    action = RetryAction.__new__(RetryAction)
    object.__setattr__(action, "delay", delay)
    return action


async def coroutine(answer: Callable[[], Any]) -> Any:
    await asyncio.sleep(0)
    return answer()


def raising(error: BaseException | type[BaseException]) -> Callable[..., Any]:
    def answer(*_: object) -> Any:
        raise error

    return answer


DELAYS: tuple[Any, ...] = (
    *(math.nan, math.inf, -math.inf, -0.0, -1.0, 5e-324, 0.25, 1.5, 86_400.0, 86_401.0, 1e308),
    *(10**400, True, "1", None, [], Decimal("0.1"), Decimal("NaN"), Fraction(1, 3), Talkative()),
)
"""Not all are bad: a strategy may name any wait up to a day."""
NONSENSE: list[Any] = [0, 1.5, True, False, "soon", b"", [], {}, RetryAction, NotImplemented]
ERRORS = (LookupError, StopIteration, StopAsyncIteration, RecursionError, TimeoutError)
ANSWERS: list[Callable[[], Any]] = [
    *(partial(make, delay) for make in (RetryAction, Late, forged) for delay in DELAYS),
    *(partial(Asked, 0.0), partial(RetryAction.__new__, RetryAction)),
    *(partial(lambda answer: answer, answer) for answer in [*NONSENSE, Talkative()]),
    *(raising(error("a user's mistake")) for error in ERRORS),
]


@contextmanager
def our_faults() -> Iterator[list[str]]:
    """What the library logs as a fault of its own meanwhile."""
    texts: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("pymongo_resilience")
    logger.addHandler(handler)
    try:
        yield texts
    finally:
        logger.removeHandler(handler)


@both
@pytest.mark.parametrize("timeout", [None, 2.0])
@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("answer", ANSWERS)
def test_any_answer_is_a_wait_or_no(
    answer: Any, awaited: bool, timeout: float | None, kind: type[FakeWork], run: Run
) -> None:
    said = (lambda: coroutine(answer)) if awaited else answer
    work = kind(READ, repeat(CUT), Answering(said), timeout=timeout)
    heard = RecordingListener()
    with our_faults() as faults, pytest.raises(Final):
        run(work, Broadcast([heard]))
    waits = [event.delay for event in heard.events if isinstance(event, RetryScheduled)]
    assert all(isinstance(wait, (int, float)) and 0 <= wait < math.inf for wait in waits)
    assert len(waits) == work.attempts - 1
    said = ("the retry strategy Answering raised", "the retry strategy Answering must be awaited")
    assert all(fault.startswith(said) for fault in faults)
    if timeout is None:
        assert work.attempts <= 2
    else:
        assert sum(waits) <= timeout


@both
@pytest.mark.parametrize("where", ["strategy", "coroutine", "listener"])
@pytest.mark.parametrize("interrupt", INTERRUPTS)
def test_the_end_of_the_process_passes(
    interrupt: type[BaseException], where: str, kind: type[FakeWork], run: Run
) -> None:
    if where == "coroutine" and kind is BlockingWork:
        return  # awaited in tasks alone

    class Ending(RecordingListener):
        def on_event(self, event: object, /) -> None:
            raise interrupt

    answers: dict[str, Callable[[], Any]] = {
        "strategy": raising(interrupt),
        "coroutine": lambda: coroutine(raising(interrupt)),
        "listener": lambda: RetryAction(0.0),
    }
    work = kind(READ, [CUT], Answering(answers[where]))
    listener = Broadcast([Ending()]) if where == "listener" else RecordingListener()
    with our_faults() as faults, pytest.raises(interrupt):
        run(work, listener)
    assert (work.attempts, faults) == (1, [])


@both
def test_a_strategy_that_takes_its_time_takes_it_from_the_deadline(
    kind: type[FakeWork], run: Run
) -> None:
    def ponder() -> RetryAction:
        work.clock.advance(3.0)
        return RetryAction(0.0)

    work = kind(READ, repeat(CUT), Answering(ponder), timeout=2.0)
    with pytest.raises(Final) as caught:
        run(work, RecordingListener())
    assert (caught.value.rule.value, work.attempts, work.clock.sleeps) == ("deadline", 1, [])


class OurFault(RuntimeError):  # noqa: N818 - a fault, as the log calls it
    pass


def assert_undecided(error: UndecidedError, step: str) -> None:
    """Who runs the executor learns what failed, and why the rules could not decide on it."""
    assert isinstance(error.failed, AttemptFailed)
    assert isinstance(error.__cause__, OurFault)
    assert str(error.__cause__) == step


@both
@pytest.mark.parametrize("step", ["classify", "report", "plan"])
def test_after_a_fault_of_ours_nothing_is_decided(
    step: str, kind: type[FakeWork], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = kind(READ, [CUT], FAST_FAIL)
    monkeypatch.setattr(work, step, raising(OurFault(step)))
    heard = RecordingListener()
    with pytest.raises(UndecidedError) as caught:
        run(work, heard)
    assert work.attempts == 1, "no attempt after a fault"
    assert not [event for event in heard.events if isinstance(event, RetryScheduled)], (
        "a retry was announced that never came"
    )
    assert_undecided(caught.value, step)


@both
def test_a_listener_that_nobody_kept_apart(kind: type[FakeWork], run: Run) -> None:
    class Faulty(RecordingListener):
        def on_event(self, event: object, /) -> None:
            raise OurFault("on_event")

    with pytest.raises(UndecidedError) as caught:
        run(kind(READ, [CUT], FAST_FAIL), Faulty())
    assert_undecided(caught.value, "on_event")
