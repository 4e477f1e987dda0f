"""What takes the place of a method looks like it, and sees what it is called on."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import wrapt
from pymongo_resilience_instrumentation.interceptor import Entered, Interceptor, is_async

from pymongo_resilience.enabled_flag import EnabledFlag


class Noting(Interceptor):
    def __init__(self) -> None:
        self.given: list[Any] = []

    def enter(self, given: tuple[Any, ...], kwargs: dict[str, Any]) -> Entered:
        self.given.append((given, kwargs))
        return Entered(given[0])


class Driver:
    def find(self, name: str, *, limit: int = 0) -> Any:
        """Finds it."""
        return self, name, limit

    async def find_later(self, name: str, *, limit: int = 0) -> Any:
        return self, name, limit


def by_another(original: Any) -> Any:
    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    return method


def by_wrapt(original: Any) -> Any:
    return wrapt.FunctionWrapper(
        original, lambda wrapped, _, args, kwargs: wrapped(*args, **kwargs)
    )


@pytest.mark.parametrize("below", [None, by_another, by_wrapt])
@pytest.mark.parametrize("above", [None, by_another, by_wrapt])
@pytest.mark.parametrize("name", ["find", "find_later"])
def test_it_looks_like_the_method_and_sees_its_instance(
    name: str, above: Callable[[Any], Any] | None, below: Callable[[Any], Any] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    original = vars(Driver)[name]
    found = original if below is None else below(original)
    noting = Noting()
    wrapper = noting.wrapper(EnabledFlag(on=True), is_async(found))
    made = wrapt.FunctionWrapper(found, wrapper)
    monkeypatch.setattr(Driver, name, made if above is None else above(made))
    method: Any = getattr(Driver, name)
    assert inspect.signature(method) == inspect.signature(original)
    assert inspect.unwrap(method) is original
    assert (method.__name__, method.__doc__) == (original.__name__, original.__doc__)
    assert inspect.getsourcefile(inspect.unwrap(method)) == __file__
    if above is None:
        assert inspect.iscoroutinefunction(method) is (
            name == "find_later" and below is not by_another
        )
    assert is_async(method) is (name == "find_later")
    driver = Driver()
    for call in (getattr(driver, name), functools.partial(method, driver)):
        result = call("a", limit=1)
        if name == "find_later":
            result = asyncio.run(result)
        assert result == (driver, "a", 1)
    assert noting.given == [((driver, "a"), {"limit": 1})] * 2
