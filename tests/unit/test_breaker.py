"""Each transition of a circuit breaker, and who may share one."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from pymongo_resilience_instrumentation.selection.client_limits import ClientBreakers
from support.engine.fake_clock import FakeClock

from pymongo_resilience import breakers
from pymongo_resilience.breakers import RECHECK, CircuitBreaker, Evidence, Permit, Snapshot, State
from pymongo_resilience.config import Config
from pymongo_resilience.events import Broadcast

PROMPT = 1e-6
"""Seconds between two switches of threads: races that there are, are met."""
CONFIG = Config(circuit_breaker_minimum_calls=4, circuit_breaker_open_s=8.0)
"""The other two have their defaults: half of the calls, in ten seconds."""
PROBES = 2
OUTCOMES = {"+": Evidence.HEALTHY, "-": Evidence.UNHEALTHY, ".": Evidence.NONE}


@pytest.fixture
def breaker(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> CircuitBreaker:
    monkeypatch.setattr(breakers, "PROBES", PROBES)
    return CircuitBreaker(CONFIG, clock)


@pytest.fixture
def restless_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(PROMPT)
    yield
    sys.setswitchinterval(before)


def permit_of(breaker: CircuitBreaker) -> Permit:
    assert breaker.next_probe_in() == 0
    permit = breaker.try_acquire()
    assert isinstance(permit, Permit)
    return permit


def refusal_of(breaker: CircuitBreaker) -> float:
    assert breaker.next_probe_in() > 0
    refusal = breaker.try_acquire()
    assert isinstance(refusal, float)
    assert refusal == breaker.next_probe_in() > 0
    return refusal


def call(breaker: CircuitBreaker, outcomes: str) -> None:
    """``+`` succeeds, ``-`` fails, and of ``.`` nothing is known."""
    for outcome in outcomes:
        permit = permit_of(breaker)
        permit.report(OUTCOMES[outcome])


def opened(breaker: CircuitBreaker) -> CircuitBreaker:
    call(breaker, "----")
    assert breaker.snapshot().state is State.OPEN
    return breaker


def half_opened(breaker: CircuitBreaker, clock: FakeClock) -> CircuitBreaker:
    opened(breaker)
    clock.advance(8)
    assert breaker.snapshot().state is State.HALF_OPEN
    return breaker


@pytest.mark.parametrize("outcomes", ["----", "++--", "+-+-", "+.+.--", "+++-++----"])
def test_closed_to_open(breaker: CircuitBreaker, clock: FakeClock, outcomes: str) -> None:
    call(breaker, outcomes[:-1])
    assert breaker.snapshot().state is State.CLOSED
    call(breaker, outcomes[-1])
    assert breaker.snapshot().state is State.OPEN
    assert refusal_of(breaker) == 8
    clock.advance(7.5)
    assert refusal_of(breaker) == 0.5
    clock.advance(0.5)
    assert breaker.snapshot().state is State.HALF_OPEN


@pytest.mark.parametrize(
    "outcomes",
    [
        pytest.param("---", id="too few calls"),
        pytest.param("+++--", id="too few failures"),
        pytest.param("---+", id="a success is no reason to open"),
        pytest.param("---.....", id="what says nothing is no call"),
        pytest.param("", id="no call"),
    ],
)
def test_it_stays_closed(breaker: CircuitBreaker, outcomes: str) -> None:
    call(breaker, outcomes)
    assert breaker.snapshot().state is State.CLOSED
    assert breaker.next_probe_in() == 0


def test_what_is_older_than_the_window_does_not_count(
    breaker: CircuitBreaker, clock: FakeClock
) -> None:
    call(breaker, "---")
    clock.advance(9.5)
    assert breaker.snapshot().failures == 3
    clock.advance(0.5)
    assert breaker.snapshot() == Snapshot(State.CLOSED, 0, 0, 0.0)
    call(breaker, "-")
    assert breaker.snapshot().state is State.CLOSED


def test_calls_of_before_count_no_more_once_it_is_open(
    breaker: CircuitBreaker, clock: FakeClock
) -> None:
    slow = permit_of(breaker)
    opened(breaker)
    clock.advance(4)
    slow.report(Evidence.UNHEALTHY)
    assert refusal_of(breaker) == 4, "it is not open for longer"
    clock.advance(4)
    slow.report(Evidence.HEALTHY)
    slow.report(Evidence.UNHEALTHY)
    assert breaker.snapshot().state is State.HALF_OPEN, "they are no probes"


def test_half_open_lets_probes_through_and_no_more(
    breaker: CircuitBreaker, clock: FakeClock
) -> None:
    half_opened(breaker, clock)
    assert breaker.next_probe_in() == 0
    assert breaker.next_probe_in() == 0, "asking takes none"
    call(breaker, "." * 100)
    one = permit_of(breaker)
    permit_of(breaker)
    assert refusal_of(breaker) == RECHECK
    one.report(Evidence.NONE)
    permit_of(breaker)


def test_half_open_to_closed(breaker: CircuitBreaker, clock: FakeClock) -> None:
    half_opened(breaker, clock)
    call(breaker, "+")
    assert breaker.snapshot().state is State.HALF_OPEN, "one probe is still to come"
    permit = permit_of(breaker)
    assert refusal_of(breaker) > 0, "the first has served"
    permit.report(Evidence.HEALTHY)
    assert breaker.snapshot() == Snapshot(State.CLOSED, 0, 0, 0.0)


def test_half_open_to_open(breaker: CircuitBreaker, clock: FakeClock) -> None:
    half_opened(breaker, clock)
    one, other = permit_of(breaker), permit_of(breaker)
    one.report(Evidence.HEALTHY)
    clock.advance(1)
    other.report(Evidence.UNHEALTHY)
    assert breaker.snapshot().state is State.OPEN
    assert refusal_of(breaker) == 8, "the whole time again"


def test_a_probe_that_is_never_heard_of_is_replaced(
    breaker: CircuitBreaker, clock: FakeClock
) -> None:
    half_opened(breaker, clock)
    permit_of(breaker)
    clock.advance(0.95)
    permit_of(breaker)
    clock.advance(7)
    assert refusal_of(breaker) == pytest.approx(0.05), "sooner than it would be asked again"
    clock.advance(0.05)
    permit_of(breaker)
    refusal_of(breaker)


@pytest.mark.parametrize(
    ("said", "state"),
    [
        (Evidence.HEALTHY, State.CLOSED),
        (Evidence.UNHEALTHY, State.OPEN),
        (Evidence.NONE, State.HALF_OPEN),
    ],
)
def test_a_probe_that_was_replaced_is_heard_all_the_same(
    breaker: CircuitBreaker, clock: FakeClock, said: Evidence, state: State
) -> None:
    half_opened(breaker, clock)
    hung = permit_of(breaker)
    clock.advance(8)
    call(breaker, "+")
    hung.report(said)
    assert breaker.snapshot().state is state


def test_while_it_is_not_closed_it_shows_the_calls_that_opened_it(
    breaker: CircuitBreaker, clock: FakeClock
) -> None:
    call(breaker, "+---")
    assert breaker.snapshot() == Snapshot(State.OPEN, 4, 3, 8.0)
    clock.advance(8)
    assert breaker.snapshot() == Snapshot(State.HALF_OPEN, 4, 3, 0.0)
    call(breaker, "-")
    assert breaker.snapshot() == Snapshot(State.OPEN, 4, 3, 8.0)


def test_each_change_that_a_call_makes_is_reported_once(clock: FakeClock) -> None:
    changes = []

    def changed(snapshot: Snapshot) -> None:
        with ThreadPoolExecutor(1) as pool:  # another thread gets the lock meanwhile
            assert pool.submit(breaker.snapshot).result(10) == snapshot
        changes.append(snapshot)

    breaker = CircuitBreaker(CONFIG, clock, changed)
    call(breaker, "+++")
    assert changes == []
    call(breaker, "---")
    assert changes == [Snapshot(State.OPEN, 6, 3, 8.0)]
    clock.advance(8)
    breaker.snapshot()
    call(breaker, "." + "+" * (breakers.PROBES - 1))
    assert len(changes) == 1, "it becomes half-open by itself"
    call(breaker, "+")
    assert changes[1:] == [Snapshot(State.CLOSED, 0, 0, 0.0)]


class LetsOthersIn:
    """Options that are read in the middle of a step, and give every other thread its turn."""

    circuit_breaker_window_s = CONFIG.circuit_breaker_window_s

    @property
    def circuit_breaker_open_s(self) -> float:
        time.sleep(0.001)
        return CONFIG.circuit_breaker_open_s


def test_threads_get_as_many_probes_as_there_are_and_no_more(
    breaker: CircuitBreaker, clock: FakeClock
) -> None:
    half_opened(breaker, clock)
    breaker.config = LetsOthersIn()  # type: ignore[assignment]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda _: breaker.try_acquire(), range(8)))
    assert sum(isinstance(each, Permit) for each in got) == PROBES


@pytest.mark.usefixtures("restless_threads")
def test_threads_lose_no_count(clock: FakeClock) -> None:
    breaker = CircuitBreaker(Config(circuit_breaker_minimum_calls=100_000), clock)

    def work(_: int) -> None:
        for _ in range(500):
            permit_of(breaker).report(Evidence.HEALTHY)
            permit_of(breaker).report(Evidence.UNHEALTHY)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert breaker.snapshot() == Snapshot(State.CLOSED, 8000, 4000, 0.0)


@pytest.mark.parametrize("half_open", [False, True])
def test_afresh_in_a_forked_child(
    breaker: CircuitBreaker, clock: FakeClock, half_open: bool
) -> None:
    permit = permit_of(half_opened(breaker, clock) if half_open else breaker)
    inherited = breaker.lock
    with inherited:  # as a thread of the parent's may have it for good
        breaker.reset_after_fork()
        assert breaker.lock is not inherited
    permit.report(Evidence.UNHEALTHY)
    permit.report(Evidence.HEALTHY)
    assert breaker.snapshot() == Snapshot(State.CLOSED, 0, 0, 0.0)


@pytest.mark.usefixtures("restless_threads")
def test_threads_that_call_a_server_first_share_its_breaker(clock: FakeClock) -> None:
    breakers = ClientBreakers(lambda: None, Config(), clock, Broadcast([]))
    together = threading.Barrier(8)

    def ask(_: int) -> list[CircuitBreaker]:
        asked = []
        for server in range(50):
            together.wait(10)
            asked.append(breakers["host", server])
        return asked

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))
    assert all(answer == answers[0] for answer in answers)
    assert len(set(answers[0])) == 50
