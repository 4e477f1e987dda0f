"""Objects that are started and stopped, explicitly or by a ``with`` block."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self


class TestbedError(RuntimeError):
    """The test bed cannot run here. The message says what to do."""

    # The name begins with "Test", so pytest would collect it as a test class.
    __test__ = False


class Running(ABC):
    """A context manager around ``start`` and ``stop``, for ``with`` and for ``async with``.

    Both also work in a running event loop. ``async with`` does not block it.
    """

    @abstractmethod
    def start(self) -> None:
        """Start. If that raises an error, nothing is left running."""

    @abstractmethod
    def stop(self) -> None:
        """Stop. Does nothing if it is not running."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        try:
            await _in_a_thread(self.start)
        except asyncio.CancelledError:
            await _in_a_thread(self.stop)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await _in_a_thread(self.stop)


async def _in_a_thread(function: Callable[[], None]) -> None:
    """Call a function in a thread and raise what it raises. A cancellation is raised when the
    function has ended, because a thread cannot be cancelled.
    """
    running = asyncio.ensure_future(asyncio.to_thread(function))
    cancelled = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from running.exception()
    running.result()
