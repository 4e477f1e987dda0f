"""What leads to which RetryReason: the table that the classification goes by, and the errors by
which the library itself ends a connection.

Sources: Retryable Reads ("Retryable Error"), Client Backpressure ("Terms"), Couchbase RFC 0049
("RetryReason"). The names of codes are the server's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from pymongo.errors import (
    AutoReconnect,
    ConnectionFailure,
    NotPrimaryError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
)

from pymongo_resilience.errors import CircuitBreakerOpenError, OverloadShedError
from pymongo_resilience.rules.failure import (
    RETRYABLE,
    RETRYABLE_WRITE,
    SYSTEM_OVERLOADED,
    RetryReason,
)


class Code(NamedTuple):
    """An error code of the server's."""

    number: int
    name: str = ""
    """Empty where it is not known: that of a server that is newer than what was tested."""
    listed: bool = True
    """Retryable Reads lists it."""


class Row(NamedTuple):
    """One reason, and all that leads to it. Immutable."""

    reason: RetryReason
    errors: tuple[type[Exception], ...] = ()
    """The driver's; subclasses count. ``docs/retries.md`` says what else must hold."""
    codes: tuple[Code, ...] = ()
    labels: frozenset[str] = frozenset()
    """All of them must be there."""


UNKNOWN = Row(RetryReason.UNKNOWN, errors=(WaitQueueTimeoutError,))
"""And everything that no other row names."""
NODE_NOT_AVAILABLE = Row(RetryReason.NODE_NOT_AVAILABLE, errors=(ServerSelectionTimeoutError,))
NOT_PRIMARY = Row(
    RetryReason.NOT_PRIMARY,
    errors=(NotPrimaryError,),
    codes=(
        Code(91, "ShutdownInProgress"),
        Code(189, "PrimarySteppedDown"),
        Code(10058, "LegacyNotPrimary", listed=False),
        Code(10107, "NotWritablePrimary"),
        Code(11600, "InterruptedAtShutdown"),
        Code(11602, "InterruptedDueToReplStateChange"),
        Code(13435, "NotPrimaryNoSecondaryOk"),
        Code(13436, "NotPrimaryOrSecondary"),
    ),
)
OVERLOADED = Row(RetryReason.OVERLOADED, labels=frozenset({SYSTEM_OVERLOADED, RETRYABLE}))
TEMPORARILY_UNAVAILABLE = Row(
    RetryReason.TEMPORARILY_UNAVAILABLE,
    codes=(
        Code(6, "HostUnreachable"),
        Code(7, "HostNotFound"),
        Code(89, "NetworkTimeout"),
        Code(134, "ReadConcernMajorityNotAvailableYet"),
        Code(262, "ExceededTimeLimit"),
        Code(365, "TemporarilyUnavailable", listed=False),
        Code(9001, "SocketException"),
        # A router's, for a shard that has no primary or that it could not reach in time.
        Code(90, "CallbackCanceled", listed=False),
        Code(133, "FailedToSatisfyReadPreference", listed=False),
        Code(202, "NetworkInterfaceExceededTimeLimit", listed=False),
        Code(407, listed=False),
        # Before the first batch: the same query once more finds what is there by then.
        Code(175, "QueryPlanKilled", listed=False),
        # Overload that was not refused at the door, also as a router relays it: its one label makes
        # a repetition wait.
        *(Code(number, listed=False) for number in (433, 449, 450, 462, 473)),
        # What servers after 8.0 call retriable.
        *(Code(number, listed=False) for number in (402, 453, 471, 485, 91331, 10045600)),
    ),
    labels=frozenset({RETRYABLE_WRITE}),
)
CIRCUIT_BREAKER_OPEN = Row(RetryReason.CIRCUIT_BREAKER_OPEN, errors=(CircuitBreakerOpenError,))
LOAD_SHED = Row(RetryReason.LOAD_SHED, errors=(OverloadShedError,))

ROWS = (
    UNKNOWN,
    Row(RetryReason.SOCKET_NOT_AVAILABLE, errors=(ConnectionFailure,)),
    NODE_NOT_AVAILABLE,
    NOT_PRIMARY,
    OVERLOADED,
    TEMPORARILY_UNAVAILABLE,
    Row(RetryReason.WRITE_CONFLICT, codes=(Code(112, "WriteConflict", listed=False),)),
    Row(
        RetryReason.LOCK_TIMEOUT,
        codes=(
            Code(24, "LockTimeout", listed=False),
            Code(46, "LockBusy", listed=False),
        ),
    ),
    Row(RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT, errors=(ConnectionFailure,)),
    Row(RetryReason.DEAD_PEER, errors=(ConnectionFailure,)),
    Row(RetryReason.INTERRUPTED, errors=(ConnectionFailure,)),
    Row(RetryReason.ATTEMPT_TIMEOUT, errors=(ConnectionFailure,)),
    Row(RetryReason.CURSOR_LOST),
    CIRCUIT_BREAKER_OPEN,
    LOAD_SHED,
    Row(
        RetryReason.AUTHENTICATION_ERROR,
        codes=(Code(18, "AuthenticationFailed", listed=False),),
    ),
    Row(RetryReason.TLS_ERROR, errors=(ConnectionFailure,)),
    Row(RetryReason.ACCESS_ERROR, codes=(Code(13, "Unauthorized", listed=False),)),
)
BY_CODE: Mapping[int, RetryReason] = {code.number: row.reason for row in ROWS for code in row.codes}
"""Every other code is the application's own concern."""
NOT_LISTED = frozenset(code.number for row in ROWS for code in row.codes if not code.listed)
"""The codes that MongoDB's specifications do not retry unless a label says so."""
PASSING = frozenset(
    code
    for code, reason in BY_CODE.items()
    if reason not in (RetryReason.AUTHENTICATION_ERROR, RetryReason.ACCESS_ERROR)
)
"""The codes after which a write that carries its transaction number is repeated."""


class LostConnectionError(OSError):
    """What pymongo takes for a network error. Without an errno: a timeout would be none to it."""

    reason: ClassVar[RetryReason]


class DeadPeerError(LostConnectionError):
    """The peer's kernel acknowledged nothing for so long that the connection was given up."""

    reason = RetryReason.DEAD_PEER

    def __init__(self, seconds: int) -> None:
        super().__init__(
            f"connection closed: nothing received from the server's host for {seconds} s"
        )


class AttemptTimeoutError(LostConnectionError, TimeoutError):
    """Nothing was answered in the time of an attempt; pymongo takes it for a network timeout."""

    reason = RetryReason.ATTEMPT_TIMEOUT

    def __init__(self, seconds: float) -> None:
        super().__init__(f"timed out: no answer within {seconds * 1000:.0f} ms")


class InterruptedAttemptError(LostConnectionError):
    """Its server is no longer the primary, and does not answer."""

    reason = RetryReason.INTERRUPTED

    def __init__(self) -> None:
        super().__init__("interrupted: the server is no longer the primary and does not answer")


class AttemptInterruptedError(AutoReconnect):
    """Raised for AutoReconnect itself, which pymongo labels as overload in a handshake."""
