"""Of two servers picked at random, the less loaded one is chosen."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

import pytest

from pymongo_resilience.server_choice.server_load import choose

if TYPE_CHECKING:
    from collections.abc import Callable

SERVERS = ["a", "b", "c"]


def thrown(*numbers: float) -> Callable[[], float]:
    """Dice that show these numbers, and no more."""
    left = iter(numbers)
    return lambda: next(left)


def test_the_only_server_is_taken_without_dice() -> None:
    assert choose(SERVERS[:1], {}, thrown()) == "a"


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
    assert choose(SERVERS, {**busy, first: 1}, thrown(*dice)) == first
    assert choose(SERVERS, {**busy, second: 1}, thrown(*dice)) == second
    assert choose(SERVERS, busy, thrown(*dice)) == first, "a tie"


def test_every_pair_is_as_likely_as_any_other() -> None:
    throws = [(one / 6, other / 6) for one in range(6) for other in range(6)]
    pairs = []
    for dice in throws:
        first = choose(SERVERS, {}, thrown(*dice))
        idle = {first: 1}
        pairs.append((first, choose(SERVERS, idle, thrown(*dice))))
    assert {pair: pairs.count(pair) for pair in pairs} == dict.fromkeys(permutations("abc", 2), 6)
