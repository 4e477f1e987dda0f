"""The phases of an operation add up to its time, whatever was noted of it."""

from __future__ import annotations

import math

from hypothesis import given, strategies as st

from pymongo_resilience.timeline import Phase, Run, Wait, phases

seconds = st.floats(0, 100)
waits = st.lists(st.builds(Wait, seconds, st.booleans(), seconds), max_size=3)
runs = st.lists(
    st.builds(Run, seconds, st.sampled_from([None, "db1:27017"]), waits, st.none(), seconds),
    min_size=1,
    max_size=5,
)


@given(runs=runs)
def test_the_phases_add_up(runs: list[Run]) -> None:
    in_order = sorted(runs, key=lambda run: run.ended)
    found = phases(in_order)
    whole = in_order[-1].ended * 1000
    assert math.isclose(sum(each.milliseconds for each in found), whole, abs_tol=1e-6)
    assert all(each.milliseconds > 0 for each in found)


def test_each_phase_has_its_place() -> None:
    found = phases([
        Run(0.5, "a:1", [Wait(0.1, True), Wait(0.2, False, 0.15)], "timed_out", 0.25),
        Run(1.0, None, [Wait(0.25, True)]),
    ])  # fmt: skip
    assert [(each.name, round(each.milliseconds)) for each in found] == [
        ("server_selection", 100), ("pool_wait", 50), ("connecting", 150), ("attempt", 200),
        ("backoff", 250), ("server_selection", 250),
    ]  # fmt: skip
    assert found[3] == Phase("attempt", found[3].milliseconds, "a:1", "timed_out")
    assert str(found[3]) == "attempt on a:1 200.0 ms (timed_out)"
