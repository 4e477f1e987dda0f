"""For tests: recorded decisions, the library switched off."""

from __future__ import annotations

from contextlib import AbstractContextManager

from pymongo_resilience import enabled_flag
from pymongo_resilience.events import Event

__all__ = ["RecordingListener", "is_active", "set_active"]


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


def set_active(active: bool) -> AbstractContextManager[None]:
    """Inside the block the instrumentation acts, or stands aside, in the whole process.

    Blocks nest, also across threads: the one that is entered last is left first.
    """
    return enabled_flag.current.set_to(active)
