"""Plain functions in place of methods that every operation passes.

A wrapper of wrapt's makes two objects for each call, which costs three times as much.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Method:
    """What runs in place of a method."""

    around: Callable[[Function], Function]
    """From the original, which takes its instance first, to what takes its place."""

    def in_place_of(self, original: Any) -> Function:
        function = original if type(original) is FunctionType else _bound_by_itself(original)
        return functools.wraps(original)(self.around(function))


def _bound_by_itself(original: Any) -> Function:
    """Of another library's wrapper, which must see what it is called on."""

    def function(instance: Any, *args: Any, **kwargs: Any) -> Any:
        return original.__get__(instance, type(instance))(*args, **kwargs)

    return function
