"""The simulated fleets repeat exactly, and show what bench/overload.md says of them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parent.parent / "bench"
pytestmark = pytest.mark.thorough("simulates minutes of a thousand clients")


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("fleet")


def simulated(fleet: Any, policy: str, *case: Any, **options: Any) -> Any:
    policies = {each.name: each for each in fleet.POLICIES}
    return fleet.simulate(fleet.Case(*case, **options), policies[policy], 8)


def test_a_quick_run_has_each_case_by_each_policy_and_repeats(
    fleet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fleet.fleet(quick=True)
    assert len(found["outcomes"]) == len(fleet.cases(quick=True)) * len(fleet.POLICIES)
    assert len(list(fleet.lines(found))) == len(found["outcomes"])
    one = fleet.cases(quick=True)[:1]
    monkeypatch.setattr(fleet, "cases", lambda quick: one)
    assert fleet.fleet(quick=True) == fleet.fleet(quick=True) != fleet.fleet(quick=True, seed=9)


def test_the_default_gets_done_what_no_retries_do(fleet: Any) -> None:
    case = "steady", 8, ((10.0, 2.0),)
    without, ours = (simulated(fleet, name, *case) for name in (fleet.BASE, fleet.OURS))
    assert ours.goodput >= 0.95 * without.goodput


def test_rejections_at_random_become_no_errors(fleet: Any) -> None:
    case = "rejected", 8, ((60.0, 0.5),)
    assert simulated(fleet, fleet.OURS, *case, rejected=0.1).errors == 0
    assert simulated(fleet, fleet.BASE, *case, rejected=0.1).errors > 100


def test_an_election_is_no_error_and_lost_connections_are_held_back(fleet: Any) -> None:
    def both(*case: Any, **options: Any) -> list[Any]:
        names = fleet.OURS, "five retries, off"
        return [simulated(fleet, name, *case, **options) for name in names]

    ours, off = both("election", 8, ((20.0, 0.2),), election=(5.0, 8.0))
    assert (ours.errors, off.errors) == (0, 0)
    assert ours.attempts <= off.attempts
    ours, off = both("lost", 8, ((10.0, 1.2),), loses=True)
    assert ours.errors < 0.7 * off.errors
    assert ours.attempts < 0.7 * off.attempts
    ours, off = both("pulse", 8, ((4.0, 0.5), (10.0, 2.0), (6.0, 0.5)))
    assert ours.normal_after <= 1 < off.normal_after


@pytest.mark.parametrize("clients", [1, 8, 100, 1_000, 10_000])
@pytest.mark.parametrize("load", [2.0, 5.0])
def test_fleets_of_new_clients_recover_within_two_seconds(
    fleet: Any, clients: int, load: float
) -> None:
    case = "recovery", clients, ((fleet.NEW_S, 0.5), (5.0, load), (8.0, 0.5))
    ours = simulated(fleet, fleet.OURS, *case, rejection=0.0)
    assert ours.normal_after <= 2.0
    if clients == 10_000:
        assert simulated(fleet, "five retries, off", *case, rejection=0.0).normal_after > 2.0
