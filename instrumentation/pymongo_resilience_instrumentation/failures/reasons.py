"""What leads to which RetryReason: the one table that the classification and docs/retries.md share.

Sources: Retryable Reads ("Retryable Error"), Client Backpressure ("Terms"), Couchbase RFC 0049
("RetryReason"). The names of codes are the server's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pymongo.errors import (
    ConnectionFailure,
    NotPrimaryError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
)

from pymongo_resilience.errors import CircuitBreakerOpenError, OverloadShedError
from pymongo_resilience.failure import RETRYABLE, RETRYABLE_WRITE, SYSTEM_OVERLOADED, RetryReason

if TYPE_CHECKING:
    from collections.abc import Mapping


class Code(NamedTuple):
    """An error code of the server's."""

    number: int
    name: str
    in_texts: bool = True
    """Retryable Reads lists it."""


class Row(NamedTuple):
    """One reason, and all that leads to it. Immutable."""

    reason: RetryReason
    analogue: str
    """Of RFC 0049, and why it is one."""
    errors: tuple[type[Exception], ...] = ()
    """Of the driver; subclasses count."""
    when: str = ""
    """What else must hold of such an error, or happens without one."""
    codes: tuple[Code, ...] = ()
    labels: frozenset[str] = frozenset()
    """All of them must be there."""


