"""The flag of each ``instrument()``: True while it is active."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


class EnabledFlag:
    """While the flag is off, wrappers and listeners that are still in place pass calls through."""

    def __init__(self, *, on: bool = False) -> None:
        self.on = on
        self._turns = 0

    def turn(self, *, on: bool) -> None:
        """Set the flag permanently. Blocks of ``set_to`` that are still open no longer
        restore it.
        """
        self._turns += 1
        self.on = on

    @contextmanager
    def set_to(self, on: bool) -> Generator[None]:
        """Set the flag inside the block."""
        turns, before, self.on = self._turns, self.on, on
        try:
            yield
        finally:
            # ``uninstrument()`` may have been called inside the block. Its effect must last.
            if turns == self._turns:
                self.on = before


current = EnabledFlag()
"""The flag of the most recent ``instrument()`` in this process."""
