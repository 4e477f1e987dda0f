"""How long to wait before an attempt is repeated. Pure functions; seconds as float.

``attempt`` counts failed attempts: 1 before the first retry. Randomness comes from outside, a
function that returns a float in [0, 1).
"""

from __future__ import annotations

from pymongo_resilience.clock import Random

EXPONENTIAL_FIRST = 0.001
EXPONENTIAL_LIMIT = 0.5
OVERLOAD_BASE = 0.1
OVERLOAD_LIMIT = 10.0
HELD_BACK_STEPS = (0.1, 0.4, 1.6)
CONTROLLED_STEPS = (0.001, 0.01, 0.05, 0.1, 0.5, 1.0)


def exponential(attempt: int, random: Random) -> float:
    """The first retry at once, then 1 ms doubling to 500 ms, spread by half to either side. Source:
    Couchbase RFC 0049, "Best Effort"; the jitter is ours."""
    if attempt <= 1:
        return 0.0
    delay = min(EXPONENTIAL_LIMIT, _doubled(EXPONENTIAL_FIRST, attempt - 2))
    return delay * (0.5 + random() / 2)


def overload(
    attempt: int, random: Random, base: float = OVERLOAD_BASE, limit: float = OVERLOAD_LIMIT
) -> float:
    """``jitter * min(limit, base * 2^attempt)``: the first retry waits for up to twice the base.
    Source: Client Backpressure, "Overload retry policy", rule 3."""
    return random() * max(0.0, min(limit, _doubled(base, attempt)))


def controlled(attempt: int) -> float:
    """1, 10, 50, 100, 500 ms, then a second each. Source: Couchbase RFC 0049, "Controlled Backoff
    for Always Retry"."""
    return CONTROLLED_STEPS[min(attempt, len(CONTROLLED_STEPS)) - 1]


def held_back(attempt: int, random: Random) -> float:
    """With the budget spent, from the second retry on: 100 and 400 ms, then 1.6 s each, less a
    random part of up to a half. The numbers are from the simulation in bench/overload.md."""
    step = min(max(attempt, 2), len(HELD_BACK_STEPS) + 1) - 2
    return HELD_BACK_STEPS[step] * (0.5 + random() / 2)


def _doubled(base: float, times: int) -> float:
    # 2.0 ** 1024 overflows; long before that every limit is reached.
    return base * 2.0 ** min(times, 64)
