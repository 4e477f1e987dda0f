"""How long the chaos runs, and from which seed: short in the test suite, long in ``make chaos``."""

from __future__ import annotations

import os
from typing import Final

SECONDS: Final = float(os.environ.get("CHAOS_SECONDS", "4"))
"""Of each ledger run."""
SEED: Final = int(os.environ.get("CHAOS_SEED", "4"))
IS_LONG: Final = SECONDS >= 30
EVERY: Final = 1.5 if IS_LONG else 0.9
"""Seconds between two faults, on average; more of them where there is little time."""
GAP: Final = 12.0 if IS_LONG else 2.0
"""Seconds without a primary."""
OPERATIONS: Final = int(os.environ.get("CHAOS_OPERATIONS", "700"))
"""Of each test of memory: enough to show a leak of 100 bytes each."""
