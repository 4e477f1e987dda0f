"""override(): a policy for the operations of a block of code, and which blocks the caller is in.

A block is a node that knows the block around it and whether it has ended; a context variable has
the innermost. Ended blocks are skipped, so they may be left in any order, in another context or by
another thread, and a task that was started inside keeps a block no longer than it lives.

A generator shares the context of its caller, which goes on between two of its steps with whatever
context variables the generator has set. So a block that a generator holds open holds only while
that generator is on the caller's stack: not in the body of the loop over it, where a write would
count as declared idempotent, and not in tasks and threads started inside, which cannot be
distinguished from those that the body starts. Nothing but the stack shows the difference.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import ContextDecorator, suppress
from contextvars import ContextVar
from traceback import walk_stack
from types import FrameType
from typing import Any, TypeVar, Unpack, cast

from .policy import NOTHING, Policy, PolicyFields

_F = TypeVar("_F", bound="Callable[..., Any]")
_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def _stack() -> Iterator[FrameType]:
    return (frame for frame, _ in walk_stack(inspect.currentframe()))


def _generator_around() -> FrameType | None:
    """The innermost generator on the stack.

    What is awaited is a coroutine, however it was made; and what the generator of a
    ``contextmanager`` enters belongs to the caller of the ``with``.
    """
    for frame in _stack():
        flags = frame.f_code.co_flags
        if flags & _GENERATOR and not flags & inspect.CO_ITERABLE_COROUTINE:
            caller = frame.f_back
            if caller is None or caller.f_globals.get("__name__") != "contextlib":
                return frame
    return None


class Block:
    """One entered ``override``. Ended by one thread, read by any."""

    __slots__ = ("_merged", "ended", "generator", "outer", "policy")

    def __init__(self, policy: Policy, outer: Block | None, generator: FrameType | None) -> None:
        self.policy = policy
        """What the block itself names."""
        self.outer = outer
        self.generator = generator
        """The frame of the generator that holds it open."""
        self.ended = False
        self._merged: tuple[Policy, Policy] | None = None

    def end(self) -> None:
        self.ended = True
        self.generator = None

    def holds(self) -> bool:
        """Whether the caller is inside."""
        generator = self.generator
        return not self.ended and (generator is None or any(f is generator for f in _stack()))

    def within(self, around: Policy) -> Policy:
        """Its policy, where ``around`` holds outside; the same object for the same ``around``."""
        merged = self._merged
        if merged is None or merged[0] is not around:
            merged = self._merged = around, self.policy.within(around)
        return merged[1]


_innermost: ContextVar[Block | None] = ContextVar("pymongo_resilience_policy", default=None)


innermost: Callable[[], Block | None] = _innermost.get
"""The block entered last in the caller's context, whether or not it holds; None where nothing can
hold. Called for every operation."""


def current() -> Policy:
    """The policy that the blocks around the caller make together."""
    block = _innermost.get()
    if block is None:
        return NOTHING
    if block.ended:
        block = next(_chain(block), None)
        _innermost.set(block)
    return _policy_of(block)


def timed() -> Block | None:
    """The innermost block around the caller that names a timeout itself."""
    named = (each for each in _chain(_innermost.get()) if each.policy.timeout_ms is not None)
    return next((each for each in named if each.holds()), None)


def _chain(block: Block | None) -> Iterator[Block]:
    """Those that have not ended, from this one outward; ended ones are taken out of the chain."""
    while block is not None:
        while block.outer is not None and block.outer.ended:
            block.outer = block.outer.outer
        if not block.ended:
            yield block
        block = block.outer


def _policy_of(block: Block | None) -> Policy:
    policy = NOTHING
    for each in reversed([each for each in _chain(block) if each.holds()]):
        policy = each.within(policy)
    return policy


class override(ContextDecorator):  # noqa: N801 - reads as a statement, like contextlib's own
    """``with override(idempotent=True):`` — a policy for the operations inside.

    Works as ``with``, as ``async with``, and as a decorator: of functions, coroutine functions,
    generator functions (for each step) and asynchronous generator functions (for each step). Blocks
    nest: the inner one wins where both say something, and of two timeouts the shorter.

    It holds until the block is left, however and wherever that happens, for tasks and threads that
    inherit the context as well. A block inside of a generator holds for what the generator runs,
    not for the body of the loop over it, and not for tasks and threads started inside; in the
    generator of a ``contextlib.contextmanager`` it holds for the body of the ``with``.

    Thread- and task-safe, also where several enter one instance, or where one does so again.
    """

    def __init__(self, **fields: Unpack[PolicyFields]) -> None:
        self._policy = Policy(**fields)
        self._entered: list[Block] = []
        """Those that have not ended."""

    def __enter__(self) -> Policy:
        block = Block(self._policy, next(_chain(_innermost.get()), None), _generator_around())
        try:
            self._entered.append(block)
            _innermost.set(block)
            return _policy_of(block)
        except BaseException:
            block.end()
            raise

    def __exit__(self, *raised: object) -> None:
        # The next caller skips the block: to set a context variable is not safe in a finalizer.
        try:
            block = self._leaving()
            block.end()
        except BaseException:
            # A signal's handler may raise: end them all rather than leave one in force.
            for each in self._entered:
                each.end()
            raise
        with suppress(ValueError):
            self._entered.remove(block)

    async def __aenter__(self) -> Policy:
        return self.__enter__()

    async def __aexit__(self, *raised: object) -> None:
        self.__exit__()

    def __call__(self, function: _F) -> _F:
        # An object with __call__ is what that is.
        called = type(function).__call__
        for is_one, around in (
            (inspect.iscoroutinefunction, self._around_coroutine),
            (inspect.isgeneratorfunction, self._around_generator),
            (inspect.isasyncgenfunction, self._around_async_generator),
        ):
            if is_one(function) or is_one(called):
                return cast("_F", functools.wraps(function)(around(function)))
        return super().__call__(function)

    def _leaving(self) -> Block:
        """Which of the blocks that this object has entered the caller leaves: the one of the same
        generator, then the innermost of the same context, then the newest."""
        entered = self._entered.copy()
        if len(entered) == 1:
            return entered[0]
        generator = _generator_around()
        around = [block for block in _chain(_innermost.get()) if block in entered]
        for block in (*around, *reversed(entered)):
            if block.generator is generator:
                return block
        return around[0] if around else entered[-1]

    def _around_coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def inner(*args: Any, **kwargs: Any) -> Any:
            with self._recreate_cm():
                return await function(*args, **kwargs)

        return inner

    def _around_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            with self._recreate_cm():
                return (yield from function(*args, **kwargs))

        return inner

    def _around_async_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def inner(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            with self._recreate_cm():
                steps = function(*args, **kwargs)
                step = steps.asend(None)
                while True:
                    try:
                        made = await step
                    except StopAsyncIteration:
                        return
                    try:
                        sent = yield made
                    except GeneratorExit:
                        await steps.aclose()
                        raise
                    except BaseException as error:  # noqa: BLE001 - the generator's to handle
                        step = steps.athrow(error)
                    else:
                        step = steps.asend(sent)

        return inner

    def _recreate_cm(self) -> override:
        # A decorated function may run in several threads at once: each call has its own block.
        block = override()
        block._policy = self._policy
        return block
