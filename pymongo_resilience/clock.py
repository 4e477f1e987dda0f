"""Time as the engine sees it: given from outside, so that tests can advance it manually."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock and its two ways to wait. Seconds as float throughout."""

    def now(self) -> float:
        """The time in seconds; only differences mean anything."""

    def sleep(self, seconds: float, /) -> None:
        """Block the calling thread."""

    async def sleep_async(self, seconds: float, /) -> None:
        """Suspend the calling task; cancellation ends the wait at once."""


class MonotonicClock:
    """The process's monotonic clock. Stateless, so thread- and task-safe."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float, /) -> None:
        time.sleep(seconds)

    async def sleep_async(self, seconds: float, /) -> None:
        await asyncio.sleep(seconds)
