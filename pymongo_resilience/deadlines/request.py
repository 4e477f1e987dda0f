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
    """Return how many milliseconds the caller's request has left, for calls to other services.

    0 if the time is over, None without a deadline. Thread- and task-safe.
    """
    expires_at = blocks.expires_at()
    return None if expires_at is None else max(0.0, (expires_at - CLOCK.now()) * 1000)


class _BlockContext:
    """Enters and leaves a new block, with ``with`` or ``async with``. Belongs to one thread or
    task.
    """

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
    """Ends every operation inside of the block at the same time.

    Use it as ``with request_deadline(timeout_ms=500):`` or with ``async with``, for requests that
    no middleware of this module handles. An operation whose own timeout is shorter ends
    earlier. Tasks that are started inside share the deadline until the block is left. An operation
    that begins after the deadline raises ``OperationTimeoutError``, and nothing is sent. An
    instance belongs to one thread or task at a time.

    Raises:
        ConfigurationError: The timeout is negative or not a number.
    """

    def __init__(self, *, timeout_ms: float) -> None:
        if not TIMEOUT.legal(timeout_ms):
            raise ConfigurationError([TIMEOUT.problem("timeout_ms", timeout_ms)])
        self._seconds = timeout_ms / 1000

    def _make_block(self) -> Block:
        return Block(EMPTY_POLICY, expires_at=CLOCK.now() + self._seconds)


class detached(_BlockContext):  # noqa: N801 - as above
    """Removes the deadline of the request for the code inside of the block.

    Use it as ``with detached():`` or with ``async with``, around starting a task that nobody waits
    for. An instance belongs to one thread or task at a time.
    """

    def _make_block(self) -> Block:
        return Block(EMPTY_POLICY, is_detached=True)


class Request:
    """One incoming request.

    Each part of its handling runs in a block from ``step``. The deadline ends with the block, even
    if the part is abandoned or continues in another thread or context.
    """

    def __init__(self, seconds: float) -> None:
        self._expires_at = CLOCK.now() + seconds

    def step(self) -> Block:
        """Return a block for a part of the request's handling."""
        return Block(EMPTY_POLICY, expires_at=self._expires_at)

    def steps(self, items: Iterator[T]) -> Generator[T, None, None]:
        """Yield the items of an iterator. Each is created under the deadline."""
        try:
            while True:
                with self.step():
                    try:
                        item = next(items)
                    except StopIteration:
                        return
                # Yield outside of the block, so that the deadline does not apply to the caller.
                yield item
        finally:
            close: Any = getattr(items, "close", None)
            if close is not None:
                with self.step():
                    close()

    async def steps_async(self, items: AsyncIterator[T]) -> AsyncGenerator[T, None]:
        """Yield the items of an asynchronous iterator. Each is created under the deadline."""
        try:
            while True:
                with self.step():
                    try:
                        item = await anext(items)
                    except StopAsyncIteration:
                        return
                # As above: yield outside of the block.
                yield item
        finally:
            close: Any = getattr(items, "aclose", None)
            if close is not None:
                with self.step():
                    await close()
