"""What takes the place of a method takes what the method takes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from pymongo_resilience_instrumentation.interception.methods import Method


def exact(original: Callable[..., Any]) -> Callable[..., Any]:
    def method(instance: Any, cmd: Any, unpack: Any, address: Any = None) -> Any:
        return original(instance, cmd, unpack, address)

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
    assert made(None, 1, unpack=2, address=3) == (1, 2, 3)
    assert made.__name__ == "fits"


@pytest.mark.parametrize("original", [lacks_one, calls_it_otherwise])
def test_one_that_lacks_what_it_needs_stays_away(original: Callable[..., Any]) -> None:
    assert Method(exact).in_place_of(original) is None


@pytest.mark.parametrize("original", [fits, lacks_one, calls_it_otherwise])
def test_one_that_hands_on_whatever_it_is_given_always_fits(
    original: Callable[..., Any],
) -> None:
    made = Method(any_at_all).in_place_of(original)
    assert made is not None
    assert made(None, 1, 2) == original(None, 1, 2)


def takes_more(self: Any, cmd: Any, unpack: Any, address: Any = None, more: Any = 0) -> Any:
    return cmd, unpack, address, more


def takes_more_first(self: Any, more: Any, cmd: Any, unpack: Any, address: Any = None) -> Any:
    return cmd, unpack, address, more


async def waits_more(self: Any, cmd: Any, unpack: Any, address: Any = None, more: Any = 0) -> Any:
    return cmd, unpack, address, more


@pytest.mark.parametrize(
    ("original", "given", "named", "result"),
    [
        (takes_more, (1, 2), {}, (1, 2, None, 0)),
        (takes_more, (1, 2, 3, 4), {}, (1, 2, 3, 4)),
        (takes_more, (), {"unpack": 2, "more": 4, "cmd": 1}, (1, 2, None, 4)),
        (takes_more_first, (4, 1, 2), {}, (1, 2, None, 4)),
        (takes_more_first, (4,), {"cmd": 1, "unpack": 2}, (1, 2, None, 4)),
    ],
)
def test_what_it_does_not_know_is_passed_on(
    original: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any], result: Any
) -> None:
    made = Method(exact).in_place_of(original)
    assert made is not None
    assert made(None, *given, **named) == result
    with pytest.raises(TypeError):
        made(None, *given, nobody_knows=1, **named)


def test_what_a_coroutine_does_not_know_is_passed_on_too() -> None:
    made = Method(exact).in_place_of(waits_more)
    assert inspect.iscoroutinefunction(made)
    assert asyncio.run(made(None, 1, 2, more=4)) == (1, 2, None, 4)
