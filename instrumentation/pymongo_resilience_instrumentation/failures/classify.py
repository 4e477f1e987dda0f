"""From a pymongo exception to the engine's facts: the one place that reads codes and labels.

What codes mean is the table in reasons.py. Sources: Retryable Reads ("Retryable Error"), Client
Backpressure ("Terms"), Couchbase RFC 0049.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ClientBulkWriteException,
    ConnectionFailure,
    EncryptionError,
    NetworkTimeout,
    NotPrimaryError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
    WriteConcernError,
    WriteError,
)

from pymongo_resilience.clock import SHORTEST
from pymongo_resilience.errors import CircuitBreakerOpenError, OperationTimeoutError
from pymongo_resilience.internal_errors import ForeignError, logger, wrap_foreign_error
from pymongo_resilience.rules.failure import (
    NO_WRITES_PERFORMED,
    RETRYABLE,
    RETRYABLE_WRITE,
    SYSTEM_OVERLOADED,
    TRANSIENT_TRANSACTION,
    Failure,
    RetryReason,
    Stage,
)
from pymongo_resilience_instrumentation import driver

from . import causes
from .reasons import BY_CODE, NOT_LISTED, LostConnectionError

LABELS = (
    NO_WRITES_PERFORMED,
    RETRYABLE,
    SYSTEM_OVERLOADED,
    RETRYABLE_WRITE,
    TRANSIENT_TRANSACTION,
)
OVERLOADED = frozenset({SYSTEM_OVERLOADED, RETRYABLE})
UNSENT: Mapping[type[Exception], RetryReason] = {
    ServerSelectionTimeoutError: RetryReason.NODE_NOT_AVAILABLE,
    CircuitBreakerOpenError: RetryReason.CIRCUIT_BREAKER_OPEN,
    WaitQueueTimeoutError: RetryReason.POOL_EXHAUSTED,
}
"""Errors of attempts that had no connection."""
MAX_TIME_EXPIRED = 50
MAX_BASE_MS = 1e12
"""Whatever an error asks for beyond, is the same to every limit, and no float overflows."""


class StoppedBulk(dict[str, Any]):
    """In place of a writeConcernError, at which the driver raises: no server has sent it. Its code
    is one that each driver's loop ends a bulk's command for."""

    def __init__(self, statement: Mapping[str, Any], bulk: Any, results: Sequence[Any]) -> None:
        super().__init__(code=10107)
        self.statement = statement
        """The error of the statement at which the server stopped."""
        self.results = results
        """What the server has sent of each statement of a client's bulk."""
        if results:
            self.offset, self.operations = bulk.idx_offset, bulk.ops

    def copy(self) -> StoppedBulk:
        """The driver copies it where the reply has labels, which are not the statement's."""
        return self


class Attempt(NamedTuple):
    """What the driver's loop knows about the attempt that failed."""

    reached_connection: bool
    """The command reached a connection: from there on it counts as sent."""
    carried_txn_number: bool
    server: str | None
    min_rtt: float


def failure_of(error: Exception, attempt: Attempt) -> Failure:
    """The facts; anything malformed in the server's document counts as absent."""
    unread = Failure(
        error=error,
        stage=Stage.IN_FLIGHT if attempt.reached_connection else Stage.NOT_SENT,
        reason=RetryReason.UNKNOWN,
        carried_txn_number=attempt.carried_txn_number,
        server=attempt.server,
        min_rtt=attempt.min_rtt,
    )
    try:
        return _read(unread, attempt)
    except ForeignError:
        # An error whose attributes raise: nothing is known of it, so it is not retried.
        logger.debug("an error that cannot be read: %s", type(error).__name__, exc_info=True)
        return unread


