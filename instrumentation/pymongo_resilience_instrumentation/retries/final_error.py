"""The error that the application gets after the last attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pymongo.errors import (
    ConnectionFailure,
    DuplicateKeyError,
    InvalidOperation,
    OperationFailure,
    ProtocolError,
    PyMongoError,
)

from pymongo_resilience.open_transactions import event_of
from pymongo_resilience.rules.explanations import names_lost_cursor, why_not_retried
from pymongo_resilience.rules.failure import TRANSIENT_TRANSACTION, Failure, RetryReason, Stage
from pymongo_resilience.rules.retry_rules import Rule, is_explained
from pymongo_resilience.rules.retry_state import Kind, RetryState
from pymongo_resilience.rules.strategy import follows_specification
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.clients.client_registry import closed_text
from pymongo_resilience_instrumentation.failures.error_texts import (
    MAY_BE_ITS_OWN,
    Origin,
    state_origin,
)
from pymongo_resilience_instrumentation.failures.reasons import RELAYED
from pymongo_resilience_instrumentation.public_operations import ABORT
from pymongo_resilience_instrumentation.timeouts import precedence
from pymongo_resilience_instrumentation.timeouts.timeout_errors import elapsed, timed_out

if TYPE_CHECKING:
    from .after_failure import Retries


def final_error(retries: Retries, failure: Failure, rule: Rule) -> Exception:
    """Return the error that the application gets after the last attempt.

    Its text contains the reason why the library does not retry.

    Args:
        retries: The retries.
        failure: The last failure.
        rule: The rule that declined a retry.
    """
    # Do not use the operation's client: a task that runs this may outlive the operation in
    # which it was started.
    client, state, attempts = retries.client, retries.state, retries.attempts
    clients = retries.runtime.clients
    if failure.stage is Stage.NOT_SENT and clients.closed(client):
        closed = failure.error
        if not isinstance(closed, InvalidOperation):
            # pymongo's error depends on which wait was ended by ``close()``. Raise the same one in
            # all cases.
            closed = InvalidOperation(closed_text(client))
            closed.__cause__ = failure.error
        return closed
    if attempts.command_name() == ABORT:
        transactions, event = clients.of(client).open_transactions, event_of(failure)
        driver.sessions.note_end(transactions, attempts.session, event, attempts.connection)
    raised = error_to_raise(retries.last, failure)
    error = raised.error
    if not isinstance(error, PyMongoError):
        return error
    if raised.selection and raised.stage is Stage.NOT_SENT:
        from pymongo_resilience_instrumentation.selection import selection_explained  # noqa: PLC0415 - rarely needed

        # pymongo quotes the servers' errors in its text but does not attach them.
        error.__cause__ = selection_explained.original_error(client)
    reasons = state.reasons
    origin = Origin(raised.server, raised.stage, len(reasons), reasons[:-1])
    # The deadline ended the operation, so the application gets OperationTimeoutError.
    if rule is Rule.DEADLINE and state.deadline is not None:
        return timed_out(
            error,
            origin,
            timeout_s=state.deadline.timeout,
            elapsed_s=elapsed(retries.operation),
            name=state.method or state.name,
            advice=precedence.advice(retries.operation),
        )
    if _ends_the_transaction(raised, state):
        driver.sessions.label_transient(error)
    why = why_not_retried(rule, state, raised)
    if isinstance(error, DuplicateKeyError) and attempts.may_be_applied:
        why += f"; {MAY_BE_ITS_OWN}"
    # The error of a lost cursor alone does not tell how to continue the query.
    explained = is_explained(rule, raised.reason) or names_lost_cursor(state, raised)
    state_origin(error, origin, rule, why, explained=explained)
    return error


def _ends_the_transaction(failure: Failure, state: RetryState) -> bool:
    """Return True if the whole transaction may be retried, because a statement failed for a
    temporary reason and nothing can have been committed.

    Routers omit the label TransientTransactionError, for example with code 133.
    """
    return (
        state.in_transaction
        and state.kind is not Kind.TRANSACTION_END
        and failure.stage is Stage.ANSWERED
        and failure.code in RELAYED
        and not failure.overloaded
        and not follows_specification(state)
    )


def error_to_raise(earlier: Failure | None, failure: Failure) -> Failure:
    """Return the failure whose error is raised: the newer one, unless the earlier one is more
    informative. The earlier error then references the newer one.

    Source: Retryable Reads and Retryable Writes, "If a retry attempt fails".
    """
    if earlier is None or earlier.error is failure.error:
        return failure
    if TRANSIENT_TRANSACTION in failure.labels - earlier.labels:
        # With this label, with_transaction retries the whole transaction.
        return failure
    if failure.reason is RetryReason.CIRCUIT_BREAKER_OPEN:
        # The error of an attempt is more informative than that of a breaker.
        is_less_informative = earlier.reason is not RetryReason.CIRCUIT_BREAKER_OPEN
    else:
        # Errors of other classes, such as that of a full pool, do not show what happened on a
        # server.
        of_an_attempt = isinstance(
            failure.error, (ConnectionFailure, OperationFailure, ProtocolError)
        )
        is_less_informative = (
            failure.no_writes_performed
            or failure.selection
            or failure.pool_paused
            or (failure.timed_out and failure.stage is Stage.NOT_SENT)
            or (isinstance(failure.error, PyMongoError) and not of_an_attempt)
        )
    if not is_less_informative:
        return failure
    if failure.no_writes_performed:
        # The newer error is the server's reply to the retry, so it helps to explain the earlier
        # failure. Other errors are only the context.
        earlier.error.__cause__ = failure.error
    else:
        earlier.error.__context__ = failure.error
    return earlier
