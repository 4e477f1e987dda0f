"""A hedged read's two tries, step by step: what no two servers do at the right moment."""

from __future__ import annotations

import threading
from contextvars import copy_context
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from pymongo_resilience_instrumentation.calls import Call
from pymongo_resilience_instrumentation.features.hedged_reads.hedge_registry import ClientHedges
from pymongo_resilience_instrumentation.features.hedged_reads.race import Race, Try
from support.engine.fake_clock import FakeClock

from pymongo_resilience.server_choice.hedging import READS_PER_HEDGE, RESERVED_HEDGES
from pymongo_resilience.steps import Steps, run

DELAY = 0.25


class Workers:
    """Keeps what it is to do."""

    new_signal = threading.Event

    def __init__(self) -> None:
        self.begun: list[Steps] = []
        self.cancelled = False

    def start(self, steps: Steps) -> bool:
        self.begun.append(steps)
        return True

    def cancel(self) -> None:
        self.cancelled = True


class Read:
    """Each try has its name for an answer."""

    def __init__(self) -> None:
        self.adopted: list[str] = []
        self.discarded: list[str] = []

    def send(self, tried: Try) -> Steps:
        return (yield lambda: tried.name)

    def adopt(self, tried: Try) -> None:
        self.adopted.append(tried.name)

    def discard(self, tried: Try) -> Steps:
        yield lambda: self.discarded.append(tried.name)


@pytest.fixture
def hedges(monkeypatch: pytest.MonkeyPatch) -> ClientHedges:
    monkeypatch.setattr(ClientHedges, "may_go_elsewhere", lambda *_: True)
    made = ClientHedges(FakeClock(), None)
    for _ in range(READS_PER_HEDGE * (1 + RESERVED_HEDGES)):
        made.budget.read()
    return made


def race(hedges: ClientHedges, workers: Workers, read: Read) -> Race:
    runtime: Any = SimpleNamespace(executor=SimpleNamespace(listener=None), clients=None)
    made: Any = workers
    return Race(runtime, hedges, Call(None, "find", ("a", "b")), read, made)


def in_a_worker(steps: Steps) -> None:
    copy_context().run(run, steps)


def waited(step: Any) -> float | None:
    """Seconds of a wait for an answer; None where it has no end."""
    return step.args[0] if isinstance(step, partial) else None


def test_what_has_no_hedge_asks_after_twice_the_time_and_so_on(hedges: ClientHedges) -> None:
    """The first try has no server yet, so there is no other one."""
    steps = race(hedges, Workers(), Read()).run(DELAY)
    asked = [waited(next(steps)), *(waited(steps.send(False)) for _ in range(4))]
    assert asked == [DELAY, DELAY, 2 * DELAY, 4 * DELAY, 8 * DELAY]
    assert hedges.budget.sent == 0
    steps.close()


def test_a_first_try_that_has_failed_is_not_hedged_any_more(
    hedges: ClientHedges, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is repeated by the rules: a third command would be one too many."""
    workers = Workers()
    made = race(hedges, workers, Read())
    monkeypatch.setattr(
        "pymongo_resilience_instrumentation.driver.retry_loop.server_address", lambda _: "a:1"
    )
    made._first.loop = object()
    steps = made.run(DELAY)
    next(steps)
    assert made._first.ends(None, OSError()) is False
    assert waited(steps.send(False)) is None
    assert len(workers.begun) == 1
    assert hedges.budget.sent == 0
    steps.close()


def test_an_answer_that_comes_as_the_caller_is_struck_is_discarded(hedges: ClientHedges) -> None:
    workers, read = Workers(), Read()
    steps = race(hedges, workers, read).run(DELAY)
    next(steps)
    in_a_worker(workers.begun.pop())
    with pytest.raises(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt())
    in_a_worker(workers.begun.pop())
    assert read.discarded == ["first"]
    assert read.adopted == []
    assert workers.cancelled


def test_an_answer_that_comes_after_the_caller_was_struck_is_discarded(
    hedges: ClientHedges,
) -> None:
    workers, read = Workers(), Read()
    steps = race(hedges, workers, read).run(DELAY)
    next(steps)
    with pytest.raises(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt())
    in_a_worker(workers.begun.pop())
    assert read.discarded == ["first"]
    assert workers.begun == []
