"""Whether the instrumentation acts: one flag for each ``instrument()``, off once that has ended."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pymongo_resilience.internal_errors import is_closing


class EnabledFlag:
    """Wrappers and listeners that are still in place pass through while it is off."""

    def __init__(self, *, on: bool = False) -> None:
        self.on = on
        self._turns = 0

    def acts(self) -> bool:
        """Whether it is on, and no coroutine is being closed: the cleanup there is the driver's
        alone."""
        error = sys.exception()
        return self.on and (error is None or not is_closing(error))

    def turn(self, *, on: bool) -> None:
        """Permanently: blocks that are not left yet have no effect any more."""
        self._turns += 1
        self.on = on

    @contextmanager
    def set_to(self, on: bool) -> Iterator[None]:
        """Inside of the block."""
        turns, before, self.on = self._turns, self.on, on
        try:
            yield
        finally:
            if turns == self._turns:
                self.on = before


current = EnabledFlag()
"""The flag of the latest ``instrument()`` in this process."""
