"""One deadline per operation: everything that waits asks it.

Source: Client Side Operations Timeout, "timeoutMS" and "Background: retries".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pymongo_resilience.clock import Clock

SHORTEST = 0.001
"""Seconds. A timeout is a whole number of milliseconds, and 0 is none: less is no time at all."""


class Deadline(NamedTuple):
    """A point on a monotonic clock. Immutable, so thread- and task-safe."""

    clock: Clock
    expires_at: float
    """On ``clock``, in seconds."""
    timeout: float
    """The whole time the operation was given, in seconds."""

    @classmethod
    def after(cls, clock: Clock, timeout: float) -> Deadline:
        """A deadline ``timeout`` seconds from now."""
        return cls(clock, clock.now() + timeout, timeout)

    def remaining(self) -> float:
        """Seconds left; zero or negative once expired."""
        return self.expires_at - self.clock.now()

    def expired(self) -> bool:
        # As written: a timeout of NaN, which the driver accepts, has expired, or nothing would end.
        return not self.remaining() > 0

    def allows(self, delay: float) -> bool:
        """Whether a wait of ``delay`` seconds ends before the deadline."""
        return delay < self.remaining()
