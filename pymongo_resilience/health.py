"""What a failed attempt says about the health of the server that it was meant for.

Network errors, timeouts and overload say that it is sick. An error of the application's own, a
duplicate key or a missing right, says that it is well: it was there, and answered.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from pymongo_resilience.failure import RetryReason, Stage

if TYPE_CHECKING:
    from pymongo_resilience.failure import Failure

SICK = frozenset(
    {
        RetryReason.OVERLOADED,
        RetryReason.SOCKET_NOT_AVAILABLE,
        RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT,
        RetryReason.TEMPORARILY_UNAVAILABLE,
    }
)
SAYS_NOTHING = frozenset(
    {
        RetryReason.CIRCUIT_BREAKER_OPEN,
        # A failover is not a sick server: it answers, and serves again once there is a primary. To
        # keep it out any longer would make the failover longer.
        RetryReason.NOT_PRIMARY,
    }
)


class Evidence(enum.Enum):
    """Of one attempt, about its server."""

    WELL = "well"
    SICK = "sick"
    NONE = "none"
    """Nothing was learnt: counts neither as a call nor as a failure."""


def evidence(failure: Failure) -> Evidence:
    """Pure. An attempt that succeeded needs no asking: it is ``Evidence.WELL``."""
    if failure.selection or failure.reason in SAYS_NOTHING:
        return Evidence.NONE
    if failure.timed_out and failure.stage is Stage.NOT_SENT:
        # The time ended before the server was asked for anything; how much there was is the
        # caller's choice, and a server is not sick because a caller was in a hurry.
        return Evidence.NONE
    if failure.overloaded or failure.reason in SICK:
        return Evidence.SICK
    if failure.stage is not Stage.ANSWERED:
        # A wrong certificate or password, a full pool, a document that cannot be encoded.
        return Evidence.NONE
    # Under a deadline a slow server is the first to notice: it answers that the time was exceeded.
    return Evidence.SICK if failure.timed_out else Evidence.WELL
