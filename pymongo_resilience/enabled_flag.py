"""Whether the instrumentation acts: one flag for each ``instrument()``, off once that has ended."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


class EnabledFlag:
    """Wrappers and listeners that are still in place pass through while it is off."""

    def __init__(self, *, on: bool = False) -> None:
        self.on = on
        self._turns = 0

    def turn(self, *, on: bool) -> None:
        """Permanently: blocks that are not left yet have no effect any more."""
        self._turns += 1
        self.on = on

    @contextmanager
    def set_to(self, on: bool) -> Generator[None]:
        """Inside of the block."""
        turns, before, self.on = self._turns, self.on, on
        try:
            yield
        finally:
            if turns == self._turns:
                self.on = before


current = EnabledFlag()
"""The flag of the latest ``instrument()`` in this process."""
