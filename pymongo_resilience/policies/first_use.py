"""What nobody pays for until somebody uses it: from then on, and until it is switched off again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class FirstUse:
    """One for the process. Thread-safe: each step is one of a list."""

    def __init__(self) -> None:
        self.used = False
        self._waiting: list[Callable[[], object]] = []
        """At most one."""

    def use(self) -> None:
        self.used = True
        try:
            prepare = self._waiting.pop()
        except IndexError:
            return
        prepare()

    def prepare_with(self, prepare: Callable[[], object]) -> None:
        """Call ``prepare`` once it is used; now, where it was already."""
        self._waiting[:] = [prepare]
        if self.used:
            self.use()

    def forget(self) -> None:
        """Prepare nothing any more."""
        self._waiting.clear()


class FirstUseByAny(FirstUse):
    """Of several threads that use it at once, each prepares for it, and goes on once that is done:
    ``prepare`` may be called more than once."""

    def use(self) -> None:
        for prepare in tuple(self._waiting):
            prepare()
        self.used = True


HEDGED_READS = FirstUse()
"""Used with the first policy that hedges."""
ATOMIC_WRITES = FirstUse()
"""Used with the first policy that is atomic."""
RESUMABLE_FINDS = FirstUse()
"""Used with the first policy that is resumable."""
POLICIES = FirstUseByAny()
"""Used with the first block, binding, client, transaction or cursor that a policy or a timeout of
ours holds for. Until then, no operation asks any of them."""
