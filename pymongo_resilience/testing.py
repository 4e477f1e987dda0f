"""For tests, ours and users': a manual clock, recorded decisions, the library switched off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pymongo_resilience import enabled_flag
from pymongo_resilience.events import Event


class FakeClock:
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


class RecordingListener:
    """Keeps every event. Thread-safe: appending to a list is atomic."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event, /) -> None:
        self.events.append(event)

    def clear(self) -> None:
        """Forget what was recorded."""
        self.events.clear()


def is_active() -> bool:
    """Whether the instrumentation acts in this process."""
    return enabled_flag.current.on


@contextmanager
def set_active(active: bool) -> Iterator[None]:
    """Inside the block the instrumentation acts, or stands aside, in the whole process.

    Of blocks that overlap, the newest that is not left yet holds; to enter or leave two of them in
    two threads at once is not safe.
    """
    current = enabled_flag.current
    block = current.enter(active=active)
    try:
        yield
    finally:
        current.leave(block)
