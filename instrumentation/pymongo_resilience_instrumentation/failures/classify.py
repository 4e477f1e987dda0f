"""Converts an exception of pymongo to the engine's facts, from its class, codes, and labels.

The table in reasons.py defines what codes mean for a retry. Some other modules read codes or labels
for their own purposes, such as causes.py for logins and error_texts.py for duplicate keys.

Sources: Retryable Reads ("Retryable Error"), Client Backpressure ("Terms"), Couchbase RFC 0049.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ClientBulkWriteException,
    ConfigurationError,
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
    MAX_TIME_EXPIRED,
    NO_WRITES_PERFORMED,
    OVERLOADED,
    RETRYABLE,
    RETRYABLE_WRITE,
    SYSTEM_OVERLOADED,
    TRANSIENT_TRANSACTION,
    Failure,
    RetryReason,
    Stage,
)
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.driver.attempts import AttemptFacts

from . import causes, engines
from .reasons import BY_CODE, NOT_LISTED, LostConnectionError

LABELS = (
    NO_WRITES_PERFORMED,
    RETRYABLE,
    SYSTEM_OVERLOADED,
    RETRYABLE_WRITE,
    TRANSIENT_TRANSACTION,
)
UNSENT: Mapping[type[Exception], RetryReason] = {
    ServerSelectionTimeoutError: RetryReason.NODE_NOT_AVAILABLE,
    CircuitBreakerOpenError: RetryReason.CIRCUIT_BREAKER_OPEN,
    WaitQueueTimeoutError: RetryReason.POOL_EXHAUSTED,
}
"""Errors of attempts that never had a connection."""
MAX_BASE_MS = 1e12
"""Upper bound for a server's base back-off. Every limit is far below it, and no float overflows."""


class StoppedBulk(dict[str, Any]):
    """A replacement for a writeConcernError that makes pymongo end the command of a bulk write.

    No server sent it. Its code is one for which every pymongo retry loop ends the command.
    """

    def __init__(self, statement: Mapping[str, Any], bulk: Any, results: Sequence[Any]) -> None:
        super().__init__(code=10107)
        self.statement = statement
        """The error of the statement at which the server stopped."""
        self.results = results
        """The server's results of the statements of a client bulk write."""
        if results:
            self.offset, self.operations = bulk.idx_offset, bulk.ops

    def copy(self) -> StoppedBulk:
        """Return this object. pymongo copies it to add the labels of the reply, which do not belong
        here.
        """
        return self


SENT = AttemptFacts(reached_connection=True, carried_txn_number=False, server=None, min_rtt=0.0)
"""An attempt outside of the retry loop. Its command counts as sent."""


def failure_of(error: Exception, facts: AttemptFacts) -> Failure:
    """Return the facts of a failed attempt. Malformed parts of the server's document are
    ignored.
    """
    unread = Failure(
        error=error,
        stage=Stage.IN_FLIGHT if facts.reached_connection else Stage.NOT_SENT,
        reason=RetryReason.UNKNOWN,
        carried_txn_number=facts.carried_txn_number,
        server=facts.server,
        min_rtt=facts.min_rtt,
    )
    try:
        return _read(unread, facts)
    except ForeignError:
        # The error's own attributes raise. Nothing is known about it, so it is not retried.
        logger.debug(
            "cannot read the attributes of a %s, so it is not retried",
            type(error).__name__,
            exc_info=True,
        )
        return unread