def _read(unread: Failure, attempt: Attempt) -> Failure:
    cause = _cause(unread.error)
    document = _document(cause)
    labels = _labels(cause, document)
    code = _code(document.get("code", attribute(cause, "code")))
    name = document.get("codeName")
    executed = _executed(cause, document)
    rejected = not executed and labels >= OVERLOADED
    reason = RetryReason.OVERLOADED if rejected else _reason(cause, labels, code, attempt)
    refusal = cause if reason is RetryReason.CIRCUIT_BREAKER_OPEN else None
    return replace(
        unread,
        stage=_stage(cause, document, attempt),
        reason=reason,
        code=code,
        code_name=name if isinstance(name, str) else None,
        labels=labels,
        base_backoff=_base_backoff(document),
        selection=isinstance(cause, ServerSelectionTimeoutError),
        terminal=causes.terminal_cause(cause) is not None,
        listed_retryable=refusal is None
        and not _lookup_passes(cause)
        and not _is_refused_login(code, attempt)
        and (RETRYABLE_WRITE in labels or labels >= OVERLOADED or code not in NOT_LISTED),
        transaction_over=TRANSIENT_TRANSACTION in labels
        and TRANSIENT_TRANSACTION in document.get("errorLabels", ()),
        executed=executed,
        timed_out=reason is not RetryReason.ATTEMPT_TIMEOUT and expired(cause),
        # The driver makes this error of one of its own, and every other one of the system's. A
        # failed selection has the errors of monitors as its cause.
        pool_paused=not attempt.reached_connection
        and not isinstance(cause, ServerSelectionTimeoutError)
        and type(cause.__cause__) is AutoReconnect,
        next_probe_in=None if refusal is None else attribute(refusal, "next_probe_in"),
        elsewhere=refusal is not None and bool(attribute(refusal, "elsewhere")),
    )


def ended_by_client(error: Exception) -> bool:
    """Return True if the library, or the operation's deadline, ended the making of a connection.

    pymongo labels it as overload, like each connection that cannot be made; its server has rejected
    nothing.
    """
    if isinstance(error.__cause__, LostConnectionError):
        return True
    left = driver.csot.remaining()
    return isinstance(error, NetworkTimeout) and left is not None and not left >= SHORTEST


def expired(error: Exception) -> bool:
    """Whether a timeout ended it, the driver's or the server's, wherever in the error it stands.

    Of what a server says the code alone counts (Client Side Operations Timeout, "Error
    Transformations"): a ``wtimeout`` that it has by default is none of the operation's.
    """
    if isinstance(error, EncryptionError):
        cause = attribute(error, "cause")
        return cause is not error and isinstance(cause, PyMongoError) and expired(cause)
    if isinstance(error, OperationFailure):
        cause = _cause(error)
        ended = MAX_TIME_EXPIRED in map(_code, _codes(error))
        return ended or (cause is not error and expired(cause))
    # A terminal cause is in an error of a class that pymongo raises for nothing but timeouts.
    return bool(attribute(error, "timeout")) and causes.terminal_cause(error) is None


def _codes(error: OperationFailure) -> Iterator[Any]:
    yield attribute(error, "code")
    details = attribute(error, "details")
    if not isinstance(details, Mapping):
        return
    documents = [details, details.get("error"), details.get("writeConcernError")]
    for name in ("writeErrors", "writeConcernErrors"):
        several = details.get(name)
        documents += several if isinstance(several, list) else []
    yield from (each.get("code") for each in documents if isinstance(each, Mapping))


def stage_of(error: Exception) -> Stage:
    """How far an attempt came that timed out outside of the driver's loop."""
    if isinstance(error, OperationTimeoutError):
        return error.stage
    cause = _cause(error)
    if isinstance(cause, tuple(UNSENT)) or "unsent" in vars(cause):
        return Stage.NOT_SENT
    return Stage.ANSWERED if isinstance(cause, OperationFailure) else Stage.IN_FLIGHT


def _code(args: object) -> int | None:
    """A double that is a whole number is one, as for the driver."""
    return int(args) if isinstance(args, (int, float)) and args % 1 == 0 else None


def attribute(error: BaseException | None, name: str) -> Any:
    """A driver error's attribute; None for the application's errors, or where a property raises."""
    if not isinstance(error, PyMongoError):
        return None
    try:
        return getattr(error, name, None)
    except Exception:  # noqa: BLE001 - the property may be anybody's
        return None


def _cause(error: Exception) -> Exception:
    if isinstance(error, ClientBulkWriteException):
        cause = attribute(error, "error")
        if isinstance(cause, PyMongoError):
            return cause
    return error


