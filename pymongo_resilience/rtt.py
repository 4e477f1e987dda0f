"""A server's round-trip time: weighted average and recent minimum. Seconds as float.

Source: Server Selection, "Calculation of Average Round Trip Times" and Client Side Operations
Timeout, "Minimum round trip time".
"""

from __future__ import annotations

import math
from collections import deque

ALPHA = 0.2
SAMPLES = 10
SAMPLES_NEEDED = 2
"""One sample alone says nothing about a minimum."""


class RoundTripTime:
    """Written by one monitor, read by any thread: each field is replaced, never half-updated."""

    __slots__ = ("_recent", "average", "minimum")

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=SAMPLES)
        self.average: float | None = None
        self.minimum: float | None = None

    def add(self, sample: float) -> None:
        """Take one measured round trip. What is negative, infinite or NaN is none: ignored."""
        if not 0 <= sample < math.inf:
            return
        self._recent.append(sample)
        self.minimum = min(self._recent) if len(self._recent) >= SAMPLES_NEEDED else None
        self.average = (
            sample if self.average is None else ALPHA * sample + (1 - ALPHA) * self.average
        )

    def reset(self) -> None:
        """Forget everything: the server is unknown again."""
        self._recent.clear()
        self.average = None
        self.minimum = None