def _read(unread: Failure, facts: AttemptFacts) -> Failure:
    # The error of a client bulk write only wraps the error that matters.
    cause = _cause(unread.error)
    document = _document(cause)
    labels = _labels(cause, document)
    code = _code(document.get("code", attribute(cause, "code")))
    name = document.get("codeName")
    executed = _executed(cause, document)
    # Both labels mean that the server rejected the command, unless its reply shows that it ran.
    rejected = not executed and labels >= OVERLOADED
    reason = RetryReason.OVERLOADED if rejected else _reason(cause, labels, code, facts)
    if document and engines.refuses_txn_numbers(document, carried=facts.carried_txn_number):
        reason = RetryReason.NO_RETRYABLE_WRITES
    elif reason is RetryReason.THROTTLED and not engines.is_throttled(document):
        reason = RetryReason.UNKNOWN
    refusal = cause if reason is RetryReason.CIRCUIT_BREAKER_OPEN else None
    return replace(
        unread,
        stage=_stage(cause, document, facts),
        reason=reason,
        code=code,
        code_name=name if isinstance(name, str) else None,
        labels=labels,
        base_backoff=_base_backoff(document),
        retry_after=engines.retry_after(document) if reason is RetryReason.THROTTLED else None,
        selection=isinstance(cause, ServerSelectionTimeoutError),
        terminal=causes.terminal_cause(cause) is not None,
        listed_retryable=refusal is None
        and not _lookup_passes(cause)
        and not _is_refused_login(code, facts)
        and (RETRYABLE_WRITE in labels or labels >= OVERLOADED or code not in NOT_LISTED),
        transaction_over=TRANSIENT_TRANSACTION in labels
        and TRANSIENT_TRANSACTION in document.get("errorLabels", ()),
        executed=executed,
        # A timeout that the library itself chose for the attempt is not the operation's.
        timed_out=reason is not RetryReason.ATTEMPT_TIMEOUT and expired(cause),
        # pymongo raises a plain AutoReconnect as the cause only here; all other causes come from
        # the operating system. A failed selection has the errors of monitors as its cause.
        pool_paused=not facts.reached_connection
        and not isinstance(cause, ServerSelectionTimeoutError)
        and type(cause.__cause__) is AutoReconnect,
        next_probe_in=None if refusal is None else attribute(refusal, "next_probe_in"),
        elsewhere=refusal is not None and bool(attribute(refusal, "elsewhere")),
    )


def ended_by_client(error: Exception) -> bool:
    """Return True if the library or the operation's deadline ended the creation of a connection.

    pymongo labels that as overload, like every connection that could not be made, although the
    server rejected nothing.
    """
    if isinstance(error.__cause__, LostConnectionError):
        return True
    left = driver.csot.remaining()
    return isinstance(error, NetworkTimeout) and left is not None and not left >= SHORTEST


def expired(error: Exception) -> bool:
    """Return True if a timeout of pymongo or the server ended the operation, wherever it is in the
    error.
    """
    if isinstance(error, EncryptionError):
        cause = attribute(error, "cause")
        # Client-side encryption wraps the error of its own commands.
        return cause is not error and isinstance(cause, PyMongoError) and expired(cause)
    if isinstance(error, OperationFailure):
        cause = _cause(error)
        # Only the code counts (Client Side Operations Timeout, "Error Transformations"): a
        # ``wtimeout`` that the server applies by default is not the operation's timeout.
        has_expired = MAX_TIME_EXPIRED in map(_code, _codes(error))
        return has_expired or (cause is not error and expired(cause))
    # Errors with a terminal cause have a class that pymongo raises only for timeouts.
    return bool(attribute(error, "timeout")) and causes.terminal_cause(error) is None


def _codes(error: OperationFailure) -> Iterator[Any]:
    yield attribute(error, "code")
    details = attribute(error, "details")
    if not isinstance(details, Mapping):
        return
    # A write's timeout may be in the error of one of its statements, or in its write concern error.
    documents = [details, details.get("error"), details.get("writeConcernError")]
    for name in ("writeErrors", "writeConcernErrors"):
        entries = details.get(name)
        documents += entries if isinstance(entries, list) else []
    yield from (document.get("code") for document in documents if isinstance(document, Mapping))


def stage_of(error: Exception) -> Stage:
    """Return how far an attempt got that timed out outside of pymongo's retry loop."""
    if isinstance(error, OperationTimeoutError):
        return error.stage
    cause = _cause(error)
    if isinstance(cause, tuple(UNSENT)) or "unsent" in vars(cause):
        return Stage.NOT_SENT
    return Stage.ANSWERED if isinstance(cause, OperationFailure) else Stage.IN_FLIGHT


