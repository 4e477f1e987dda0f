"""Scenarios: written or thrown from a seed, told, and played."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from pymongo_resilience_instrumentation.tools.testbed.fault_catalog import FAILOVER, NETWORK, SERVER
from support.alone import STANDALONE, STANDALONE_SERVER
from support.raw_client import ask

from pymongo_resilience.testbed import (
    CutAfter,
    CutBefore,
    Election,
    EmbeddedServer,
    Refuse,
    ReplicaSet,
    Reset,
    RollingRestart,
    Scenario,
    Standalone,
)

MENU = (*NETWORK, *FAILOVER, *SERVER)
PING = {"ping": 1}


def dice(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 (no secret)


def test_the_same_seed_throws_the_same_scenario_and_a_longer_one_goes_on() -> None:
    first = Scenario.random(7, 30.0, MENU).steps
    assert Scenario.random(8, 30.0, MENU).steps != first
    assert Scenario.random(7, 60.0, MENU).steps[: len(first)] == first


def test_a_thrown_scenario_keeps_its_time_and_its_pace() -> None:
    scenario = Scenario.random(1, 100.0, MENU, every=0.5)
    pauses = [pause for pause, _ in scenario.steps]
    assert 0.25 <= min(pauses) <= max(pauses) <= 0.75
    assert 90 < sum(pauses) < 100
    assert 150 < len(pauses) < 250
    assert {strike.kind.__name__ for _, strike in scenario.steps} == {
        recipe(dice(1)).kind.__name__ for recipe in MENU
    }


def test_a_scenario_tells_itself_line_by_line() -> None:
    scenario = (
        Scenario()
        .after(1.0, CutAfter, "update", times=3, on="primary")
        .after(2.0, Election, gap=12.0)
        .after(20.25, RollingRestart, on=2)
    )
    assert str(scenario) == (
        "   1.000 s  CutAfter('update', times=3) on primary\n"
        "   3.000 s  Election(gap=12.0) on all\n"
        "  23.250 s  RollingRestart() on 2"
    )
    scenario.after(1.0, Reset)
    assert len(scenario.steps) == 3, "it is not changed by going on"


def test_a_scenario_strikes_in_its_order_and_time_on_each_deployment(
    server: EmbeddedServer, replica_set: ReplicaSet
) -> None:
    scenario = (
        Scenario()
        .after(0.05, CutBefore, "ping", times=1, on=1)
        .after(0.05, Reset)
        .after(0, Refuse, 0.1, on="secondary")
    )
    with ReplicaSet(server.address, members=2) as other:
        started = time.monotonic()
        played = [each.play(scenario) for each in (replica_set, other)]
        assert replica_set.injected() == {}
        for each in played:
            each.result(5)
        # Until the last fault has run its course.
        assert 0.2 <= time.monotonic() - started < 5
        for deployment in (replica_set, other):
            with pytest.raises(ConnectionError):
                ask(deployment.members[1].address, PING)
            assert ask(deployment.members[1].address, PING)["ok"] == 1
        assert replica_set.injected() == {"CutBefore": 1, "Reset": 3, "Refuse": 2}
        assert other.injected() == {"CutBefore": 1, "Reset": 2, "Refuse": 1}


@pytest.mark.parametrize(
    "recipe", [*STANDALONE, *STANDALONE_SERVER], ids=lambda recipe: recipe.__name__
)
def test_every_recipe_for_a_standalone_strikes_it(server: EmbeddedServer, recipe: Any) -> None:
    with Standalone(server.address) as standalone:
        thrown = recipe(dice(1))
        assert standalone.targets(thrown.on) == standalone.members
        strikes(standalone, recipe)


@pytest.mark.parametrize("recipe", MENU, ids=lambda recipe: recipe.__name__)
def test_every_recipe_strikes_a_replica_set(replica_set: ReplicaSet, recipe: Any) -> None:
    strikes(replica_set, recipe)


def strikes(deployment: Any, recipe: Any) -> None:
    """And leaves it as it was."""
    for seed in range(3):
        thrown = recipe(dice(seed))
        deployment.inject(thrown.fault(), thrown.on)
        deployment.clear()
    assert all(ask(each.address, PING)["ok"] == 1 for each in deployment.members)
