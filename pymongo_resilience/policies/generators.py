"""Generators on a stack: whose block is it that is entered there, and do they run?

A generator shares the context of its caller, which goes on between two of its steps, with whatever
context variables the generator has set. So a block that was entered on a generator's stack holds
only where that generator runs: not in the body of the loop over it, and not in tasks and threads
started inside, which cannot be distinguished from those that the body starts.

The generator of a ``contextmanager`` is not meant: what it enters belongs to the caller of the
``with``.
"""

from __future__ import annotations

import inspect
import sys
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from types import CodeType, FrameType

_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_AWAITS = inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE | inspect.CO_ASYNC_GENERATOR
frame_at = sys._getframe  # noqa: SLF001 - inspect.currentframe() is the same, for depth 0 alone


def generator_around(frame: FrameType | None) -> FrameType | None:
    """The generator on the stack that shares its context with whatever runs between its steps.

    A task has a context of its own: what drives its coroutines does not count.
    """
    awaited = False
    while frame is not None:
        flags = frame.f_code.co_flags
        if awaited and not flags & _AWAITS:
            return None
        if flags & _GENERATOR and not flags & inspect.CO_ITERABLE_COROUTINE:
            caller = frame.f_back
            if caller is None or caller.f_code not in _CONTEXT_MANAGERS:
                return frame
            frame = caller
        awaited = bool(frame.f_code.co_flags & _AWAITS)
        frame = frame.f_back
    return None


def is_running(generator: FrameType) -> bool:
    """Whether it is on the caller's stack: between two steps, and seen from other threads and
    tasks, it is not."""
    frame: FrameType | None = frame_at(1)
    while frame is not None and frame is not generator:
        frame = frame.f_back
    return frame is not None


def _codes_of_context_managers() -> frozenset[CodeType]:
    """Of the methods of ``contextlib`` that run the generators of context managers."""

    @contextmanager
    def manager() -> Iterator[None]:
        yield

    @asynccontextmanager
    async def async_manager() -> AsyncIterator[None]:
        yield

    sync, asynchronous = type(manager()), type(async_manager())
    return frozenset({
        sync.__enter__.__code__,
        sync.__exit__.__code__,
        asynchronous.__aenter__.__code__,
        asynchronous.__aexit__.__code__,
    })  # fmt: skip


_CONTEXT_MANAGERS = _codes_of_context_managers()