def _code(value: object) -> int | None:
    """Return the code as an integer, or None. As in pymongo, a double without fraction is
    accepted.
    """
    return int(value) if isinstance(value, (int, float)) and value % 1 == 0 else None


def attribute(error: BaseException | None, name: str) -> Any:
    """Return an attribute of a pymongo error; None for other errors, or if the property raises."""
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
    # pymongo accepts anything that it can iterate over, such as the keys of a document.
    is_list = isinstance(document.get("errorLabels", []), list)
    if not (isinstance(error, PyMongoError) and is_list):
        return frozenset()
    # An application may subclass pymongo's errors, so this may call foreign code.
    return wrap_foreign_error(frozenset, filter(error.has_error_label, LABELS))


def _document(error: Exception) -> Mapping[str, Any]:
    """Return the server's error document; for a bulk write, the last write concern error."""
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
    """Return True if the reply shows that the command ran: ``ok: 1``, or a write concern error.

    For a bulk write, ``error`` is the error of the whole command, if there is one.
    """
    # pymongo raises these only for a reply to a command that ran.
    if isinstance(error, _AFTER_EXECUTION):
        return True
    return "writeConcernError" in document or bool(document.get("ok"))


def _stage(error: Exception, document: Mapping[str, Any], facts: AttemptFacts) -> Stage:
    if not facts.reached_connection or "unsent" in vars(error):
        return Stage.NOT_SENT
    return Stage.ANSWERED if document else Stage.IN_FLIGHT


def _reason(
    error: Exception, labels: frozenset[str], code: int | None, facts: AttemptFacts
) -> RetryReason:
    for cls, reason in UNSENT.items():
        if isinstance(error, cls):
            # An error from within an attempt belongs to another client, such as the one for a key
            # vault. It proves nothing about this command.
            if facts.reached_connection and cls is not WaitQueueTimeoutError:
                return RetryReason.UNKNOWN
            terminal = causes.terminal_cause(error)
            return reason if terminal is None else causes.TERMINAL[terminal]
    if not facts.reached_connection and _lookup_passes(error):
        return RetryReason.SOCKET_NOT_AVAILABLE
    if isinstance(error, NotPrimaryError):
        return RetryReason.NOT_PRIMARY
    if isinstance(error, ConnectionFailure):
        lost = error.__cause__
        in_flight = facts.reached_connection
        # A dead peer that is noticed before the attempt had its connection proves that nothing was
        # sent, so it is a connection failure like any other.
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
    if _is_refused_login(code, facts):
        return RetryReason.AUTHENTICATION_ERROR
    if code in BY_CODE:
        return BY_CODE[code]
    is_labeled = RETRYABLE_WRITE in labels or labels >= OVERLOADED
    return RetryReason.TEMPORARILY_UNAVAILABLE if is_labeled else RetryReason.UNKNOWN


def _is_refused_login(code: int | None, facts: AttemptFacts) -> bool:
    """Return True if the server refused the login of a new connection.

    After the login, some of these codes refer to a command of the application.
    """
    return not facts.reached_connection and code in causes.LOGIN_REFUSALS


def _lookup_passes(error: Exception) -> bool:
    """Return True if the lookup of a mongodb+srv URI failed, and may succeed later."""
    if not isinstance(error, ConfigurationError):
        return False
    has_deadline = driver.csot.remaining() is not None
    return driver.clients.lookup_may_succeed_later(error, has_deadline=has_deadline)


def _refused_by_tls(error: Exception) -> bool:
    """Return True if the TLS library refused the connection.

    If the server closes the connection or is slow, the problem may not be TLS.
    """
    # The TLS library's own error is the cause of pymongo's. If the server closes the connection,
    # the error has one of the excluded classes.
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
