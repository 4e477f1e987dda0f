"""The facts of one failed attempt, and the reasons for which an attempt may be retried.

The instrumentation fills in the facts; this package does not depend on pymongo.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from functools import cached_property

from pymongo_resilience.clock import Deadline
from pymongo_resilience.redaction import error_name

SYSTEM_OVERLOADED = "SystemOverloadedError"
RETRYABLE = "RetryableError"
RETRYABLE_WRITE = "RetryableWriteError"
TRANSIENT_TRANSACTION = "TransientTransactionError"
NO_WRITES_PERFORMED = "NoWritesPerformed"
OVERLOADED = frozenset({SYSTEM_OVERLOADED, RETRYABLE})
"""Both labels of a command that an overloaded server rejected."""
CURSOR_NOT_FOUND = 43
MAX_TIME_EXPIRED = 50


class Stage(enum.StrEnum):
    """How far an attempt got (Couchbase RFC 0049, "Introduction").

    If in doubt, an attempt counts as in flight.
    """

    NOT_SENT = "not_sent"
    """Selecting a server or getting a connection failed, so not one byte of the command was
    sent.
    """
    IN_FLIGHT = "in_flight"
    """The command may have reached the server. Whether it was applied is unknown."""
    ANSWERED = "answered"
    """The server replied with an error."""


class RetryReason(enum.StrEnum):
    """Why an attempt failed, one member per cause (Couchbase RFC 0049, "RetryReason")."""

    UNKNOWN = "unknown"
    SOCKET_NOT_AVAILABLE = "socket_not_available"
    """There was no connection: connecting or the handshake failed, or the pool was cleared."""
    NODE_NOT_AVAILABLE = "node_not_available"
    """No server could be selected. This is reported, never retried."""
    POOL_EXHAUSTED = "pool_exhausted"
    """No connection of the pool became free in time. Retried as pymongo does: a read, once."""
    NOT_PRIMARY = "not_primary"
    """The server is not the primary, is recovering, or is shutting down."""
    OVERLOADED = "overloaded"
    """The error has both overload labels: the server rejected the command without running it
    (Client Backpressure).
    """
    THROTTLED = "throttled"
    """The server limits how much this client may send, and may have executed a part of the command
    (Azure Cosmos DB, code 16500).
    """
    TEMPORARILY_UNAVAILABLE = "temporarily_unavailable"
    """The server could not run the command at the moment, for example because of a network error
    behind it or an exceeded time limit.
    """
    WRITE_CONFLICT = "write_conflict"
    LOCK_TIMEOUT = "lock_timeout"
    SOCKET_CLOSED_WHILE_IN_FLIGHT = "socket_closed_while_in_flight"
    NO_REPLY = "no_reply"
    """The command was sent, and one of pymongo's own timeouts ended the wait for the reply."""
    DEAD_PEER = "dead_peer"
    """The server's host acknowledged no packets: it is gone, or the network drops them."""
    INTERRUPTED = "interrupted"
    """The library gave up the attempt because its server is no longer the primary and does not
    answer.
    """
    ATTEMPT_TIMEOUT = "attempt_timeout"
    """The command was sent, and there was no reply within ``attempt_timeout_ms``."""
    CURSOR_LOST = "cursor_lost"
    """The server closed the cursor of a resumable find."""
    CIRCUIT_BREAKER_OPEN = "circuit_breaker_open"
    """The server's circuit breaker is open, so the command was not sent."""
    AUTHENTICATION_ERROR = "authentication_error"
    TLS_ERROR = "tls_error"
    """The TLS library refused the connection: a certificate, a version, or a server without TLS."""
    ACCESS_ERROR = "access_error"
    NO_RETRYABLE_WRITES = "no_retryable_writes"
    """The server refuses transaction numbers, so it refuses every write of this client."""

    @property
    def allows_non_idempotent_retry(self) -> bool:
        """True if the reason itself proves that the server did not run the command."""
        return self in NOTHING_HAPPENED

    @property
    def always_retry(self) -> bool:
        """True if the attempt is retried with fixed delays, without asking the strategy (except
        ``MongoDB``).

        An application cannot do anything about such an error. Source: Couchbase RFC 0049,
        "Controlled Backoff for Always Retry".
        """
        return self is RetryReason.NOT_PRIMARY


# THROTTLED is not one of them: Azure Cosmos DB may have executed a part of the command.
NOTHING_HAPPENED = frozenset({
    RetryReason.SOCKET_NOT_AVAILABLE, RetryReason.NODE_NOT_AVAILABLE, RetryReason.OVERLOADED,
    RetryReason.CIRCUIT_BREAKER_OPEN,
})  # fmt: skip
UNHEALTHY = frozenset({
    RetryReason.OVERLOADED, RetryReason.SOCKET_NOT_AVAILABLE, RetryReason.DEAD_PEER,
    RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT, RetryReason.NO_REPLY, RetryReason.INTERRUPTED,
    RetryReason.ATTEMPT_TIMEOUT, RetryReason.TEMPORARILY_UNAVAILABLE,
})  # fmt: skip
"""Reasons that a server in distress causes."""
NO_EVIDENCE = frozenset({
    RetryReason.CIRCUIT_BREAKER_OPEN,
    # During a failover the server is healthy: it answers, and it serves again once there is a
    # primary. Counting these errors would open its circuit breaker and make the failover longer.
    RetryReason.NOT_PRIMARY,
    # The server is healthy. It limits one collection, and others can still be used.
    RetryReason.THROTTLED,
})  # fmt: skip


