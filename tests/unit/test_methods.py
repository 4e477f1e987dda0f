"""What takes the place of a method takes what the method takes, or stays away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pymongo_resilience_instrumentation.methods import Method


def exact(original: Callable[..., Any]) -> Callable[..., Any]:
    def method(instance: Any, cmd: Any, _by_position: Any, address: Any = None) -> Any:
        return original(instance, cmd, _by_position, address)

    return method


def any_at_all(original: Callable[..., Any]) -> Callable[..., Any]:
    def method(*given: Any, **named: Any) -> Any:
        return original(*given, **named)

    return method


def fits(self: Any, cmd: Any, unpack: Any, address: Any = None) -> Any:
    return cmd, unpack, address


def lacks_one(self: Any, cmd: Any, unpack: Any) -> Any:
    return cmd, unpack


def calls_it_otherwise(self: Any, command: Any, unpack: Any, address: Any = None) -> Any:
    return command, unpack, address


def test_one_that_fits_takes_its_place() -> None:
    made = Method(exact).in_place_of(fits)
    assert made is not None
    assert made(None, 1, 2, address=3) == (1, 2, 3)
    assert made.__name__ == "fits"


@pytest.mark.parametrize("original", [lacks_one, calls_it_otherwise])
def test_one_that_does_not_stays_away(original: Callable[..., Any]) -> None:
    assert Method(exact).in_place_of(original) is None


@pytest.mark.parametrize("original", [fits, lacks_one, calls_it_otherwise])
def test_one_that_hands_on_whatever_it_is_given_always_fits(
    original: Callable[..., Any],
) -> None:
    made = Method(any_at_all).in_place_of(original)
    assert made is not None
    assert made(None, 1, 2) == original(None, 1, 2)
