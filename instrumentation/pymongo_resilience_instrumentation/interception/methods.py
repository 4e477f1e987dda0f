"""Plain functions in place of the driver's methods, and a class in place of one of its classes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, NamedTuple

Function = Callable[..., Any]
ANYTHING = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


class Method(NamedTuple):
    """What runs in place of a method."""

    around: Callable[[Function], Function]
    """From the original, which takes its instance first, to what takes its place."""

    def in_place_of(self, original: Any) -> Function | None:
        """Takes what the original takes, and passes on what it does not know: a newer driver may
        have more parameters. None where the original lacks one that this needs."""
        function = original if type(original) is FunctionType else _bound_by_itself(original)
        made = self.around(function)
        signature = inspect.signature(original)
        taken = _taken(made)
        if taken is None or _takes_anything(signature):
            return functools.wraps(original)(made)
        first, *known = signature.parameters
        if known == taken:
            return functools.wraps(original)(made)
        if not set(taken) <= set(known):
            return None
        return functools.wraps(original)(self._of_more(function, signature, [first, *taken]))

    def _of_more(
        self, function: Function, signature: inspect.Signature, taken: Sequence[str]
    ) -> Function:
        def split(given: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Function, list[Any]]:
            bound = signature.bind(*given, **kwargs)
            unknown = {name: each for name, each in bound.arguments.items() if name not in taken}
            bound.apply_defaults()
            call = functools.partial(_by_name, function, taken[1:], unknown)
            functools.update_wrapper(call, function)
            return self.around(call), [bound.arguments[name] for name in taken]

        def method(*given: Any, **kwargs: Any) -> Any:
            around, mine = split(given, kwargs)
            return around(*mine)

        async def async_method(*given: Any, **kwargs: Any) -> Any:
            around, mine = split(given, kwargs)
            return await around(*mine)

        return async_method if inspect.iscoroutinefunction(function) else method


def _by_name(
    function: Function, names: Sequence[str], more: dict[str, Any], instance: Any, *args: Any
) -> Any:
    return function(instance, **dict(zip(names, args, strict=True)), **more)


class Subclass(NamedTuple):
    """What takes the place of a class, wherever it is looked up."""

    derive: Callable[[type], type]

    def in_place_of(self, original: Any) -> type | None:
        """None where another library has put something there that is no class."""
        return self.derive(original) if type(original) is type else None


def is_async(method: Any) -> bool:
    """Whether it has to be awaited; also of one that another library wrapped."""
    return inspect.iscoroutinefunction(inspect.unwrap(method))


def _taken(made: Function) -> list[str] | None:
    """The names of what it takes after its instance; None where it hands on anything."""
    code = made.__code__
    if code.co_flags & inspect.CO_VARARGS and code.co_flags & inspect.CO_VARKEYWORDS:
        return None
    return list(code.co_varnames[1 : code.co_argcount])


def _takes_anything(signature: inspect.Signature) -> bool:
    """Another library's: the driver calls it as it would call its own."""
    return {each.kind for each in signature.parameters.values()} >= ANYTHING


def _bound_by_itself(original: Any) -> Function:
    """Of another library's wrapper, which must see what it is called on."""

    def function(instance: Any, *args: Any, **kwargs: Any) -> Any:
        return original.__get__(instance, type(instance))(*args, **kwargs)

    return function
