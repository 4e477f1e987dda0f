"""Replaces one function of the library by one that raises, wherever it is referenced.

The function's ``__code__`` is exchanged: imported names, bound methods, properties, wrappers that
are in place already, and closures that are still to be made all raise.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import sys
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pymongo_resilience_instrumentation

import pymongo_resilience

ROOTS = tuple(
    Path(str(package.__file__)).parent
    for package in (pymongo_resilience, pymongo_resilience_instrumentation)
)
TOOLS = ROOTS[1] / "tools"
CACHED = type(lru_cache(lambda: None))
KINDS = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


class InjectedError(NameError):
    """What a bug of ours raises: no code of the library expects it."""

    raised = 0

    def __init__(self) -> None:
        super().__init__("a bug of ours")
        type(self).raised += 1


def _template(header: str, footer: str = "") -> CodeType:
    """The code of a function that takes any arguments and raises an ``InjectedError``."""
    scope: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(f"{header} raising(*args, **kwargs):\n    raise 'a bug'\n{footer}", scope)  # noqa: S102 - this text
    code: CodeType = scope["raising"].__code__
    consts = tuple(InjectedError if each == "a bug" else each for each in code.co_consts)
    return code.replace(co_consts=consts)


TEMPLATES = {
    0: _template("def"),
    inspect.CO_COROUTINE: _template("async def"),
    inspect.CO_GENERATOR: _template("def", "    yield"),
    inspect.CO_ASYNC_GENERATOR: _template("async def", "    yield"),
}


def raising(code: CodeType) -> CodeType:
    """What takes the place of ``code``: of the same kind, with the same closure."""
    template = TEMPLATES[code.co_flags & KINDS]
    return template.replace(
        co_filename=code.co_filename,
        co_freevars=code.co_freevars,
        co_name=code.co_name,
        co_qualname=code.co_qualname,
    )


def name_of(code: CodeType) -> str:
    """``"retries.after_failure.Retries.plan"``; the engine's begin with ``engine.``."""
    path = Path(code.co_filename)
    root = next(each for each in ROOTS if path.is_relative_to(each))
    module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    prefix = "engine." if root == ROOTS[0] else ""
    return f"{prefix}{module}.{code.co_qualname.replace('.<locals>', '')}"


def is_core(code: CodeType) -> bool:
    """Whether it is a function of the library: no module, class body or comprehension."""
    path = Path(code.co_filename)
    return (
        any(path.is_relative_to(root) for root in ROOTS)
        and not path.is_relative_to(TOOLS)
        and bool(code.co_flags & inspect.CO_NEWLOCALS)
        and bool(code.co_flags & inspect.CO_OPTIMIZED)
        and (not code.co_name.startswith("<") or code.co_name == "<lambda>")
    )


@contextlib.contextmanager
def recording(called: set[CodeType]) -> Iterator[None]:
    """Add the functions of the library that are called in the block, in this thread and in those
    that it starts."""
    seen: set[CodeType] = set()

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            seen.add(frame.f_code)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # typeshed knows no None
        called.update(code for code in seen if is_core(code))


class Functions:
    """All functions of the library that exist, by their code. Made anew after ``instrument()``,
    which makes wrappers."""

    def __init__(self) -> None:
        gc.unfreeze()  # the tests' conftest has hidden all modules from gc.get_objects()
        self.by_code: dict[CodeType, list[FunctionType]] = defaultdict(list)
        self.parents: dict[CodeType, CodeType] = {}
        self.caches: dict[CodeType, list[Any]] = defaultdict(list)
        for each in gc.get_objects():
            if type(each) is FunctionType and is_core(each.__code__):
                self.by_code[each.__code__].append(each)
            elif type(each) is CACHED and type(each.__wrapped__) is FunctionType:
                self.caches[each.__wrapped__.__code__].append(each)
        for code in list(self.by_code):
            self._note_inner(code)

    def _note_inner(self, code: CodeType) -> None:
        for each in code.co_consts:
            if isinstance(each, CodeType) and each not in self.parents:
                self.parents[each] = code
                self._note_inner(each)

    def all_codes(self) -> set[CodeType]:
        return {code for code in {*self.by_code, *self.parents} if is_core(code)}

    @contextlib.contextmanager
    def broken(self, code: CodeType) -> Iterator[None]:
        """In the block, the function raises."""
        changed: list[tuple[FunctionType, CodeType]] = []
        old: CodeType | None = code
        new = raising(code)
        for cache in self.caches.get(code, ()):
            cache.cache_clear()
        while old is not None:
            for function in self.by_code.get(old, ()):
                changed.append((function, old))
                function.__code__ = new
            parent = self.parents.get(old)
            if parent is not None:
                consts = tuple(new if each is old else each for each in parent.co_consts)
                new = parent.replace(co_consts=consts)
            old = parent
        try:
            yield
        finally:
            for function, before in changed:
                function.__code__ = before


def in_order(codes: set[CodeType]) -> list[CodeType]:
    key: Callable[[CodeType], Any] = lambda code: (code.co_filename, code.co_firstlineno)  # noqa: E731
    return sorted(codes, key=key)