def _labels(error: Exception, document: Mapping[str, Any]) -> frozenset[str]:
    # The driver takes whatever it can iterate over, the keys of a document for example.
    is_list = isinstance(document.get("errorLabels", []), list)
    if not (isinstance(error, PyMongoError) and is_list):
        return frozenset()
    return wrap_foreign_error(frozenset, filter(error.has_error_label, LABELS))


def _document(error: Exception) -> Mapping[str, Any]:
    """The server's error document; of a bulk, its last write concern error."""
    if not isinstance(error, (NotPrimaryError, OperationFailure)):
        return {}
    details = attribute(error, "details")
    if not isinstance(details, Mapping):
        return {}
    if isinstance(error, (BulkWriteError, ClientBulkWriteException)):
        errors = details.get("writeConcernErrors")
        last = errors[-1] if isinstance(errors, list) and errors else None
        if isinstance(last, StoppedBulk):
            return last.statement
        return last if isinstance(last, Mapping) else {}
    return details


_AFTER_EXECUTION = (WriteError, WriteConcernError, BulkWriteError, ClientBulkWriteException)


def _executed(error: Exception, document: Mapping[str, Any]) -> bool:
    """Whether the reply shows that the command ran: ``ok: 1``, or a write concern that it waited
    for. Of a bulk write, ``error`` is that of the whole command, where there is one."""
    if isinstance(error, _AFTER_EXECUTION):
        return True
    return "writeConcernError" in document or bool(document.get("ok"))


def _stage(error: Exception, document: Mapping[str, Any], attempt: Attempt) -> Stage:
    if not attempt.reached_connection or "unsent" in vars(error):
        return Stage.NOT_SENT
    return Stage.ANSWERED if document else Stage.IN_FLIGHT


def _reason(
    error: Exception, labels: frozenset[str], code: int | None, attempt: Attempt
) -> RetryReason:
    for cls, reason in UNSENT.items():
        if isinstance(error, cls):
            # One that comes from within an attempt is another client's, a key vault's say: it
            # proves nothing about this command.
            if attempt.reached_connection and cls is not WaitQueueTimeoutError:
                return RetryReason.UNKNOWN
            given_up = causes.terminal_cause(error)
            return reason if given_up is None else causes.TERMINAL[given_up]
    if not attempt.reached_connection and _lookup_passes(error):
        return RetryReason.SOCKET_NOT_AVAILABLE
    if isinstance(error, NotPrimaryError):
        return RetryReason.NOT_PRIMARY
    if isinstance(error, ConnectionFailure):
        lost = error.__cause__
        in_flight = attempt.reached_connection
        if isinstance(lost, LostConnectionError) and (
            in_flight or lost.reason is not RetryReason.DEAD_PEER
        ):
            return lost.reason
        if in_flight:
            if isinstance(error, NetworkTimeout):
                return RetryReason.NO_REPLY
            return RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT
        if _refused_by_tls(error):
            return RetryReason.TLS_ERROR
        return RetryReason.SOCKET_NOT_AVAILABLE
    if _is_refused_login(code, attempt):
        return RetryReason.AUTHENTICATION_ERROR
    if code in BY_CODE:
        return BY_CODE[code]
    labelled = RETRYABLE_WRITE in labels or labels >= OVERLOADED
    return RetryReason.TEMPORARILY_UNAVAILABLE if labelled else RetryReason.UNKNOWN


def _is_refused_login(code: int | None, attempt: Attempt) -> bool:
    """Return whether a server ended the login of a new connection: elsewhere, some of these codes
    are about a command of the application."""
    return not attempt.reached_connection and code in causes.LOGIN_REFUSALS


def _lookup_passes(error: Exception) -> bool:
    has_deadline = driver.csot.remaining() is not None
    return driver.clients.lookup_may_succeed_later(error, has_deadline=has_deadline)


def _refused_by_tls(error: Exception) -> bool:
    """The TLS library says no; a peer that hangs up or is slow may not be about TLS at all."""
    cause = error.__cause__
    return (
        isinstance(cause, driver.clients.TLS_ERRORS)
        and not isinstance(cause, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError))
        and not isinstance(error, NetworkTimeout)
    )


def _base_backoff(document: Mapping[str, Any]) -> float | None:
    value = document.get("baseBackoffMS")
    if isinstance(value, (int, float)) and value > 0:
        return min(value, MAX_BASE_MS) / 1000
    return None
