"""What is done only once a feature is used for the first time in the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

Step = Callable[[], object]


class FirstUse:
    """The first use of a feature, and what the feature needs from then on: wrappers around methods
    that every operation calls, which most applications never need. Thread-safe."""

    def __init__(self) -> None:
        self.happened = False
        self._steps: list[Step] = []
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
        with suppress(ValueError):  # it was called
            self._steps.remove(step)

    def note(self) -> None:
        """The feature is used: when this returns, everything that it needs is there."""
        if self.happened:
            return
        with self._lock:
            while self._steps:
                self._steps.pop()()
            self.happened = True

    def reset_after_fork(self) -> None:
        """In a forked child: a thread that no longer exists may have held the lock."""
        self._lock = threading.RLock()
