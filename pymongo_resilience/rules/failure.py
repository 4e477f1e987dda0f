"""The facts of one failed attempt, and the reasons for which an attempt may be repeated.

Nothing here knows the driver: the instrumentation states the facts, the engine decides.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from pymongo_resilience.clock import Deadline
from pymongo_resilience.redaction import error_name

SYSTEM_OVERLOADED = "SystemOverloadedError"
RETRYABLE = "RetryableError"
RETRYABLE_WRITE = "RetryableWriteError"
TRANSIENT_TRANSACTION = "TransientTransactionError"
NO_WRITES_PERFORMED = "NoWritesPerformed"


class Stage(enum.StrEnum):
    """How far an attempt came (Couchbase RFC 0049, "Introduction").

    When in doubt, an attempt counts as in flight.
    """

    NOT_SENT = "not_sent"
    """No byte of the command left: selecting a server or getting a connection failed."""
    IN_FLIGHT = "in_flight"
    """The command may have reached the server; its effect is unknown."""
    ANSWERED = "answered"
    """The server replied with an error."""


class RetryReason(enum.StrEnum):
    """Why an attempt failed, one member per cause (Couchbase RFC 0049, "RetryReason")."""

    UNKNOWN = "unknown"
    SOCKET_NOT_AVAILABLE = "socket_not_available"
    """No connection: connecting or the handshake failed, or the pool was cleared."""
    NODE_NOT_AVAILABLE = "node_not_available"
    """No server could be selected. Reported, never retried."""
    POOL_EXHAUSTED = "pool_exhausted"
    """No connection of the pool became free in time. Retried as by pymongo: a read, once."""
    NOT_PRIMARY = "not_primary"
    """The server is no primary, is recovering or is shutting down."""
    OVERLOADED = "overloaded"
    """Both overload labels: rejected at the door, whatever the command (Client Backpressure)."""
    TEMPORARILY_UNAVAILABLE = "temporarily_unavailable"
    """The server could not do it just now: a network error behind it, an exceeded time limit."""
    WRITE_CONFLICT = "write_conflict"
    LOCK_TIMEOUT = "lock_timeout"
    SOCKET_CLOSED_WHILE_IN_FLIGHT = "socket_closed_while_in_flight"
    NO_REPLY = "no_reply"
    """It was sent, and the driver's own timeout ended the wait for the answer."""
    DEAD_PEER = "dead_peer"
    """The server's host acknowledged nothing: the path to it drops packets, or it is gone."""
    INTERRUPTED = "interrupted"
    """The library gave the attempt up: its server is no longer the primary, and does not answer."""
    ATTEMPT_TIMEOUT = "attempt_timeout"
    """It was sent and not answered within ``attempt_timeout_ms``."""
    CURSOR_LOST = "cursor_lost"
    """The server has closed the cursor of a resumable find."""
    CIRCUIT_BREAKER_OPEN = "circuit_breaker_open"
    """The server's circuit breaker is open: nothing was sent."""
    AUTHENTICATION_ERROR = "authentication_error"
    TLS_ERROR = "tls_error"
    """The TLS library refused the connection: a certificate, a version, a peer without TLS."""
    ACCESS_ERROR = "access_error"

    @property
    def allows_non_idempotent_retry(self) -> bool:
        """The cause itself proves that nothing happened on the server."""
        return self in NOTHING_HAPPENED

    @property
    def always_retry(self) -> bool:
        """The cause is never the application's concern; repeated with the controlled back-off,
        without asking the strategy (``MongoDB`` is asked)."""
        return self is RetryReason.NOT_PRIMARY


