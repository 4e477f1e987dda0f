"""What users' tests get from us: the clock turned by hand and the switch."""

from __future__ import annotations

import asyncio

import pytest

from pymongo_resilience import is_instrumented
from pymongo_resilience.clock import Clock, MonotonicClock
from pymongo_resilience.testing import FakeClock, set_active


def test_the_fake_clock_moves_only_by_hand_and_by_waiting() -> None:
    clock = FakeClock(10.0)
    assert (clock.now(), clock.now()) == (10.0, 10.0)
    clock.sleep(0.5)
    asyncio.run(clock.sleep_async(0.25))
    clock.advance(4.0)
    assert clock.now() == 14.75
    assert clock.sleeps == [0.5, 0.25], "an advance is no wait"


def test_the_real_clock_never_goes_back() -> None:
    clock: Clock = MonotonicClock()
    before = clock.now()
    clock.sleep(0)
    asyncio.run(clock.sleep_async(0))
    assert clock.now() >= before


def test_set_active_is_undone_at_the_end_of_its_block() -> None:
    before = is_instrumented()
    with set_active(True):
        assert is_instrumented()
        with set_active(False):
            assert not is_instrumented()
        assert is_instrumented()
    assert is_instrumented() is before


def test_set_active_is_undone_after_an_error() -> None:
    before = is_instrumented()
    with pytest.raises(LookupError), set_active(not before):
        raise LookupError
    assert is_instrumented() is before
