"""Whether the instrumentation acts: one flag for each ``instrument()``, off once that has ended."""

from __future__ import annotations

import sys

from pymongo_resilience.internal_errors import is_closing


class Block:
    """One ``set_active`` block."""

    __slots__ = ("active",)

    def __init__(self, active: bool) -> None:
        self.active = active


class EnabledFlag:
    """Wrappers and listeners that are still in place pass through while it is off."""

    __slots__ = ("_blocks", "_turned", "on")

    def __init__(self, *, on: bool = False) -> None:
        self._turned = on
        self._blocks: tuple[Block, ...] = ()
        self.on = on
        """The newest block's value, else the last one of ``turn``."""

    def acts(self) -> bool:
        """Whether it is on, and the caller is not in a coroutine that is closed unfinished: the
        cleanup there is the driver's alone."""
        error = sys.exception()
        return self.on and (error is None or not is_closing(error))

    def turn(self, *, on: bool) -> None:
        """Permanently; enclosing blocks end."""
        self._blocks, self._turned = (), on
        self._decide()

    def enter(self, block: Block) -> None:
        self._blocks = (*self._blocks, block)
        self._decide()

    def leave(self, block: Block) -> None:
        """In any order; a block that was not entered, or was left, is left as it is."""
        self._blocks = tuple(each for each in self._blocks if each is not block)
        self._decide()

    def _decide(self) -> None:
        self.on = self._blocks[-1].active if self._blocks else self._turned


current = EnabledFlag()
"""The flag of the latest ``instrument()`` in this process."""
