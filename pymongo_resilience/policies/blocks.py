"""override(): a policy for the operations of a block of code, and which blocks the caller is in.

A block is a node that knows the block around it and whether it has ended; a context variable has
the innermost. Ended blocks are skipped, so they may be left in any order, in another context or by
another thread, and a task that was started inside keeps a block no longer than it lives.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import ContextDecorator, suppress
from contextvars import ContextVar
from typing import Any, TypeVar, Unpack, cast

from pymongo_resilience.closing import keep_variables

from .policy import EMPTY_POLICY, Policy, PolicyFields, policy_from_keywords

_F = TypeVar("_F", bound="Callable[..., Any]")


class Block:
    """One that is entered. Ended by one thread, read by any."""

    __slots__ = ("_merged", "ended", "expires_at", "is_detached", "outer", "policy")

    def __init__(
        self, policy: Policy, *, expires_at: float | None = None, is_detached: bool = False
    ) -> None:
        self.policy = policy
        """What the block itself names."""
        self.expires_at = expires_at
        """When the operations inside end at the latest, on the monotonic clock."""
        self.is_detached = is_detached
        """The ends of the blocks around it do not apply inside."""
        self.outer = next(_chain(_innermost.get()), None)
        self.ended = False
        self._merged: tuple[Policy, Policy] | None = None

    def __enter__(self) -> Policy:
        try:
            _innermost.set(self)
            return _policy_of(self)
        except BaseException:
            self.ended = True
            raise

    def __exit__(self, *raised: object) -> None:
        # The next caller skips the block: to set a context variable is not safe in a finalizer.
        self.ended = True

    def within(self, around: Policy) -> Policy:
        """Its policy, where ``around`` holds outside; the same object for the same ``around``."""
        merged = self._merged
        if merged is None or merged[0] is not around:
            merged = self._merged = around, self.policy.within(around)
        return merged[1]


_innermost: ContextVar[Block | None] = ContextVar("pymongo_resilience_policy", default=None)
innermost: Callable[[], Block | None] = _innermost.get
"""The block entered last in the caller's context, whether or not it has ended; None where nothing
can hold. Called for every operation."""


def current() -> Policy:
    """The policy that the blocks around the caller make together."""
    block = _innermost.get()
    if block is None:
        return EMPTY_POLICY
    if block.ended:
        block = next(_chain(block), None)
        _innermost.set(block)
    return _policy_of(block)


def timed() -> Block | None:
    """The innermost block around the caller that names a timeout itself."""
    blocks = _chain(_innermost.get())
    return next((each for each in blocks if each.policy.timeout_ms is not None), None)


def expires_at() -> float | None:
    """Return when the operations of the caller have to end: the earliest end that a block around
    the caller names."""
    earliest: float | None = None
    for block in _chain(_innermost.get()):
        if block.expires_at is not None and (earliest is None or block.expires_at < earliest):
            earliest = block.expires_at
        if block.is_detached:
            break
    return earliest


def _chain(block: Block | None) -> Iterator[Block]:
    """Those that have not ended, from this one outward; ended ones are taken out of the chain."""
    while block is not None:
        while block.outer is not None and block.outer.ended:
            block.outer = block.outer.outer
        if not block.ended:
            yield block
        block = block.outer


def _policy_of(block: Block | None) -> Policy:
    policy = EMPTY_POLICY
    for each in reversed(list(_chain(block))):
        policy = each.within(policy)
    return policy


class override(ContextDecorator):  # noqa: N801 - reads as a statement, like contextlib's own
    """``with override(idempotent=True):`` — a policy for the operations inside.

    Works as ``with``, as ``async with``, and as a decorator: of functions and coroutine functions,
    and of generator functions, asynchronous ones included (for each step, and while the generator
    is closed). Blocks nest: the inner one wins where both say something, and of two timeouts the
    shorter.

    It holds until the block is left, however and wherever that happens, for tasks and threads that
    inherit the context as well. A ``with`` inside of a generator that yields holds for the body of
    the loop over it, too, as every context variable does: decorate the generator function instead.

    Thread- and task-safe, also where several enter one instance, or where one does so again.
    """

    def __init__(self, **fields: Unpack[PolicyFields]) -> None:
        self._policy = policy_from_keywords("override()", fields)
        self._entered: list[Block] = []
        """Those that have not ended."""

    def __enter__(self) -> Policy:
        block = Block(self._policy)
        self._entered.append(block)
        return block.__enter__()

    def __exit__(self, *raised: object) -> None:
        try:
            # The innermost of this context; where it is left in another one, the newest.
            around = (each for each in _chain(_innermost.get()) if each in self._entered)
            block = next(around, None) or self._entered[-1]
            block.ended = True
        except BaseException:
            # A signal's handler may raise: end them all rather than leave one in force.
            for each in self._entered:
                each.ended = True
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

    def _recreate_cm(self) -> Any:
        # A decorated function may run in several threads at once: each call has its own block.
        return Block(self._policy)

    def _around_coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def inner(*args: Any, **kwargs: Any) -> Any:
            with Block(self._policy):
                return await function(*args, **kwargs)

        return inner

    def _around_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            steps = function(*args, **kwargs)
            step, given = steps.send, None
            while True:
                try:
                    with Block(self._policy):
                        made = step(given)
                except StopIteration as ended:
                    return ended.value
                try:
                    step, given = steps.send, (yield made)
                except GeneratorExit:
                    keep_variables()
                    with Block(self._policy):
                        steps.close()
                    raise
                except BaseException as error:  # noqa: BLE001 - the generator's to handle
                    step, given = steps.throw, error

        return inner

    def _around_async_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def inner(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            steps = function(*args, **kwargs)
            step, given = steps.asend, None
            while True:
                try:
                    with Block(self._policy):
                        made = await step(given)
                except StopAsyncIteration:
                    return
                try:
                    step, given = steps.asend, (yield made)
                except GeneratorExit:
                    keep_variables()
                    with Block(self._policy):
                        await steps.aclose()
                    raise
                except BaseException as error:  # noqa: BLE001 - the generator's to handle
                    step, given = steps.athrow, error

        return inner
