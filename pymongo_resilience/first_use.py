"""Steps that run when a feature is used for the first time in the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

Step = Callable[[], object]


class FirstUse:
    """Runs steps at the first use of a feature.

    Some features wrap methods that every operation calls. Most applications never use these
    features, so the wrappers are only applied at the first use. Thread-safe.
    """

    def __init__(self) -> None:
        self.happened = False
        self._steps: list[Step] = []
        # Reentrant, because a signal handler may use the feature while this thread holds the lock.
        self._lock = threading.RLock()

    def when(self, step: Step) -> None:
        """Call ``step`` at the first use, or now if there was one."""
        with self._lock:
            if self.happened:
                step()
            else:
                self._steps.append(step)

    def forget(self, step: Step) -> None:
        """Do not call ``step`` any more."""
        # The step is missing if it was called already.
        with suppress(ValueError):
            self._steps.remove(step)

    def note(self) -> None:
        """Run the steps if this is the first use. All of them have run when this returns."""
        # The common case, without the lock.
        if self.happened:
            return
        with self._lock:
            while self._steps:
                self._steps.pop()()
            # Set this last: a thread that reads True relies on every wrapper being in place.
            self.happened = True

    def reset_after_fork(self) -> None:
        """Replace the lock in a forked child: a thread of the parent may have held it."""
        self._lock = threading.RLock()
