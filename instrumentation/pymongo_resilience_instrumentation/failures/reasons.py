"""Which error codes lead to which RetryReason, and the errors by which the library itself ends a
connection. What else leads to a reason: ``classify``, and docs/retries.md.

Sources: Retryable Reads ("Retryable Error"), Client Backpressure ("Terms"), Couchbase RFC 0049
("RetryReason"). The names of codes are the server's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pymongo.errors import AutoReconnect, ExecutionTimeout

from pymongo_resilience.rules.failure import RetryReason

CODES: Final[Mapping[RetryReason, Mapping[int, str]]] = {
    RetryReason.NOT_PRIMARY: {
        91: "ShutdownInProgress",
        189: "PrimarySteppedDown",
        10058: "LegacyNotPrimary",
        10107: "NotWritablePrimary",
        11600: "InterruptedAtShutdown",
        11602: "InterruptedDueToReplStateChange",
        13435: "NotPrimaryNoSecondaryOk",
        13436: "NotPrimaryOrSecondary",
    },
    RetryReason.TEMPORARILY_UNAVAILABLE: {
        6: "HostUnreachable",
        7: "HostNotFound",
        89: "NetworkTimeout",
        134: "ReadConcernMajorityNotAvailableYet",
        262: "ExceededTimeLimit",
        365: "TemporarilyUnavailable",
        9001: "SocketException",
        # A router's, for a shard that has no primary or that it could not reach in time.
        90: "CallbackCanceled",
        133: "FailedToSatisfyReadPreference",
        202: "NetworkInterfaceExceededTimeLimit",
        407: "",
        # A router's that shuts down, or has just dropped its connections to a shard. It may have
        # sent the command to other shards before.
        145: "PooledConnectionsDropped",
        199: "ReplicaSetMonitorRemoved",
        # A router's whose routing table was out of date more often than it tries by itself; each
        # such error makes it read the table anew.
        63: "StaleShardVersion",
        70: "ShardNotFound",
        150: "StaleEpoch",
        249: "StaleDbVersion",
        13388: "StaleConfig",
        # Before the first batch: the same query once more finds what is there by then.
        175: "QueryPlanKilled",
        # Overload that was not refused at the door, also as a router relays it: its one label makes
        # a repetition wait.
        **dict.fromkeys((433, 449, 450, 462, 473), ""),
        # What servers after 8.0 call retriable.
        **dict.fromkeys((402, 453, 471, 485, 91331, 10045600), ""),
    },
    RetryReason.WRITE_CONFLICT: {112: "WriteConflict"},
    RetryReason.LOCK_TIMEOUT: {24: "LockTimeout", 46: "LockBusy"},
    RetryReason.AUTHENTICATION_ERROR: {18: "AuthenticationFailed"},
    RetryReason.ACCESS_ERROR: {13: "Unauthorized"},
}
"""The name of a code is empty where it is not known: that of a server newer than what was tested.
"""
BY_CODE: Final = {code: reason for reason, codes in CODES.items() for code in codes}
"""Every other code is the application's own concern."""
LISTED: Final = frozenset({6, 7, 89, 91, 134, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436})
"""The codes that Retryable Reads lists."""
NOT_LISTED: Final = BY_CODE.keys() - LISTED
"""The codes that MongoDB's specifications do not retry unless a label says so."""
RELAYED: Final = frozenset({6, 7, 63, 70, 89, 90, 91, 133, 145, 150, 199, 202, 249, 9001, 13388})
"""The codes that a router returns for a shard that it could not reach, or find."""
PASSING: Final = BY_CODE.keys() - {13, 18}
"""The codes after which a write that carries its transaction number is repeated."""


def mark_unsent(error: ExecutionTimeout) -> ExecutionTimeout:
    """Mark the driver's refusal of a command that has too little time left: it has the class and
    the shape of a server's error, and nothing was sent."""
    vars(error)["unsent"] = True
    return error


class LostConnectionError(OSError):
    """What ends a connection that the library gives up; pymongo takes it for a network error.
    Without an errno: a timeout would be none to it."""

    def __init__(self, reason: RetryReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class AttemptTimeoutError(LostConnectionError, TimeoutError):
    """Nothing was answered in the time of an attempt; pymongo takes it for a network timeout."""

    def __init__(self, seconds: float) -> None:
        text = f"timed out: no answer within {seconds * 1000:.0f} ms"
        super().__init__(RetryReason.ATTEMPT_TIMEOUT, text)


class AttemptInterruptedError(AutoReconnect):
    """Raised for AutoReconnect itself, which pymongo labels as overload in a handshake."""
