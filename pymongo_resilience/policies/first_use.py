"""Features that cost nothing until they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class FirstUse:
    """One for the process. Thread-safe: each step is one of a list or of an attribute."""

    def __init__(self) -> None:
        self.used = False
        self._waiting: list[Callable[[], object]] = []
        """At most one."""

    def use(self) -> None:
        """Threads that use it at once each prepare for it, and go on once that is done."""
        if not self.used:
            self._prepare()
            self.used = True
            # Again, for what began to wait meanwhile.
            self._prepare()

    def prepare_with(self, prepare: Callable[[], object]) -> None:
        """Call ``prepare`` once it is used; now, where it was already.

        It may be called more than once, also by several threads at the same time.
        """
        self._waiting[:] = [prepare]
        if self.used:
            prepare()

    def forget(self) -> None:
        """Prepare nothing any more."""
        self._waiting.clear()

    def _prepare(self) -> None:
        for prepare in tuple(self._waiting):
            prepare()


HEDGED_READS = FirstUse()
"""Used with the first policy that hedges."""
ATOMIC_WRITES = FirstUse()
"""Used with the first policy that is atomic."""
RESUMABLE_FINDS = FirstUse()
"""Used with the first policy that is resumable."""
POLICIES = FirstUse()
"""Used with the first block, binding, client, transaction or cursor that a policy or a timeout of
ours holds for. Until then, no operation asks any of them."""
