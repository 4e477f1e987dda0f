"""How often a lost server is checked, over simulated time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import example, given, strategies as st
from pymongo_resilience_instrumentation.recovery.woken_monitors import CheckIntervals, HurriedChecks

LEAST = 0.5
"""Seconds: the specification's minHeartbeatFrequencyMS."""
HEARTBEAT = 10.0
"""Seconds: the default of heartbeatFrequencyMS."""


def checks(seconds: float, *, refused: bool, reached: bool = True) -> list[float]:
    """When a server is checked that is away for so long, the check that failed first included."""
    intervals, now, made = CheckIntervals(), 0.0, []
    if reached:
        intervals.note(now, known=True, refused=False)
    while now < seconds:
        made.append(now)
        intervals.note(now, known=False, refused=refused)
        now += intervals.seconds(LEAST)
    return [*made, now]


def test_the_second_check_is_made_at_once_and_the_interval_doubles() -> None:
    made = checks(30, refused=False)
    gaps = [later - earlier for earlier, later in itertools.pairwise(made)]
    assert gaps[0] < 0.013
    assert all(later <= earlier * 2 * 1.25 / 0.75 for earlier, later in itertools.pairwise(gaps))
    assert gaps[-1] == pytest.approx(LEAST)
    assert max(gaps) <= LEAST + 1e-9


@pytest.mark.parametrize("seconds", [0.1, 1.0, 5.0, 60.0])
def test_of_an_address_that_refuses_it_is_late_by_a_part_of_the_outage(seconds: float) -> None:
    late = checks(seconds, refused=True)[-1] - seconds
    assert late <= min(max(0.03, 0.04 * seconds) * 1.25, LEAST)


@given(st.lists(st.booleans(), min_size=1, max_size=20), st.sampled_from([1.0, 10.0, 60.0]))
@example([False], 600.0)
def test_hellos_are_as_few_where_only_some_connections_are_refused(
    pattern: Sequence[bool], seconds: float
) -> None:
    """As by a balancer in front of several processes, of which one is up and says nothing."""
    intervals, now, hellos = CheckIntervals(), 0.0, 0
    intervals.note(now, known=True, refused=False)
    for refused in itertools.cycle(pattern):
        if now >= seconds:
            break
        hellos += not refused
        intervals.note(now, known=False, refused=refused)
        now += intervals.seconds(LEAST)
    assert hellos <= seconds / LEAST + 10


@pytest.mark.parametrize(("seconds", "most"), [(1.0, 45), (10.0, 120), (60.0, 230)])
def test_an_address_that_refuses_is_not_asked_without_end(seconds: float, most: int) -> None:
    assert len(checks(seconds, refused=True)) <= most


def test_one_that_was_never_reached_is_checked_as_the_specification_has_it() -> None:
    assert len(checks(10, refused=True, reached=False)) == 21


def test_each_outage_begins_anew() -> None:
    intervals = CheckIntervals()
    for _ in range(3):
        intervals.note(0, known=True, refused=False)
        intervals.note(0, known=False, refused=False)
        assert intervals.seconds(LEAST) < 0.013
        for _ in range(2000):  # without end, and without an overflow
            intervals.note(0, known=False, refused=False)
        assert intervals.seconds(LEAST) == LEAST


def test_requests_hurry_ten_checks_at_once_and_then_as_many_as_the_specification_makes() -> None:
    hurried = HurriedChecks()
    asked = [tick / 1000 for tick in range(100_000)]
    made = [now for now in asked if hurried.allows(now, LEAST)]
    assert made[:10] == [number / 1000 for number in range(10)]
    assert len(made) <= 10 + 100 / LEAST
    assert max(later - earlier for earlier, later in itertools.pairwise(made)) <= LEAST + 0.002


def test_after_a_quiet_time_they_are_hurried_at_once_again() -> None:
    hurried = HurriedChecks()
    for start in (0.0, 60.0):
        assert [hurried.allows(start, LEAST) for _ in range(11)] == [True] * 10 + [False]


def unrequested(seconds: float, *, reached: bool = True, rejected: bool = False) -> list[float]:
    """When a server is checked that no operation waits for."""
    intervals, now, made = CheckIntervals(), 0.0, []
    if reached:
        intervals.note(now, known=True)
    while now < seconds:
        made.append(now)
        intervals.note(now, known=False, rejected=rejected)
        now += intervals.unrequested_seconds(LEAST, HEARTBEAT)
    return [*made, now]


def test_a_lost_server_that_no_operation_waits_for_is_checked_at_growing_intervals() -> None:
    made = unrequested(60)
    assert made[:2] == [0, 0], "pymongo repeats the first check that fails"
    gaps = [later - earlier for earlier, later in itertools.pairwise(made[1:])]
    assert 0.75 * LEAST <= gaps[0] <= 1.25 * LEAST
    assert max(gaps) == pytest.approx(HEARTBEAT)
    assert sum(now < HEARTBEAT for now in made) <= 10


@pytest.mark.parametrize("seconds", [0.1, 1.0, 4.0, 15.0])
def test_it_is_found_late_by_a_part_of_the_outage(seconds: float) -> None:
    late = unrequested(seconds)[-1] - seconds
    assert late <= min(max(LEAST, 0.5 * seconds) * 1.25, HEARTBEAT)


@pytest.mark.parametrize("options", [{"reached": False}, {"rejected": True}])
def test_one_that_is_overloaded_or_was_never_reached_is_checked_at_pymongos_intervals(
    options: dict[str, bool],
) -> None:
    assert unrequested(30, **options) == pytest.approx([0, 10, 20, 30])
