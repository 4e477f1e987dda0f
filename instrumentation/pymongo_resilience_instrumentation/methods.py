"""Plain functions in place of methods that every operation passes.

A wrapper of wrapt's makes two objects for each call, which costs three times as much.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

Function = Callable[..., Any]
ANYTHING = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


class Method(NamedTuple):
    """What runs in place of a method."""

    around: Callable[[Function], Function]
    """From the original, which takes its instance first, to what takes its place."""

    def in_place_of(self, original: Any) -> Function | None:
        """None where the driver would call it with what the original takes, and this does not."""
        function = original if type(original) is FunctionType else _bound_by_itself(original)
        made = self.around(function)
        return functools.wraps(original)(made) if _takes_what(original, made) else None


def _takes_what(original: Any, made: Any) -> bool:
    code = made.__code__
    if code.co_flags & inspect.CO_VARARGS and code.co_flags & inspect.CO_VARKEYWORDS:
        return True
    parameters = inspect.signature(original).parameters
    if {each.kind for each in parameters.values()} >= ANYTHING:
        # Another library's: the driver calls it as it would call its own.
        return True
    _, *wanted = parameters
    taken = code.co_varnames[1 : code.co_argcount]
    # What begins with an underscore is given by its position, whatever it is called.
    return len(wanted) == len(taken) and all(
        mine == name or mine.startswith("_") for mine, name in zip(taken, wanted, strict=True)
    )


def _bound_by_itself(original: Any) -> Function:
    """Of another library's wrapper, which must see what it is called on."""

    def function(instance: Any, *args: Any, **kwargs: Any) -> Any:
        return original.__get__(instance, type(instance))(*args, **kwargs)

    return function
