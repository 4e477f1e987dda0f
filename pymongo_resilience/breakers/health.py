"""What a failed attempt says about the health of its server.

Network errors, timeouts and overload: unhealthy. An error of the application's own, a duplicate key
or a missing right: healthy, since the server answered.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from pymongo_resilience.rules.failure import RetryReason, Stage

if TYPE_CHECKING:
    from pymongo_resilience.rules.failure import Failure

UNHEALTHY = frozenset(
    {
        RetryReason.OVERLOADED,
        RetryReason.SOCKET_NOT_AVAILABLE,
        RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT,
        RetryReason.DEAD_PEER,
        RetryReason.INTERRUPTED,
        RetryReason.ATTEMPT_TIMEOUT,
        RetryReason.TEMPORARILY_UNAVAILABLE,
    }
)
NO_EVIDENCE = frozenset(
    {
        RetryReason.CIRCUIT_BREAKER_OPEN,
        RetryReason.LOAD_SHED,
        # In a failover the server is healthy: it answers, and serves again once there is a primary.
        # Excluding it would make the failover longer.
        RetryReason.NOT_PRIMARY,
    }
)


class Evidence(enum.Enum):
    """Of one attempt, about its server."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    NONE = "none"
    """Counts neither as a call nor as a failure."""


def evidence(failure: Failure) -> Evidence:
    """Pure. For failed attempts; a successful one is ``Evidence.HEALTHY``."""
    if failure.selection or failure.reason in NO_EVIDENCE:
        return Evidence.NONE
    if failure.timed_out and failure.stage is Stage.NOT_SENT:
        # The time ended before anything was sent; the caller chose how long it was, so that says
        # nothing about the server.
        return Evidence.NONE
    if failure.overloaded or failure.reason in UNHEALTHY:
        return Evidence.UNHEALTHY
    if failure.stage is not Stage.ANSWERED:
        # A wrong certificate or password, a full pool, a document that cannot be encoded.
        return Evidence.NONE
    # Under a deadline a slow server itself answers that the time limit was exceeded.
    return Evidence.UNHEALTHY if failure.timed_out else Evidence.HEALTHY
