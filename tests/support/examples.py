"""How many examples a property is tried with: a tenth in ``make test``, all of them in ``make
check``, and of hostile input many more in ``make chaos``."""

from __future__ import annotations

import os

PROFILE = "HYPOTHESIS_PROFILE"
QUICK, CHAOS = "quick", "chaos"
TIMES = {QUICK: 0.1, CHAOS: 50}


def scaled(number: int) -> int:
    """What this run takes of ``number`` examples."""
    return max(1, round(number * TIMES.get(os.environ.get(PROFILE, ""), 1)))
