"""override(): a policy for the operations of a block of code."""

from __future__ import annotations

import functools
import inspect
from contextlib import ContextDecorator, suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast

from . import blocks
from .policy import Policy, Priority, TimeoutMode

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Mapping
    from types import TracebackType

    from pymongo_resilience.rules.strategy import RetryStrategy

    from .blocks import Block

_F = TypeVar("_F", bound="Callable[..., Any]")


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

    def __init__(
        self,
        *,
        timeout_ms: int | None = None,
        timeout_mode: TimeoutMode | None = None,
        idempotent: bool | None = None,
        strategy: RetryStrategy | None = None,
        data: Mapping[str, Any] | None = None,
        priority: Priority | None = None,
        attempt_timeout_ms: int | None = None,
        hedge: bool | int | None = None,
        resumable: bool | None = None,
        atomic: bool | None = None,
    ) -> None:
        self._policy = Policy(
            timeout_ms=timeout_ms,
            timeout_mode=timeout_mode,
            idempotent=idempotent,
            strategy=strategy,
            data=data,
            priority=priority,
            attempt_timeout_ms=attempt_timeout_ms,
            hedge=hedge,
            resumable=resumable,
            atomic=atomic,
        )
        self._entered: list[Block] = []
        """Those that have not ended."""

    def __enter__(self) -> Policy:
        block, policy = blocks.enter(self._policy)
        try:
            self._entered.append(block)
            blocks.make_innermost(block)
            return policy  # noqa: TRY300 - a signal's handler may raise until then
        except BaseException:
            block.end()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            entered = self._entered
            left = entered[0] if len(entered) == 1 else blocks.entered_here(entered.copy())
            # Or what is raised meanwhile.
            closes = isinstance(error, GeneratorExit) or (
                error is not None and isinstance(error.__context__, GeneratorExit)
            )
            blocks.leave(left, finalized=closes)
        except BaseException:
            # A signal's handler may raise: end them all rather than leave one in force.
            for each in self._entered:
                each.end()
            raise
        with suppress(ValueError):
            entered.remove(left)

    async def __aenter__(self) -> Policy:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    def __call__(self, function: _F) -> _F:
        # Of an object, what it is when it is called.
        called = type(function).__call__
        for is_one, around in (
            (inspect.iscoroutinefunction, self._around_coroutine),
            (inspect.isgeneratorfunction, self._around_generator),
            (inspect.isasyncgenfunction, self._around_async_generator),
        ):
            if is_one(function) or is_one(called):
                return cast("_F", functools.wraps(function)(around(function)))
        return super().__call__(function)

    def _around_coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def inner(*args: Any, **kwargs: Any) -> Any:
            with self._recreate_cm():
                return await function(*args, **kwargs)

        return inner

    def _around_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            # With "yield from", close() would not run this frame, whose block it is.
            with self._recreate_cm():
                steps = function(*args, **kwargs)
                step = functools.partial(next, steps)
                while True:
                    try:
                        made = step()
                    except StopIteration as end:
                        return end.value
                    try:
                        sent = yield made
                    except GeneratorExit:
                        steps.close()
                        raise
                    except BaseException as error:  # noqa: BLE001 - the generator's to handle
                        step = functools.partial(steps.throw, error)
                    else:
                        step = functools.partial(steps.send, sent)

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
