"""The arithmetic of latencies that rise at once and fall by decay."""

from __future__ import annotations

import heapq
import itertools
import math
import random

import pytest
from support.engine.fake_clock import FakeClock

from pymongo_resilience.server_choice.server_load import DECAY, PeakEwma, choose


@pytest.fixture
def latencies(clock: FakeClock) -> PeakEwma:
    return PeakEwma(clock)


def took(
    latencies: PeakEwma,
    clock: FakeClock,
    seconds: float,
    address: str = "a",
    succeeded: bool = True,
) -> None:
    began = latencies.begin()
    clock.advance(seconds)
    latencies.end(address, began, succeeded=succeeded)


def latency(latencies: PeakEwma, address: str = "a") -> float:
    return math.sqrt(latencies.loads([address], {})[address])


def test_it_rises_at_once(latencies: PeakEwma, clock: FakeClock) -> None:
    took(latencies, clock, 0.001)
    assert latency(latencies) == pytest.approx(0.001)
    took(latencies, clock, 0.5)
    assert latency(latencies) == pytest.approx(0.5)


def test_it_falls_by_decay(latencies: PeakEwma, clock: FakeClock) -> None:
    took(latencies, clock, 0.5)
    clock.advance(DECAY)
    assert latency(latencies) == pytest.approx(0.5 / math.e)
    clock.advance(DECAY)
    assert latency(latencies) == pytest.approx(0.5 / math.e**2)


def test_a_shorter_one_weighs_what_has_decayed(latencies: PeakEwma, clock: FakeClock) -> None:
    took(latencies, clock, 0.5)
    clock.advance(DECAY - 0.1)
    took(latencies, clock, 0.1)
    assert latency(latencies) == pytest.approx(0.5 / math.e + 0.1 * (1 - 1 / math.e))


def test_a_failure_raises_it_and_never_lowers_it(latencies: PeakEwma, clock: FakeClock) -> None:
    took(latencies, clock, 0.001, succeeded=False)
    assert latency(latencies) == 0, "as one that never answered"
    took(latencies, clock, 0.1)
    took(latencies, clock, 0.5, succeeded=False)
    assert latency(latencies) == pytest.approx(0.5)
    clock.advance(1.0)
    before = latency(latencies)
    took(latencies, clock, 0.0, succeeded=False)
    assert latency(latencies) == before


def test_the_load_counts_one_operation_more(latencies: PeakEwma, clock: FakeClock) -> None:
    took(latencies, clock, 0.25)
    assert latencies.loads("a", {"a": 3, "b": 9}) == {"a": pytest.approx(0.25)}


def test_one_operation_finds_out_about_a_server_that_never_answered(latencies: PeakEwma) -> None:
    assert latencies.loads("ab", {"b": 1}) == {"a": 0.0, "b": math.inf}


def test_a_server_that_left_is_forgotten(latencies: PeakEwma, clock: FakeClock) -> None:
    for address in "ab":
        took(latencies, clock, 0.5, address)
    latencies.keep({"b", "c"})
    assert latencies.loads("ab", {}) == {"a": 0.0, "b": pytest.approx(0.25, rel=0.4)}


def test_a_slow_server_gets_traffic_back(latencies: PeakEwma, clock: FakeClock) -> None:

    def chosen() -> str:
        return choose([*"ab"], latencies.loads("ab", {}), lambda: 0.0)

    took(latencies, clock, 0.5, "a")
    took(latencies, clock, 0.001, "b")
    assert chosen() == "b"
    at = clock.now()
    while chosen() == "b":
        took(latencies, clock, 0.001, "b")
        clock.advance(0.999)
    assert clock.now() - at == pytest.approx(DECAY * math.log(500), abs=2.0)


def part_of_a_slow_server(clock: FakeClock, *, tasks: int, pause: float, busy: float) -> float:
    """Of the reads from two seconds after it has become slow, for ten seconds.

    ``busy``: seconds that the client's one thread takes for each half of a read, one after the
    other, so that what waits there is part of each latency.
    """
    latencies, dice = PeakEwma(clock), random.Random(0)  # noqa: S311 - no secrets
    servers, began = ["a", "b", "c"], clock.now()
    in_flight, sent = dict.fromkeys("abc", 0), dict.fromkeys("abc", 0)
    order, free_at = itertools.count(tasks), began
    due = [(began + dice.random() * 0.1, task, "", 0.0) for task in range(tasks)]
    heapq.heapify(due)
    while due[0][0] < began + 12:
        at, _, server, selected = heapq.heappop(due)
        free_at = max(at, free_at) + busy
        clock.advance(free_at - clock.now())
        if server:
            in_flight[server] -= 1
            latencies.end(server, selected, succeeded=True)
            then, server = free_at + (dice.expovariate(1 / pause) if pause else 0), ""
        else:
            loads = latencies.loads("abc", in_flight)
            server = choose(servers, loads, dice.random)
            in_flight[server] += 1
            sent[server] += free_at > began + 2
            selected, then = latencies.begin(), free_at + (0.5 if server == "a" else 0.001)
        heapq.heappush(due, (then, next(order), server, selected))
    return sent["a"] / sum(sent.values())


@pytest.mark.parametrize("tasks", [8, 100])
@pytest.mark.parametrize("pause", [0.0, 0.02, 0.25])
@pytest.mark.parametrize("busy", [0.0005, 0.002])
def test_a_slow_server_gets_two_reads_in_a_hundred_at_most(
    clock: FakeClock, tasks: int, pause: float, busy: float
) -> None:
    """However busy the client itself is: at 2 ms a half, each read waits for 400 ms."""
    assert part_of_a_slow_server(clock, tasks=tasks, pause=pause, busy=busy) <= 0.02
