"""One server is chosen, or it is said why none can be."""

from __future__ import annotations

import copy
import pickle
from itertools import permutations
from typing import TYPE_CHECKING

import pytest
from support.engine.topologies import primary, reading, replica_set, secondary, unknown

from pymongo_resilience.eligibility import Criteria
from pymongo_resilience.read_preference import Mode
from pymongo_resilience.selection import ServerSelectionError, choose, select
from pymongo_resilience.server_description import TopologyDescription, TopologyType

if TYPE_CHECKING:
    from collections.abc import Callable

SERVERS = [secondary(name) for name in "abc"]


def thrown(*numbers: float) -> Callable[[], float]:
    """Dice that show these numbers, and no more."""
    left = iter(numbers)
    return lambda: next(left)


def test_the_only_server_is_taken_without_dice() -> None:
    assert select(replica_set(primary("a")), Criteria(), {}, thrown()).address == "a"


@pytest.mark.parametrize(
    ("dice", "picked"),
    [
        ((0.0, 0.0), ("a", "b")),
        ((0.5, 0.5), ("b", "c")),
        ((0.999, 0.999), ("c", "b")),
        ((0.999, 0.0), ("c", "a")),
    ],
)
def test_the_dice_pick_two_different_servers(
    dice: tuple[float, float], picked: tuple[str, str]
) -> None:
    busy = dict.fromkeys("abc", 5)
    first, second = picked
    assert choose(SERVERS, {**busy, first: 1}, thrown(*dice)).address == first
    assert choose(SERVERS, {**busy, second: 1}, thrown(*dice)).address == second
    assert choose(SERVERS, busy, thrown(*dice)).address == first, "a tie"


def test_every_pair_is_as_likely_as_any_other() -> None:
    throws = [(one / 6, other / 6) for one in range(6) for other in range(6)]
    pairs = []
    for dice in throws:
        first = choose(SERVERS, {}, thrown(*dice)).address
        idle = {first: 1}
        pairs.append((first, choose(SERVERS, idle, thrown(*dice)).address))
    assert {pair: pairs.count(pair) for pair in pairs} == dict.fromkeys(permutations("abc", 2), 6)


def test_an_error_names_every_server_and_why() -> None:
    topology = replica_set(
        primary("db1:27017"), unknown("db2:27017", error="connection refused", error_age=2.1)
    )
    with pytest.raises(ServerSelectionError) as raised:
        select(topology, reading(Mode.SECONDARY), {}, thrown())
    assert str(raised.value) == (
        "no server is suitable for a read with mode secondary: "
        "db1:27017 primary, excluded: mode secondary; "
        "db2:27017 unknown: connection refused 2.1 s ago"
    )
    assert [each.address for each in raised.value.servers] == ["db1:27017", "db2:27017"]


def test_an_error_where_no_server_is_known() -> None:
    with pytest.raises(ServerSelectionError, match="for a write: no server is known"):
        select(TopologyDescription(TopologyType.SHARDED, ()), Criteria(write=True), {}, thrown())


def pickled(error: ServerSelectionError) -> ServerSelectionError:
    again: ServerSelectionError = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    return again


@pytest.mark.parametrize("copied", [copy.copy, pickled])
def test_an_error_can_be_copied(
    copied: Callable[[ServerSelectionError], ServerSelectionError],
) -> None:
    with pytest.raises(ServerSelectionError) as raised:
        select(replica_set(secondary("a")), Criteria(), {}, thrown())
    again = copied(raised.value)
    assert (str(again), again.servers) == (str(raised.value), raised.value.servers)
