"""Helpers for tests of applications: record events, and turn the library off for a block."""

from __future__ import annotations

from contextlib import AbstractContextManager

from pymongo_resilience import enabled_flag
from pymongo_resilience.events import Event

__all__ = ["RecordingListener", "is_active", "set_active"]


class RecordingListener:
    """A listener that keeps every event. Thread-safe, because appending to a list is atomic."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event, /) -> None:
        self.events.append(event)

    def clear(self) -> None:
        """Remove all recorded events."""
        self.events.clear()


def is_active() -> bool:
    """Return True if the instrumentation is active in this process."""
    return enabled_flag.current.on


def set_active(active: bool) -> AbstractContextManager[None]:
    """Turn the instrumentation on or off in the whole process, inside the block.

    Blocks nest. If several threads use them, the block that was entered last must be left first.
    """
    return enabled_flag.current.set_to(active)
