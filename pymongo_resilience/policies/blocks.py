"""override(): a policy for the operations in a block of code, and the blocks that the caller is in.

Blocks form a linked list from the innermost outward; a context variable holds the innermost one.
Each block stores whether it has ended, and ended blocks are skipped. So blocks may be left in any
order, in another context or by another thread, and a task started inside a block does not keep the
block active.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import ContextDecorator, suppress
from contextvars import ContextVar
from typing import Any, TypeVar, Unpack, cast

from pymongo_resilience.closing import keep_variables
from pymongo_resilience.first_use import FirstUse

from .policy import EMPTY_POLICY, Policy, PolicyFields, policy_from_keywords

_F = TypeVar("_F", bound="Callable[..., Any]")
policies_used = FirstUse()
"""Notes the first policy that a block, or a bound collection or database, applies."""


class Block:
    """One entered block. Ended by one thread, read by any."""

    __slots__ = ("_merged", "ended", "expires_at", "is_detached", "outer", "policy")

    def __init__(
        self, policy: Policy, *, expires_at: float | None = None, is_detached: bool = False
    ) -> None:
        self.policy = policy
        """The policy of this block alone, without those of outer blocks."""
        self.expires_at = expires_at
        """When the operations inside end at the latest, on the monotonic clock."""
        self.is_detached = is_detached
        """True if the ends of the blocks around it do not apply inside."""
        # Link to the next block that has not ended, so that a long-lived context does not keep a
        # growing chain of ended blocks.
        self.outer = next(_chain(_innermost.get()), None)
        self.ended = False
        self._merged: tuple[Policy, Policy] | None = None
        policies_used.note()

    def __enter__(self) -> Policy:
        try:
            _innermost.set(self)
            return _policy_of(self)
        # A signal handler may raise here. The ``with`` statement will not call ``__exit__`` then,
        # so the block must end itself.
        except BaseException:
            self.ended = True
            raise

    def __exit__(self, *raised: object) -> None:
        # Only mark the block; the next caller skips it. Setting a context variable is not safe in a
        # finalizer.
        self.ended = True

    def within(self, around: Policy) -> Policy:
        """Return the policy inside this block if ``around`` applies outside.

        Returns the same object each time ``around`` is the same object.
        """
        # Called for each operation inside the block, usually with the same outer policy.
        merged = self._merged
        if merged is None or merged[0] is not around:
            merged = self._merged = around, self.policy.within(around)
        return merged[1]


_innermost: ContextVar[Block | None] = ContextVar("pymongo_resilience_policy", default=None)
innermost: Callable[[], Block | None] = _innermost.get
"""The block that was entered last in the caller's context, even if it has ended; None if there is
none. Called for every operation.
"""


def current() -> Policy:
    """Return the combined policy of the blocks around the caller."""
    block = _innermost.get()
    if block is None:
        return EMPTY_POLICY
    if block.ended:
        block = next(_chain(block), None)
        # Drop the ended blocks from this context, so that they are not skipped again.
        _innermost.set(block)
    return _policy_of(block)


def timed() -> Block | None:
    """Return the innermost block around the caller that sets a timeout itself."""
    blocks = _chain(_innermost.get())
    return next((block for block in blocks if block.policy.timeout_ms is not None), None)


def expires_at() -> float | None:
    """Return when the caller's operations must end: the earliest end of all blocks around it, or
    None.
    """
    earliest: float | None = None
    for block in _chain(_innermost.get()):
        if block.expires_at is not None and (earliest is None or block.expires_at < earliest):
            earliest = block.expires_at
        # Code inside of ``detached()`` is not bound by the deadlines of blocks outside of it.
        if block.is_detached:
            break
    return earliest


def _chain(block: Block | None) -> Iterator[Block]:
    """Yield the active blocks, from this one outward, and remove ended ones from the chain."""
    while block is not None:
        # Several threads may do this at once without a lock: each of them only skips ended blocks.
        while block.outer is not None and block.outer.ended:
            block.outer = block.outer.outer
        if not block.ended:
            yield block
        block = block.outer


def _policy_of(block: Block | None) -> Policy:
    policy = EMPTY_POLICY
    for enclosing in reversed(list(_chain(block))):
        policy = enclosing.within(policy)
    return policy


class override(ContextDecorator):  # noqa: N801 - reads as a statement, like contextlib's own
    """``with override(idempotent=True):`` sets a policy for the operations inside.

    Works with ``with`` and ``async with``, and as a decorator of functions, coroutine functions and
    generator functions, sync and async. A decorated generator has the policy during each step and
    while it is closed.

    Blocks nest. If both set a field, the inner block takes precedence; the shorter of two timeouts
    applies.

    The policy ends with the block, even if an exception or another thread ends the block. It then
    also ends for tasks and threads that inherited the context. Do not use ``with override(...)``
    around a ``yield``: like every context variable, the policy would also apply to the body of the
    loop over the generator. Decorate the generator function instead.

    Thread- and task-safe, even if several threads enter one instance, or one thread enters it
    twice.

    Args:
        **fields: Fields of a ``Policy``.

    Raises:
        TypeError: If a field does not exist.
        ConfigurationError: If a field has an invalid value.
    """

    def __init__(self, **fields: Unpack[PolicyFields]) -> None:
        self._policy = policy_from_keywords("override()", fields)
        self._entered: list[Block] = []
        """The blocks that were entered through this instance and have not ended."""

    def __enter__(self) -> Policy:
        block = Block(self._policy)
        self._entered.append(block)
        return block.__enter__()

    def __exit__(self, *raised: object) -> None:
        try:
            # End the innermost block of this context. If the block is left in another context than
            # it was entered in, end the newest one.
            enclosing = (block for block in _chain(_innermost.get()) if block in self._entered)
            block = next(enclosing, None) or self._entered[-1]
            block.ended = True
        except BaseException:
            # A signal handler may raise here. End all blocks rather than leave one active.
            for entered in self._entered:
                entered.ended = True
            raise
        # Another thread may have removed it in the meantime.
        with suppress(ValueError):
            self._entered.remove(block)

    async def __aenter__(self) -> Policy:
        return self.__enter__()

    async def __aexit__(self, *raised: object) -> None:
        self.__exit__()

    def __call__(self, function: _F) -> _F:
        # An object with ``__call__`` counts as a coroutine or generator function if its
        # ``__call__`` does.
        called = type(function).__call__
        for is_kind, wrap in (
            (inspect.iscoroutinefunction, self._around_coroutine),
            (inspect.isgeneratorfunction, self._around_generator),
            (inspect.isasyncgenfunction, self._around_async_generator),
        ):
            if is_kind(function) or is_kind(called):
                return cast("_F", functools.wraps(function)(wrap(function)))
        return super().__call__(function)

    def _recreate_cm(self) -> Any:
        # Called by ``ContextDecorator``. Several threads may run a decorated function at once, so
        # each call gets its own block.
        return Block(self._policy)

    def _around_coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def inner(*args: Any, **kwargs: Any) -> Any:
            with Block(self._policy):
                return await function(*args, **kwargs)

        return inner

    def _around_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            generator = function(*args, **kwargs)
            resume, value = generator.send, None
            while True:
                try:
                    # Enter a new block for each step, so that the policy does not apply to the
                    # caller between two steps.
                    with Block(self._policy):
                        item = resume(value)
                except StopIteration as ended:
                    return ended.value
                try:
                    resume, value = generator.send, (yield item)
                except GeneratorExit:
                    # The garbage collector may close the generator at any point in its thread.
                    keep_variables()
                    with Block(self._policy):
                        generator.close()
                    raise
                except BaseException as error:  # noqa: BLE001 - the generator's to handle
                    # Pass on whatever was thrown into this generator, as ``yield from`` would.
                    resume, value = generator.throw, error

        return inner

    def _around_async_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def inner(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            generator = function(*args, **kwargs)
            resume, value = generator.asend, None
            while True:
                try:
                    with Block(self._policy):
                        # As above: a new block for each step.
                        item = await resume(value)
                except StopAsyncIteration:
                    return
                try:
                    resume, value = generator.asend, (yield item)
                except GeneratorExit:
                    keep_variables()
                    with Block(self._policy):
                        await generator.aclose()
                    raise
                except BaseException as error:  # noqa: BLE001 - the generator's to handle
                    resume, value = generator.athrow, error

        return inner
