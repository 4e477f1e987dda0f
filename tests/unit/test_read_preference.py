"""Which read preferences there can be, and how far secondaries may lag behind."""

from __future__ import annotations

import pytest
from support.engine.topologies import primary, replica_set, secondary, unknown

from pymongo_resilience.server_choice.eligibility import (
    IDLE_WRITE_PERIOD,
    PRIMARY,
    SMALLEST_MAXIMUM,
    Mode,
    ReadPreference,
    check_maximum,
    staleness,
)
from pymongo_resilience.server_choice.server_description import ServerDescription


def test_the_default_is_the_primary_without_more() -> None:
    assert PRIMARY.mode is Mode.PRIMARY
    assert PRIMARY.staleness_limit is None


def test_the_mode_primary_allows_nothing_else() -> None:
    with pytest.raises(ValueError, match="primary cannot have a maxStalenessSeconds"):
        ReadPreference(Mode.PRIMARY, max_staleness=120)
    with pytest.raises(ValueError, match="primary cannot have tag sets"):
        ReadPreference(Mode.PRIMARY, [{}, {"dc": "ny"}])


@pytest.mark.parametrize("nothing", [None, -1])
def test_what_is_no_maximum(nothing: int | None) -> None:
    assert ReadPreference(Mode.NEAREST, max_staleness=nothing).staleness_limit is None
    assert ReadPreference(Mode.PRIMARY, max_staleness=nothing) is not None


@pytest.mark.parametrize("wrong", [0, -2, float("nan")])
def test_a_maximum_is_a_positive_number(wrong: float) -> None:
    with pytest.raises(ValueError, match="positive number"):
        ReadPreference(Mode.SECONDARY, max_staleness=wrong)


def test_the_texts_own_constants() -> None:
    assert (IDLE_WRITE_PERIOD, SMALLEST_MAXIMUM) == (10, 90)


@pytest.mark.parametrize(("frequency", "smallest"), [(0.5, 90), (80, 90), (80.5, 90.5), (120, 130)])
def test_the_smallest_maximum(frequency: float, smallest: float) -> None:
    check_maximum(smallest, frequency)
    with pytest.raises(ValueError, match=f"at least {smallest:g}"):
        check_maximum(smallest - 0.25, frequency)


def test_a_secondary_beside_a_primary_is_measured_by_both_delays() -> None:
    late = secondary("b", last_update=110.0, last_write=40.0)
    topology = replica_set(primary("a", last_update=100.0, last_write=90.0), late)
    assert staleness(late, topology) == (110 - 40) - (100 - 90) + 10


def test_without_a_primary_the_newest_write_counts() -> None:
    late = secondary("b", last_update=500.0, last_write=40.0)
    others = [secondary("a", last_write=90.0), unknown("c", last_write=900.0), secondary("d")]
    topology = replica_set(late, *others, heartbeat_frequency=5.0)
    assert staleness(late, topology) == 90 - 40 + 5


def test_a_primary_is_never_stale() -> None:
    leader = primary("a", last_write=1.0)
    topology = replica_set(leader, secondary("b", last_write=500.0))
    assert staleness(leader, topology) == 0


@pytest.mark.parametrize("leader", [primary("a"), primary("a", last_write=1.0), secondary("a")])
def test_without_a_date_nothing_is_known(leader: ServerDescription) -> None:
    silent = secondary("b")
    assert staleness(silent, replica_set(leader, silent)) is None
