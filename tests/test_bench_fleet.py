"""The simulated fleets repeat exactly, and show what the documents say of them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("fleet")


@pytest.fixture
def policies(fleet: Any) -> dict[str, Any]:
    return {each.name: each for each in fleet.POLICIES}


def test_a_quick_run_has_each_case_by_each_policy(fleet: Any, policies: dict[str, Any]) -> None:
    found = fleet.fleet(quick=True)
    assert len(found["outcomes"]) == len(fleet.cases(quick=True)) * len(policies)
    assert len(list(fleet.lines(found))) == len(found["outcomes"])


def test_the_same_seed_repeats_exactly(fleet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = fleet.cases(quick=True)[:1]
    monkeypatch.setattr(fleet, "cases", lambda quick: one)
    found = fleet.fleet(quick=True)
    assert fleet.fleet(quick=True) == found
    assert fleet.fleet(quick=True, seed=9) != found


@pytest.mark.parametrize("load", [1.0, 2.0, 5.0])
def test_the_default_gets_done_what_no_retries_do(
    fleet: Any, policies: dict[str, Any], load: float
) -> None:
    case = fleet.Case("steady", 8, ((10.0, load),))
    without, ours = (fleet.simulate(case, policies[name], 8) for name in (fleet.BASE, fleet.OURS))
    assert ours.goodput >= 0.95 * without.goodput


def test_warmed_up_it_gets_done_as_much(fleet: Any, policies: dict[str, Any]) -> None:
    case = fleet.Case("steady", 8, ((30.0, 2.0),))
    without, ours = (fleet.simulate(case, policies[name], 8) for name in (fleet.BASE, fleet.OURS))
    assert ours.goodput >= 0.98 * without.goodput


@pytest.mark.parametrize("rejected", [0.05, 0.1])
@pytest.mark.parametrize("clients", [1, 8, 100])
def test_rejections_at_random_become_no_errors(
    fleet: Any, policies: dict[str, Any], clients: int, rejected: float
) -> None:
    case = fleet.Case("rejected", clients, ((60.0, 0.5),), rejected=rejected)
    assert fleet.simulate(case, policies[fleet.OURS], 8).errors == 0
    if clients == 8:
        assert fleet.simulate(case, policies[fleet.SHEDDING], 8).errors == 0
    assert fleet.simulate(case, policies[fleet.BASE], 8).errors > 100


def test_a_burst_of_clients_with_one_operation_each_has_hardly_an_error(
    fleet: Any, policies: dict[str, Any]
) -> None:
    [case] = [each for each in fleet.cases() if each.name == "burst" and each.clients == 512]
    without, ours = (fleet.simulate(case, policies[name], 8) for name in (fleet.BASE, fleet.OURS))
    assert ours.errors <= 0.01 * without.errors


@pytest.mark.parametrize("clients", [8, 100])
def test_an_election_is_no_error_within_a_deadline(
    fleet: Any, policies: dict[str, Any], clients: int
) -> None:
    case = fleet.Case("election", clients, ((20.0, 0.2),), election=(5.0, 8.0))
    found = fleet.simulate(case, policies[fleet.OURS], 8)
    without = fleet.simulate(case, policies["five retries, off"], 8)
    assert (found.errors, without.errors) == (0, 0)
    assert found.attempts <= without.attempts


@pytest.mark.parametrize("clients", [8, 100])
def test_lost_connections_above_the_capacity_are_held_back(
    fleet: Any, policies: dict[str, Any], clients: int
) -> None:
    case = fleet.Case("lost", clients, ((10.0, 1.2),), loses=True)
    found = fleet.simulate(case, policies[fleet.OURS], 8)
    without = fleet.simulate(case, policies["five retries, off"], 8)
    assert found.errors < 0.7 * without.errors
    assert found.attempts < 0.7 * without.attempts


def test_after_a_pulse_all_is_normal_within_a_second(fleet: Any, policies: dict[str, Any]) -> None:
    case = fleet.Case("pulse", 8, ((4.0, 0.5), (10.0, 2.0), (6.0, 0.5)))
    assert fleet.simulate(case, policies[fleet.OURS], 8).normal_after <= 1
    assert fleet.simulate(case, policies["five retries, off"], 8).normal_after > 1


@pytest.mark.parametrize("clients", [1, 8, 100])
@pytest.mark.parametrize("load", [2.0, 5.0, 10.0])
def test_with_load_shedding_the_server_hardly_has_to_reject(
    fleet: Any, policies: dict[str, Any], clients: int, load: float
) -> None:
    case = fleet.Case("steady", clients, ((10.0, load),))
    ours, without = (
        fleet.simulate(case, policies[name], 8) for name in (fleet.SHEDDING, fleet.BASE)
    )
    assert ours.goodput >= max(0.85, without.goodput)


@pytest.mark.parametrize(("high", "least"), [(0.4, 0.985), (0.45, 0.97), (0.5, 0.92)])
def test_what_has_high_priority_succeeds_at_twice_the_capacity(
    fleet: Any, policies: dict[str, Any], high: float, least: float
) -> None:
    """At a half it is all that the server can do, and 98 % with nothing of low priority at all."""
    case = fleet.Case("priorities", 8, ((10.0, 2.0),), high=high)
    found = fleet.simulate(case, policies[fleet.SHEDDING], 8)
    assert found.high >= least
    assert fleet.simulate(case, policies[fleet.OURS], 8).high < 0.5


def test_load_shedding_serves_fleets_of_quiet_clients(fleet: Any, policies: dict[str, Any]) -> None:
    case = fleet.Case("steady", 1000, ((10.0, 2.0),))
    assert fleet.simulate(case, policies[fleet.SHEDDING], 8).goodput > 0.75
    assert fleet.simulate(case, policies[fleet.OURS], 8).goodput < 0.3


@pytest.mark.parametrize("clients", [1, 8])
def test_low_priority_alone_is_served_as_any_other(
    fleet: Any, policies: dict[str, Any], clients: int
) -> None:
    shedding = policies[fleet.SHEDDING]
    random = fleet.Case("rejected", clients, ((60.0, 0.5),), rejected=0.05, high=0.0)
    assert fleet.simulate(random, shedding, 8).errors <= 3
    steady = fleet.Case("steady", clients, ((30.0, 2.0),), high=0.0)
    assert fleet.simulate(steady, shedding, 8).goodput >= 0.9
