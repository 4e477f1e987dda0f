"""Delays before a retry. Pure functions; all times are seconds as float.

``attempt`` is the number of failed attempts, so 1 before the first retry. ``random`` returns a
float in [0, 1).
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
    """Return 0 for the first retry, then 1 ms doubling up to 500 ms, reduced at random by up to
    half.

    Source: Couchbase RFC 0049, "Best Effort"; the jitter was added here.
    """
    if attempt <= 1:
        return 0.0
    delay = min(EXPONENTIAL_LIMIT, _doubled(EXPONENTIAL_FIRST, attempt - 2))
    return delay * (0.5 + random() / 2)


def overload(
    attempt: int, random: Random, base: float = OVERLOAD_BASE, limit: float = OVERLOAD_LIMIT
) -> float:
    """Return ``jitter * min(limit, base * 2^attempt)``: at most twice the base for the first retry.

    Source: Client Backpressure, "Overload retry policy", rule 3.
    """
    return random() * max(0.0, min(limit, _doubled(base, attempt)))


def controlled(attempt: int) -> float:
    """Return 1, 10, 50, 100 and 500 ms, then one second each time.

    Source: Couchbase RFC 0049, "Controlled Backoff for Always Retry".
    """
    return CONTROLLED_STEPS[min(attempt, len(CONTROLLED_STEPS)) - 1]


def held_back(attempt: int, random: Random) -> float:
    """Return the delay while the budget is spent: 100 ms, 400 ms, then 1.6 s, from the second retry
    on.

    Each is reduced at random by up to half. The numbers come from the simulation in
    bench/overload.md.
    """
    step = min(max(attempt, 2), len(HELD_BACK_STEPS) + 1) - 2
    return HELD_BACK_STEPS[step] * (0.5 + random() / 2)


def _doubled(base: float, times: int) -> float:
    # 2.0 ** 1024 overflows. Every limit is reached long before 2 ** 64.
    return base * 2.0 ** min(times, 64)
