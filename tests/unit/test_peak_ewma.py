"""The arithmetic of latencies that rise at once and fall by decay."""

from __future__ import annotations

import math

import pytest
from support.engine.topologies import secondary

from pymongo_resilience.peak_ewma import DECAY, PeakEwma
from pymongo_resilience.testing import FakeClock
from pymongo_resilience.two_choices import choose


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


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
    return latencies.loads([address], {})[address]


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
    assert latencies.loads("a", {"a": 3, "b": 9}) == {"a": pytest.approx(1.0)}


def test_one_operation_finds_out_about_a_server_that_never_answered(latencies: PeakEwma) -> None:
    assert latencies.loads("ab", {"b": 1}) == {"a": 0.0, "b": math.inf}


def test_a_server_that_left_is_forgotten(latencies: PeakEwma, clock: FakeClock) -> None:
    for address in "ab":
        took(latencies, clock, 0.5, address)
    latencies.keep({"b", "c"})
    assert latencies.loads("ab", {}) == {"a": 0.0, "b": pytest.approx(0.5, rel=0.2)}


def test_a_slow_server_gets_traffic_back(latencies: PeakEwma, clock: FakeClock) -> None:
    servers = [secondary(name) for name in "ab"]

    def chosen() -> str:
        return choose(servers, latencies.loads("ab", {}), lambda: 0.0).address

    took(latencies, clock, 0.5, "a")
    took(latencies, clock, 0.001, "b")
    assert chosen() == "b"
    at = clock.now()
    while chosen() == "b":
        took(latencies, clock, 0.001, "b")
        clock.advance(0.999)
    assert clock.now() - at == pytest.approx(DECAY * math.log(500), abs=2.0)
