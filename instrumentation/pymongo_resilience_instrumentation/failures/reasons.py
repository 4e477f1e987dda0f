"""The RetryReason of each error code, and the errors with which the library ends connections.

Some reasons do not depend on codes; see ``classify`` and docs/retries.md. Sources: Retryable Reads
("Retryable Error"), Client Backpressure ("Terms"), Couchbase RFC 0049 ("RetryReason"). The names of
codes are the server's.
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
        # From a mongos router, for a shard that has no primary or that it could not reach in time.
        90: "CallbackCanceled",
        133: "FailedToSatisfyReadPreference",
        202: "NetworkInterfaceExceededTimeLimit",
        407: "",
        # From a router that shuts down, or that has just dropped its connections to a shard. It may
        # already have sent the command to other shards.
        145: "PooledConnectionsDropped",
        199: "ReplicaSetMonitorRemoved",
        # From a router whose routing table was outdated more often than it retries by itself. Each
        # such error makes it read the table again.
        63: "StaleShardVersion",
        70: "ShardNotFound",
        150: "StaleEpoch",
        249: "StaleDbVersion",
        13388: "StaleConfig",
        # Raised before the first batch, so the same query can run again.
        175: "QueryPlanKilled",
        # Overload that the server noticed while running the command, also if relayed by a router.
        # Its single label makes retries wait.
        **dict.fromkeys((433, 449, 450, 462, 473), ""),
        # Codes that servers after 8.0 define as retryable.
        **dict.fromkeys((402, 453, 471, 485, 91331, 10045600), ""),
    },
    # From Azure Cosmos DB. Its documentation calls the error TooManyRequests.
    RetryReason.THROTTLED: {16500: "TooManyRequests"},
    RetryReason.WRITE_CONFLICT: {112: "WriteConflict"},
    RetryReason.LOCK_TIMEOUT: {24: "LockTimeout", 46: "LockBusy"},
    RetryReason.AUTHENTICATION_ERROR: {18: "AuthenticationFailed"},
    RetryReason.ACCESS_ERROR: {13: "Unauthorized"},
}
"""The codes and their names. A name is empty if it is unknown, because the server is newer than
those tested.
"""
BY_CODE: Final = {code: reason for reason, codes in CODES.items() for code in codes}
"""The reason of each code. All other codes are errors of the application."""
LISTED: Final = frozenset({6, 7, 89, 91, 134, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436})
"""The codes that the Retryable Reads specification lists."""
NOT_LISTED: Final = BY_CODE.keys() - LISTED
"""The codes that MongoDB's specifications retry only with a label."""
RELAYED: Final = frozenset({6, 7, 63, 70, 89, 90, 91, 133, 145, 150, 199, 202, 249, 9001, 13388})
"""The codes that a router returns for a shard that it could not reach or find."""
PASSING: Final = BY_CODE.keys() - {13, 18}
"""The codes after which a write with a transaction number is retried."""


def mark_unsent(error: ExecutionTimeout) -> ExecutionTimeout:
    """Mark pymongo's own error for a command that has too little time left.

    It has the class and the form of a server's error, but nothing was sent.
    """
    vars(error)["unsent"] = True
    return error


class LostConnectionError(OSError):
    """The error with which the library ends a connection. pymongo treats it as a network error.

    It has no errno, because pymongo treats some numbers as timeouts.
    """

    def __init__(self, reason: RetryReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class AttemptTimeoutError(LostConnectionError, TimeoutError):
    """There was no reply within ``attempt_timeout_ms``. pymongo treats it as a network timeout."""

    def __init__(self, seconds: float) -> None:
        text = f"timed out: no answer within {seconds * 1000:.0f} ms (attempt_timeout_ms)"
        super().__init__(RetryReason.ATTEMPT_TIMEOUT, text)


class AttemptInterruptedError(AutoReconnect):
    """The library interrupted an attempt.

    Used instead of AutoReconnect itself, which pymongo labels as overload if it is raised in a
    handshake.
    """
