"""Round-trip times: the weighted average, the minimum of the last ten, and what is no sample."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from pymongo_resilience.rtt import ALPHA, SAMPLES, RoundTripTime

samples = st.lists(st.floats(0, 1e6), min_size=2, max_size=40)


def filled(values: list[float]) -> RoundTripTime:
    rtt = RoundTripTime()
    for value in values:
        rtt.add(value)
    return rtt


def test_unknown_at_first() -> None:
    rtt = RoundTripTime()
    assert rtt.average is None
    assert rtt.minimum is None


def test_the_texts_own_constants() -> None:
    assert (ALPHA, SAMPLES) == (0.2, 10)


def test_the_first_sample_is_the_average() -> None:
    assert filled([0.25]).average == 0.25


def test_the_average_moves_by_a_fifth() -> None:
    assert filled([1.0, 2.0]).average == pytest.approx(1.2)
    assert filled([1.0, 2.0, 0.0]).average == pytest.approx(0.96)


def test_the_minimum_is_of_the_last_ten() -> None:
    slower = [0.5] * 9
    assert filled([0.1, *slower]).minimum == 0.1
    assert filled([0.1, *slower, 0.4]).minimum == 0.4


def test_zero_is_a_sample() -> None:
    assert filled([0.5, 0.0]).minimum == 0.0


@pytest.mark.parametrize("nothing", [-0.001, float("nan"), float("-inf")])
def test_what_is_no_measurement_changes_nothing(nothing: float) -> None:
    rtt = filled([0.5, 0.25])
    average = rtt.average
    rtt.add(nothing)
    assert (rtt.average, rtt.minimum) == (average, 0.25)
    untouched = filled([nothing])
    assert (untouched.average, untouched.minimum) == (None, None)


def test_one_sample_makes_no_minimum() -> None:
    assert filled([0.5]).minimum is None
    assert filled([0.5, 0.25]).minimum == 0.25


def test_reset_forgets_everything() -> None:
    rtt = filled([0.1] * 10)
    rtt.reset()
    assert (rtt.average, rtt.minimum) == (None, None)
    for value in (0.5, 0.75):
        rtt.add(value)
    assert rtt.minimum == 0.5, "samples from before the reset"
    assert rtt.average == pytest.approx(0.55)


@given(values=samples)
def test_minimum_and_average_lie_among_the_samples(values: list[float]) -> None:
    rtt = filled(values)
    assert rtt.minimum == (min(values[-10:]) if len(values) > 1 else None)
    assert rtt.average is not None
    assert min(values) - 1e-6 <= rtt.average <= max(values) + 1e-6