# No slots, because the rules read some properties many times, which are therefore cached.
@dataclass(frozen=True)
class Failure:
    """The facts of one failed attempt. Immutable."""

    error: Exception = field(repr=False)
    """The exception that pymongo raised. Not part of the repr, because its text may quote
    documents.
    """
    stage: Stage
    reason: RetryReason
    carried_txn_number: bool = False
    """The attempt was sent as a retryable write, so the server recognizes it when it is sent
    again.
    """
    session_ends: Deadline | None = None
    """When the server may end the session and forget the operation's transaction number. None if no
    attempt can have been applied.
    """
    code: int | None = None
    code_name: str | None = None
    labels: frozenset[str] = frozenset()
    server: str | None = None
    """``"host:port"`` of the selected server; None if none was selected."""
    base_backoff: float | None = None
    """Base of the back-off in seconds, if the server's overload error specifies one."""
    retry_after: float | None = None
    """Seconds to wait according to a server that throttles; None if its error has no number."""
    min_rtt: float = 0.0
    """The selected server's minimum round-trip time in seconds; 0 if unknown."""
    selection: bool = False
    """No server could be selected."""
    terminal: bool = False
    """Server selection was ended early, because waiting longer could not have helped."""
    listed_retryable: bool = True
    """MongoDB's specifications list the error as retryable."""
    transaction_over: bool = False
    """The server's reply has the label TransientTransactionError, so the server has aborted the
    transaction. If pymongo added the label itself, it proves nothing.
    """
    executed: bool = False
    """The reply shows that the command ran, even if its labels say otherwise."""
    timed_out: bool = False
    """The attempt ran out of time. The limit may be the operation's deadline, or a limit for
    selecting a server, for connecting, for the socket, or for the command.
    """
    server_answered: bool = False
    """The server answered a check while the attempt had no reply. The server lives, so the command
    takes longer than the client waits for a reply.
    """
    application_limit_ms: int | None = None
    """The application's own ``maxTimeMS``, if the server stopped the command at that limit."""
    pool_paused: bool = False
    """No connection was tried: the pool was paused by another operation's failure, until the next
    check of the server.
    """
    router_lost: bool = False
    """Nothing was sent, because the router that the transaction began on could not be reached. No
    other router can continue the transaction.
    """
    next_probe_in: float | None = None
    """Seconds until the server's circuit breaker allows a probe; None unless a breaker refused the
    attempt.
    """
    elsewhere: bool = False
    """Another server can be selected at once, and its breaker would allow the attempt."""
    unhurried_until: Deadline | None = None
    """The time until which plain pymongo may wait for a check of the server before it retries. The
    library checks sooner. None if pymongo would retry at once.
    """

    @cached_property
    def overloaded(self) -> bool:
        """True if the server wants less load: it is overloaded (one label), or it throttles this
        client.
        """
        return SYSTEM_OVERLOADED in self.labels or self.reason is RetryReason.THROTTLED

    @property
    def reports_overload(self) -> bool:
        """True if the server reports that it is overloaded, and does not throttle this client: a
        server that throttles may have executed a part of the command.
        """
        return SYSTEM_OVERLOADED in self.labels and self.reason is not RetryReason.THROTTLED

    @property
    def stopped_by_server(self) -> bool:
        """True if the server stopped the command at a time limit (code 50, MaxTimeMSExpired)."""
        return self.timed_out and self.stage is Stage.ANSWERED

    @property
    def error_name(self) -> str:
        """Class, code and code name of the error, such as ``"OperationFailure, code 6
        (HostUnreachable)"``, without any text from a server or a document.
        """
        return error_name(self.error, self.code, self.code_name)

    @property
    def session_expired(self) -> bool:
        """True if the server may have ended the session. It would then treat a retry as a new
        write.
        """
        return self.session_ends is not None and self.session_ends.expired()

    @cached_property
    def retryable_overload(self) -> bool:
        """True if the error has both overload labels and the command did not run.

        Source: Client Backpressure, "Retryable Overload Error".
        """
        return self.labels >= OVERLOADED and not self.executed

    @property
    def may_be_applied(self) -> bool:
        """True if the server may have executed the attempt, completely or in part."""
        return self.stage is not Stage.NOT_SENT and not self.retryable_overload

    @cached_property
    def rejected(self) -> bool:
        """True if the server itself rejected the command, or the handshake of its connection.

        pymongo adds the same labels to connections that could not be made. Those errors have no
        code. A server that throttles may have executed a part of the command.
        """
        return SYSTEM_OVERLOADED in self.labels and (
            self.stage is not Stage.NOT_SENT or self.code is not None
        )

    @property
    def no_writes_performed(self) -> bool:
        """True if the server reports that a retry wrote nothing. Selects the error to raise; never
        permits a retry.
        """
        return NO_WRITES_PERFORMED in self.labels


class Evidence(enum.Enum):
    """What an attempt shows about the health of its server."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    NONE = "none"
    """Counts neither as a call nor as a failure."""


def evidence(failure: Failure) -> Evidence:
    """Return what a failed attempt shows. A successful one shows ``Evidence.HEALTHY``."""
    if failure.selection or failure.reason in NO_EVIDENCE:
        return Evidence.NONE
    # The time ran out before anything was sent. The caller chose the timeout, so it shows nothing
    # about the server.
    if failure.timed_out and failure.stage is Stage.NOT_SENT:
        return Evidence.NONE
    # Network errors, timeouts and overload show that the server is in trouble.
    if failure.overloaded or failure.reason in UNHEALTHY:
        return Evidence.UNHEALTHY
    # The cause is on the client's side: a wrong certificate or password, a full pool, or a document
    # that cannot be encoded.
    if failure.stage is not Stage.ANSWERED:
        return Evidence.NONE
    # The server has answered. Errors of the application, such as a duplicate key or a missing
    # permission, show that it is healthy. But a server that reports an exceeded time limit is slow.
    return Evidence.UNHEALTHY if failure.timed_out else Evidence.HEALTHY