UNKNOWN = Row(
    RetryReason.UNKNOWN,
    "`UNKNOWN`: the effect of a repetition is unknown, so there is none. A full pool is this "
    "process's own load, which waiting once more only feeds",
    errors=(WaitQueueTimeoutError,),
    when="and everything that no other row names",
)
SOCKET_NOT_AVAILABLE = Row(
    RetryReason.SOCKET_NOT_AVAILABLE,
    "`SOCKET_NOT_AVAILABLE`: there was no connection to write the command to",
    errors=(ConnectionFailure,),
    when="before the command had a connection: the pool was cleared, or connecting failed without "
    "the labels of overload",
)
NODE_NOT_AVAILABLE = Row(
    RetryReason.NODE_NOT_AVAILABLE,
    "`NODE_NOT_AVAILABLE`, `SERVICE_NOT_AVAILABLE`: no server to send it to. Reported, never "
    "retried: the driver has waited for one already",
    errors=(ServerSelectionTimeoutError,),
    when="before the command had a connection, also where waiting for one was given up",
)
NOT_PRIMARY = Row(
    RetryReason.NOT_PRIMARY,
    "`KV_NOT_MY_VBUCKET`: sent to the wrong server, which the application need not know. There it "
    "proves that nothing happened, here not: half of a multi-document write may be done",
    errors=(NotPrimaryError,),
    codes=(
        Code(91, "ShutdownInProgress"),
        Code(189, "PrimarySteppedDown"),
        Code(10058, "LegacyNotPrimary", in_texts=False),
        Code(10107, "NotWritablePrimary"),
        Code(11600, "InterruptedAtShutdown"),
        Code(11602, "InterruptedDueToReplStateChange"),
        Code(13435, "NotPrimaryNoSecondaryOk"),
        Code(13436, "NotPrimaryOrSecondary"),
    ),
)
OVERLOADED = Row(
    RetryReason.OVERLOADED,
    "`SEARCH_TOO_MANY_REQUESTS`: rejected at the door, before anything was executed",
    when="whatever the code, where the reply does not show that the command ran; 462 and 463 have "
    "them, 473 has the second alone and is not retried; pymongo gives them to connections that it "
    "cannot make, but for names that do not resolve and for TLS",
    labels=frozenset({SYSTEM_OVERLOADED, RETRYABLE}),
)
TEMPORARILY_UNAVAILABLE = Row(
    RetryReason.TEMPORARILY_UNAVAILABLE,
    "`KV_TEMPORARY_FAILURE`: not just now. There nothing happened, here that is not known: a "
    "router may have lost the reply of a shard that did it",
    when="with whatever other code",
    codes=(
        Code(6, "HostUnreachable"),
        Code(7, "HostNotFound"),
        Code(89, "NetworkTimeout"),
        Code(134, "ReadConcernMajorityNotAvailableYet"),
        Code(262, "ExceededTimeLimit"),
        Code(365, "TemporarilyUnavailable", in_texts=False),
        Code(9001, "SocketException"),
    ),
    labels=frozenset({RETRYABLE_WRITE}),
)
WRITE_CONFLICT = Row(
    RetryReason.WRITE_CONFLICT,
    "`KV_SYNC_WRITE_IN_PROGRESS`: somebody else is writing the same document. Those before it may "
    "be done",
    codes=(Code(112, "WriteConflict", in_texts=False),),
)
LOCK_TIMEOUT = Row(
    RetryReason.LOCK_TIMEOUT,
    "`KV_LOCKED`: somebody else holds the lock. What came before it may be done",
    codes=(
        Code(24, "LockTimeout", in_texts=False),
        Code(46, "LockBusy", in_texts=False),
    ),
)
SOCKET_CLOSED_WHILE_IN_FLIGHT = Row(
    RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT,
    "`SOCKET_CLOSED_WHILE_IN_FLIGHT`: the command may have been executed, and the reply is lost",
    errors=(ConnectionFailure,),
    when="after the command had a connection",
)
DEAD_PEER = Row(
    RetryReason.DEAD_PEER,
    "`SOCKET_CLOSED_WHILE_IN_FLIGHT`: the same, and the kernel closed it",
    errors=(ConnectionFailure,),
    when="after the command had a connection, where the server's kernel acknowledged nothing for "
    "`PYMONGO_RESILIENCE_DEAD_PEER_S`",
)
INTERRUPTED = Row(
    RetryReason.INTERRUPTED,
    "`SOCKET_CLOSED_WHILE_IN_FLIGHT`: the same, and the library closed it",
    errors=(ConnectionFailure,),
    when="where the server ceased to be the primary and then did not answer for 0.2 s",
)
ATTEMPT_TIMEOUT = Row(
    RetryReason.ATTEMPT_TIMEOUT,
    "`SOCKET_CLOSED_WHILE_IN_FLIGHT`: the same, and the library closed it",
    errors=(ConnectionFailure,),
    when="where what was sent was not answered within `attempt_timeout_ms`; code 50, "
    "MaxTimeMSExpired, where that limit was the attempt's",
)
CIRCUIT_BREAKER_OPEN = Row(
    RetryReason.CIRCUIT_BREAKER_OPEN,
    "`CIRCUIT_BREAKER_OPEN`: not sent, on purpose",
    errors=(CircuitBreakerOpenError,),
    when="before the command had a connection, where the server that was selected keeps failing",
)
LOAD_SHED = Row(
    RetryReason.LOAD_SHED,
    "`CIRCUIT_BREAKER_OPEN`: not sent, on purpose. Refused again at once, so there is no retry",
    errors=(OverloadShedError,),
    when="before the command had a connection, where the server rejects most of what it is sent",
)
AUTHENTICATION_ERROR = Row(
    RetryReason.AUTHENTICATION_ERROR,
    "`AUTHENTICATION_ERROR`: the same password will be as wrong",
    codes=(Code(18, "AuthenticationFailed", in_texts=False),),
)
TLS_ERROR = Row(
    RetryReason.TLS_ERROR,
    "`TLS_ERROR`: the same certificate will be as untrusted. A peer that hangs up or is slow "
    "during the handshake is no such case",
    errors=(ConnectionFailure,),
    when="before the command had a connection, where the TLS library refused it: to the operation, "
    "or to the checks of every server that could serve",
)
ACCESS_ERROR = Row(
    RetryReason.ACCESS_ERROR,
    "`BUCKET_ACCESS_ERROR`: the same user will have as few rights",
    codes=(Code(13, "Unauthorized", in_texts=False),),
)

ROWS = (
    UNKNOWN,
    SOCKET_NOT_AVAILABLE,
    NODE_NOT_AVAILABLE,
    NOT_PRIMARY,
    OVERLOADED,
    TEMPORARILY_UNAVAILABLE,
    WRITE_CONFLICT,
    LOCK_TIMEOUT,
    SOCKET_CLOSED_WHILE_IN_FLIGHT,
    DEAD_PEER,
    INTERRUPTED,
    ATTEMPT_TIMEOUT,
    CIRCUIT_BREAKER_OPEN,
    LOAD_SHED,
    AUTHENTICATION_ERROR,
    TLS_ERROR,
    ACCESS_ERROR,
)
BY_CODE: Mapping[int, RetryReason] = {code.number: row.reason for row in ROWS for code in row.codes}
"""Every other code is the application's own concern."""
NOT_IN_THE_TEXTS = frozenset(code.number for row in ROWS for code in row.codes if not code.in_texts)
"""Of those codes, the ones that MongoDB's texts do not retry unless a label says so."""
