"""What takes the place of the driver's methods and classes: wrapt's wrappers, and a subclass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import wrapt

Function = Callable[..., Any]
Wrapper = Callable[[Function, Any, tuple[Any, ...], dict[str, Any]], Any]
"""wrapt's: called with the bound original, what it is bound to, and its arguments."""


class Method(NamedTuple):
    """What runs in place of a method, written as a decorator."""

    around: Callable[[Function], Function]
    """From the original, which takes its instance first, to what takes its place."""

    def in_place_of(self, original: Any) -> Any:
        made = self.around(original if type(original) is FunctionType else _unbound(original))

        def wrapper(
            _wrapped: Function, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> Any:
            return made(*args, **kwargs) if instance is None else made(instance, *args, **kwargs)

        return wrapt.FunctionWrapper(original, wrapper)


class Wrapped(NamedTuple):
    """The same, written as wrapt has it, for what most operations pass."""

    wrapper: Wrapper

    def in_place_of(self, original: Any) -> Any:
        return wrapt.FunctionWrapper(original, self.wrapper)


class Subclass(NamedTuple):
    """What takes the place of a class, wherever it is looked up."""

    derive: Callable[[type], type]

    def in_place_of(self, original: Any) -> type | None:
        """None where another library has put something there that is no class."""
        return self.derive(original) if type(original) is type else None


def is_async(method: Any) -> bool:
    """Whether it has to be awaited; also of one that another library wrapped."""
    return inspect.iscoroutinefunction(inspect.unwrap(method))


def _unbound(original: Any) -> Function:
    """Another library's wrapper must see what it is called on."""

    def function(instance: Any, *args: Any, **kwargs: Any) -> Any:
        return original.__get__(instance, type(instance))(*args, **kwargs)

    return function
