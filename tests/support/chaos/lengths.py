"""How long the chaos runs, and from which seed: short in the test suite, long in ``make chaos``."""

from __future__ import annotations

import os
from typing import Final

SECONDS: Final = float(os.environ.get("CHAOS_SECONDS", "5"))
"""Of each ledger run."""
SEED: Final = int(os.environ.get("CHAOS_SEED", "2"))
IS_LONG: Final = SECONDS >= 30
EVERY: Final = 1.5 if IS_LONG else 0.9
"""Seconds between two faults, on average; more of them where there is little time."""
GAP: Final = 12.0 if IS_LONG else 2.0
"""Seconds without a primary."""
OPERATIONS: Final = int(os.environ.get("CHAOS_OPERATIONS", "700"))
"""Of each test of memory: enough to show a leak of 100 bytes each."""
PAUSE: Final = 0.6
"""Seconds between two faults that every run begins with: each cut clears the pool of all 200 tasks,
and so costs each of them an attempt; after a cut handshake they have six in all."""
