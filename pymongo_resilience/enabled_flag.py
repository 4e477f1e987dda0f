"""Whether the instrumentation acts: one flag for each ``instrument()``, off once that has ended."""

from __future__ import annotations

import sys

from pymongo_resilience.internal_errors import is_closing


class EnabledFlag:
    """Wrappers and listeners that are still in place pass through while it is off."""

    def __init__(self, *, on: bool = False) -> None:
        self._turned = on
        self._blocks: dict[object, bool] = {}
        """The values of ``set_active`` blocks that are not left yet, the newest last."""
        self.on = on
        """The newest block's value, else the last one of ``turn``."""

    def acts(self) -> bool:
        """Whether it is on, and no coroutine is being closed: the cleanup there is the driver's
        alone."""
        error = sys.exception()
        return self.on and (error is None or not is_closing(error))

    def turn(self, *, on: bool) -> None:
        """Permanently; enclosing blocks end."""
        self._blocks, self._turned = {}, on
        self._decide()

    def enter(self, *, active: bool) -> object:
        """Begin a block; what ``leave`` needs to end it."""
        block = object()
        self._blocks[block] = active
        self._decide()
        return block

    def leave(self, block: object) -> None:
        """In any order; a block that ``turn`` has ended is left as it is."""
        self._blocks.pop(block, None)
        self._decide()

    def _decide(self) -> None:
        self.on = [self._turned, *self._blocks.values()][-1]


current = EnabledFlag()
"""The flag of the latest ``instrument()`` in this process."""
