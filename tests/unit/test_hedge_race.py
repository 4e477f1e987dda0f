"""A hedged read's two tries, step by step: what no two servers do at the right moment."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any

import pytest
from pymongo_resilience_instrumentation.call import ENDED
from pymongo_resilience_instrumentation.features.hedged_reads.hedge_budget import (
    READS_PER_HEDGE,
    RESERVED_HEDGES,
)
from pymongo_resilience_instrumentation.features.hedged_reads.hedge_registry import ClientHedges
from pymongo_resilience_instrumentation.features.hedged_reads.race import Race, Try
from pymongo_resilience_instrumentation.operation import Operation
from pymongo_resilience_instrumentation.selection.client_limits import ClientLimits
from support.engine.fake_clock import FakeClock

from pymongo_resilience.events import Broadcast

DELAY = 0.25


class Signal:
    """Each wait of the caller's is answered by the next function of the test's."""

    def __init__(self) -> None:
        self.waits: list[float | None] = []
        self.answers: list[Callable[[], bool]] = []

    def set(self) -> None: ...

    def wait(self, seconds: float | None) -> bool:
        self.waits.append(seconds)
        return self.answers[len(self.waits) - 1]()


class Workers:
    """Keeps what it is to do."""

    new_signal = Signal

    def __init__(self) -> None:
        self.begun: list[Callable[[], object]] = []
        self.cancelled = False

    def start(self, function: Callable[[], object]) -> bool:
        self.begun.append(function)
        return True

    def cancel(self) -> None:
        self.cancelled = True


class Read:
    """Each try has its name for an answer."""

    def __init__(self) -> None:
        self.adopted: list[str] = []
        self.discarded: list[str] = []

    def send(self, tried: Try) -> str:
        return tried.name

    def adopt(self, tried: Try) -> None:
        self.adopted.append(tried.name)

    def discard(self, tried: Try) -> Callable[[], None]:
        return lambda: self.discarded.append(tried.name)


@pytest.fixture
def hedges(monkeypatch: pytest.MonkeyPatch) -> ClientHedges:
    monkeypatch.setattr(ClientHedges, "may_go_elsewhere", lambda *_: True)
    clock = FakeClock()
    made = ClientHedges(clock, ClientLimits(None, clock, Broadcast([]), None))
    for _ in range(READS_PER_HEDGE * (1 + RESERVED_HEDGES)):
        made.budget.read()
    return made


def race(hedges: ClientHedges, workers: Workers, read: Read) -> tuple[Race, Signal]:
    runtime: Any = SimpleNamespace(executor=SimpleNamespace(listener=None), clients=None)
    made = Race(
        runtime,
        hedges,
        Operation(ENDED._replace(name="find", given_target=("a", "b"))),
        read,
        workers,
        delay=DELAY,
    )
    return made, made._decided


def strike() -> bool:
    raise KeyboardInterrupt


def in_a_worker(function: Callable[[], object]) -> None:
    copy_context().run(function)


def test_what_has_no_hedge_asks_after_twice_the_time_and_so_on(hedges: ClientHedges) -> None:
    """The first try has no server yet, so there is no other one."""
    made, signal = race(hedges, Workers(), Read())
    signal.answers = [*[lambda: False] * 4, strike]
    with pytest.raises(KeyboardInterrupt):
        made.run()
    assert signal.waits == [DELAY, DELAY, 2 * DELAY, 4 * DELAY, 8 * DELAY]
    assert hedges.budget.sent == 0


def test_a_first_try_that_has_failed_is_not_hedged_any_more(hedges: ClientHedges) -> None:
    """It is repeated by the rules: a third command would be one too many."""
    workers = Workers()
    made, signal = race(hedges, workers, Read())
    loop: Any = SimpleNamespace(server=None, server_address=lambda: "a:1")
    made._first.loop = loop
    signal.answers = [lambda: made._first.gives_up(loop, OSError()), strike]
    with pytest.raises(KeyboardInterrupt):
        made.run()
    assert signal.waits == [DELAY, None]
    assert len(workers.begun) == 1
    assert hedges.budget.sent == 0


def test_an_answer_that_comes_as_the_caller_is_struck_is_discarded(hedges: ClientHedges) -> None:
    workers, read = Workers(), Read()
    made, signal = race(hedges, workers, read)
    signal.answers = [lambda: in_a_worker(workers.begun.pop()) or strike()]
    with pytest.raises(KeyboardInterrupt):
        made.run()
    in_a_worker(workers.begun.pop())
    assert read.discarded == ["first"]
    assert read.adopted == []
    assert workers.cancelled


def test_an_answer_that_comes_after_the_caller_was_struck_is_discarded(
    hedges: ClientHedges,
) -> None:
    workers, read = Workers(), Read()
    made, signal = race(hedges, workers, read)
    signal.answers = [strike]
    with pytest.raises(KeyboardInterrupt):
        made.run()
    in_a_worker(workers.begun.pop())
    assert read.discarded == ["first"]
    assert workers.begun == []