NOTHING_HAPPENED = frozenset({
    RetryReason.SOCKET_NOT_AVAILABLE, RetryReason.NODE_NOT_AVAILABLE, RetryReason.OVERLOADED,
    RetryReason.CIRCUIT_BREAKER_OPEN,
})  # fmt: skip
UNHEALTHY = frozenset({
    RetryReason.OVERLOADED, RetryReason.SOCKET_NOT_AVAILABLE, RetryReason.DEAD_PEER,
    RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT, RetryReason.NO_REPLY, RetryReason.INTERRUPTED,
    RetryReason.ATTEMPT_TIMEOUT, RetryReason.TEMPORARILY_UNAVAILABLE,
})  # fmt: skip
"""What a server in distress causes."""
NO_EVIDENCE = frozenset({
    RetryReason.CIRCUIT_BREAKER_OPEN,
    # In a failover the server is healthy: it answers, and serves again once there is a primary.
    # Excluding it would make the failover longer.
    RetryReason.NOT_PRIMARY,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Failure:
    """The facts of one failed attempt. Immutable."""

    error: Exception = field(repr=False)
    """The exception as the driver raised it. Not shown: its text may quote documents."""
    stage: Stage
    reason: RetryReason
    carried_txn_number: bool = False
    """The attempt went out as a retryable write: the server recognises a repetition."""
    session_ends: Deadline | None = None
    """Until then the server knows what was sent with the operation's transaction number, and may be
    applied; None where nothing was."""
    code: int | None = None
    code_name: str | None = None
    labels: frozenset[str] = frozenset()
    server: str | None = None
    """``"host:port"`` of the selected server; None when none was selected."""
    base_backoff: float | None = None
    """Seconds, where the server's overload error names a base for the back-off."""
    min_rtt: float = 0.0
    """The selected server's minimum round-trip time in seconds; 0 while unknown."""
    selection: bool = False
    """No server could be selected."""
    terminal: bool = False
    """A selection was given up, since waiting could not have helped."""
    listed_retryable: bool = True
    """MongoDB's specifications list the error as one to retry."""
    transaction_over: bool = False
    """The server's own reply has the label TransientTransactionError: it has aborted the
    transaction. What the driver labels so by itself is no proof of that."""
    executed: bool = False
    """The reply shows that the command ran, whatever its labels say."""
    timed_out: bool = False
    """The attempt ran out of time: that of the operation, or a limit of its own for a server, a
    connection, a socket, or the command."""
    application_limit_ms: int | None = None
    """The application's own ``maxTimeMS``, if that is the limit at which the server stopped."""
    pool_paused: bool = False
    """Nothing was tried: a failure of another operation has paused the pool until its server was
    checked."""
    router_lost: bool = False
    """Nothing was sent, since the router that began the operation's transaction, and alone knows
    it, could not be reached."""
    next_probe_in: float | None = None
    """Seconds for which the server's circuit breaker stays open; None where none refused."""
    elsewhere: bool = False
    """Another server, whose breaker would let the attempt through, can be selected at once."""
    unhurried_until: Deadline | None = None
    """Until then the driver alone might still wait for its next check of the server, which the
    library makes sooner; None if the driver would retry at once."""

    @property
    def overloaded(self) -> bool:
        """The server says that it is overloaded (one label)."""
        return SYSTEM_OVERLOADED in self.labels

    @property
    def stopped_by_server(self) -> bool:
        """The server stopped the command at a time limit (code 50, MaxTimeMSExpired)."""
        return self.timed_out and self.stage is Stage.ANSWERED

    @property
    def error_name(self) -> str:
        """Class, code and code name of the error, for example ``"OperationFailure, code 6
        (HostUnreachable)"``: no text of a server or a document."""
        return error_name(self.error, self.code, self.code_name)

    @property
    def session_expired(self) -> bool:
        """The server may have ended the session of what may be applied: it would take a repetition
        for a first attempt."""
        return self.session_ends is not None and self.session_ends.expired()

    @property
    def retryable_overload(self) -> bool:
        """Client Backpressure, "Retryable Overload Error": both labels, and nothing executed."""
        return self.overloaded and RETRYABLE in self.labels and not self.executed

    @property
    def rejected(self) -> bool:
        """The server itself rejected the command, or the handshake of its connection.

        The driver labels connections that cannot be made in the same way. They have no code.
        """
        return self.overloaded and (self.stage is not Stage.NOT_SENT or self.code is not None)

    @property
    def no_writes_performed(self) -> bool:
        """Chooses which error is raised; never permits a retry."""
        return NO_WRITES_PERFORMED in self.labels


class Evidence(enum.Enum):
    """What one attempt shows about the health of its server."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    NONE = "none"
    """Counts neither as a call nor as a failure."""


def evidence(failure: Failure) -> Evidence:
    """What a failed attempt shows; a successful one is ``Evidence.HEALTHY``. Pure.

    Network errors, timeouts and overload: unhealthy. An error of the application's own, a duplicate
    key or a missing right: healthy, since the server answered.
    """
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
