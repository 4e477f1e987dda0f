"""Time that the test moves."""

from __future__ import annotations

from pymongo_resilience.clock import Clock


class FakeClock(Clock):
    """A clock that moves only when something waits on it. For one thread or event loop."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self.sleeps: list[float] = []
        """Every wait, in seconds, in order."""

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass without anyone waiting."""
        self._now += seconds

    def sleep(self, seconds: float, /) -> None:
        self.sleeps.append(seconds)
        self._now += seconds

    async def sleep_async(self, seconds: float, /) -> None:
        self.sleep(seconds)
