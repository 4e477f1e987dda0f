"""One point in time, asked by everything that waits."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from support.engine.failing_work import START
from support.engine.fake_clock import FakeClock

from pymongo_resilience.clock import Deadline


def test_it_counts_from_now_on_its_clock() -> None:
    clock = FakeClock(START)
    deadline = Deadline.after(clock, 2.0)
    assert (deadline.expires_at, deadline.timeout) == (START + 2.0, 2.0)
    clock.advance(0.5)
    assert deadline.remaining() == 1.5
    assert deadline.timeout == 2.0, "the time that was given, not the time that is left"


def test_it_expires_at_its_instant_and_goes_below_zero() -> None:
    clock = FakeClock(START)
    deadline = Deadline.after(clock, 1.0)
    clock.advance(0.75)
    assert not deadline.expired()
    clock.advance(0.25)
    assert deadline.expired()
    assert deadline.remaining() == 0.0
    clock.advance(1.0)
    assert deadline.expired()
    assert deadline.remaining() == -1.0


@pytest.mark.parametrize(("delay", "fits"), [(0.0, True), (0.5, True), (1.0, False), (9.0, False)])
def test_it_allows_what_ends_before_it(delay: float, fits: bool) -> None:
    assert Deadline.after(FakeClock(START), 1.0).allows(delay) is fits


ticks = st.integers(0, 10_000).map(lambda n: n / 64)


@given(timeout=ticks, passed=ticks, delay=ticks)
def test_a_wait_it_allows_ends_before_it(timeout: float, passed: float, delay: float) -> None:
    clock = FakeClock(START)
    deadline = Deadline.after(clock, timeout)
    clock.advance(passed)
    allowed = deadline.allows(delay)
    clock.sleep(delay)
    assert allowed is not deadline.expired()
