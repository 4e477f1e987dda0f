"""The deadline of one incoming request, as a block around the code that handles it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import Any, TypeVar

from pymongo_resilience.clock import Clock
from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.option_types import MAX_MS, number
from pymongo_resilience.policies import blocks
from pymongo_resilience.policies.blocks import Block
from pymongo_resilience.policies.policy import EMPTY_POLICY

T = TypeVar("T")
CLOCK = Clock()
TIMEOUT = number(0, MAX_MS)


def remaining_ms() -> float | None:
    """Return the milliseconds that the request around the caller has left, 0 if it is over; None
    without a deadline. For calls to other services. Thread- and task-safe."""
    expires_at = blocks.expires_at()
    return None if expires_at is None else max(0.0, (expires_at - CLOCK.now()) * 1000)


class _BlockContext:
    """Enters and leaves a new block, as ``with`` and as ``async with``. Belongs to one thread or
    task."""

    _block: Block | None = None

    def _make_block(self) -> Block:
        raise NotImplementedError

    def __enter__(self) -> None:
        self._block = self._make_block()
        self._block.__enter__()

    def __exit__(self, *raised: object) -> None:
        block, self._block = self._block, None
        if block is not None:
            block.ended = True

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, *raised: object) -> None:
        self.__exit__()


class request_deadline(_BlockContext):  # noqa: N801 - reads as a statement, like override
    """``with request_deadline(timeout_ms=500):`` ends every operation inside 500 ms after the block
    was entered, or earlier if it has a shorter timeout.

    For requests that no middleware of this module handles. Works as ``with`` and ``async with``.
    Tasks that are started inside share the deadline until the block is left. An operation that
    begins when the time is over raises ``OperationTimeoutError``, and nothing is sent.

    Raises ConfigurationError for a timeout that is negative or no number. An object is for one
    thread or task at a time.
    """

    def __init__(self, *, timeout_ms: float) -> None:
        if not TIMEOUT.legal(timeout_ms):
            raise ConfigurationError([TIMEOUT.problem("timeout_ms", timeout_ms)])
        self._seconds = timeout_ms / 1000

    def _make_block(self) -> Block:
        return Block(EMPTY_POLICY, expires_at=CLOCK.now() + self._seconds)


class detached(_BlockContext):  # noqa: N801 - as above
    """``with detached():`` takes the code inside out of the request around it: for a task that is
    started in a request, and that nobody waits for.

    Works as ``with`` and ``async with``. An object is for one thread or task at a time.
    """

    def _make_block(self) -> Block:
        return Block(EMPTY_POLICY, is_detached=True)


class Request:
    """One incoming request. ``step`` is for a part of its handling; no part keeps the deadline
    beyond its end, whoever abandons the request and wherever."""

    def __init__(self, seconds: float) -> None:
        self._expires_at = CLOCK.now() + seconds

    def step(self) -> Block:
        """Return a block around a part of the request's handling."""
        return Block(EMPTY_POLICY, expires_at=self._expires_at)

    def steps(self, items: Iterator[T]) -> Generator[T, None, None]:
        """Yield the items, each made under the deadline."""
        try:
            while True:
                with self.step():
                    try:
                        item = next(items)
                    except StopIteration:
                        return
                yield item
        finally:
            close: Any = getattr(items, "close", None)
            if close is not None:
                with self.step():
                    close()

    async def steps_async(self, items: AsyncIterator[T]) -> AsyncGenerator[T, None]:
        """Yield the items of an asynchronous iterator, each made under the deadline."""
        try:
            while True:
                with self.step():
                    try:
                        item = await anext(items)
                    except StopAsyncIteration:
                        return
                yield item
        finally:
            close: Any = getattr(items, "aclose", None)
            if close is not None:
                with self.step():
                    await close()
