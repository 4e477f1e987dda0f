"""Connects pymongo's errors with the retry rules.

Collects the facts of each failed attempt for the rules, and chooses and completes the final error
for the application.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pymongo import common
from pymongo.errors import (
    BulkWriteError,
    ClientBulkWriteException,
    ConnectionFailure,
    DuplicateKeyError,
    InvalidOperation,
    OperationFailure,
    ProtocolError,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
)

from pymongo_resilience.clock import Deadline
from pymongo_resilience.open_transactions import event_of
from pymongo_resilience.policies.policy import shorter
from pymongo_resilience.rules.explanations import names_lost_cursor, why_not_retried
from pymongo_resilience.rules.failure import TRANSIENT_TRANSACTION, Failure, RetryReason, Stage
from pymongo_resilience.rules.retry_rules import Rule, is_explained
from pymongo_resilience.rules.retry_state import Kind, RetryState
from pymongo_resilience.rules.strategy import follows_specification
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.clients.client_registry import closed_text
from pymongo_resilience_instrumentation.failures import classify
from pymongo_resilience_instrumentation.failures.causes import terminal_cause
from pymongo_resilience_instrumentation.failures.error_texts import (
    MAY_BE_ITS_OWN,
    Origin,
    state_origin,
)
from pymongo_resilience_instrumentation.failures.reasons import RELAYED
from pymongo_resilience_instrumentation.public_operations import ABORT
from pymongo_resilience_instrumentation.timeouts import bounded_waits, command_limits, precedence
from pymongo_resilience_instrumentation.timeouts.timeout_errors import elapsed, timed_out

from . import stopped_bulks

if TYPE_CHECKING:
    from .retry_loop import RetryLoop

CLOSING = 0.5
"""Limits in seconds for endSessions after its first failure: for all retries together, and for the
reply to each of them. They are short because ``close()`` waits for endSessions.
"""


def retry_state_of(loop: RetryLoop) -> RetryState:
    """Return the operation's state for the retry rules.

    Another thread may call this function, so it must not read context variables.
    """
    operation, runtime, client = loop.operation, loop.runtime, loop.client
    call, policy = operation.call, operation.policy(runtime.rules)
    kind = Kind.READ if loop.hooks is not None else loop.attempts.kind()
    method = call.method
    if kind is Kind.GET_MORE and call.cursor_class is None and method:
        # The method also fetches the later batches of its own cursor, so show that this is one.
        method += "/getMore"
    return RetryState(
        name=call.name,
        namespace=call.namespace,
        kind=kind,
        strategy=runtime.rules.strategy_of(policy),
        retries_enabled=loop.attempts.retries_enabled(kind, declared=bool(policy.idempotent)),
        in_transaction=loop.attempts.in_transaction(),
        acknowledged=call.is_acknowledged,
        declared_idempotent=bool(policy.idempotent),
        max_retries=driver.clients.max_retries(client),
        budget=runtime.limits.of(client).budget,
        once=loop.attempts.command_name() == ABORT,
        method=method,
        data={} if policy.data is None else policy.data,
    )


def deadlines(loop: RetryLoop) -> tuple[Deadline | None, Deadline | None]:
    """Return the operation's deadline and, if it has none, the end of its retries.

    At least one of the two is None. Must be called in the operation's context.
    """
    operation, clock, timeout = (
        loop.operation,
        loop.runtime.executor.clock,
        driver.csot.active_timeout(),
    )
    # Read this clock before pymongo's. Otherwise, the deadline of the rules could be later than
    # pymongo's, and they would allow an attempt that pymongo refuses.
    now, remaining = clock.now(), driver.csot.remaining()
    if operation.name == driver.attempts.END_SESSIONS:
        # ``close()`` sends endSessions and waits for it, so it gets only a short time.
        command_limits.limit_attempts(operation.limits, CLOSING)
        return None, Deadline.after(
            clock, CLOSING if remaining is None else min(CLOSING, remaining)
        )
    if timeout is None:
        return None, None
    if remaining is None:
        return None, Deadline.after(clock, loop.attempts.server_selection_timeout)
    # With nested timeouts, pymongo keeps the earlier deadline but reports the inner duration.
    return Deadline(clock, now + remaining, shorter(timeout, operation.limits.timeout or 0)), None


def classify_error(loop: RetryLoop, error: Exception, state: RetryState) -> Failure:
    """Return the facts of the attempt that ended with ``error``.

    Corrects the error's text and labels if pymongo's are misleading.
    """
    unselected = isinstance(error, ServerSelectionTimeoutError) and loop.connection is None
    if isinstance(error, ServerSelectionTimeoutError) and terminal_cause(error) is not None:
        # pymongo labels every failed selection in a transaction as transient, and with_transaction
        # would retry it for two minutes. Waiting cannot help here, so remove the label.
        driver.selection.forget_transient(error)
    elif unselected:
        from pymongo_resilience_instrumentation.selection import selection_explained  # noqa: PLC0415 - rarely needed

        selection_explained.explain(error, loop.attempts)
    elif isinstance(error, WaitQueueTimeoutError):
        bounded_waits.name_configured_limit(error, loop.operation)
    elif (
        loop.connection is None
        and isinstance(error, PyMongoError)
        and classify.ended_by_client(error)
    ):
        # pymongo adds the overload labels to the error of every connection that could not be made.
        # But here the library or the deadline ended the connection, and the server rejected
        # nothing.
        driver.selection.forget_overload(error)
    failure = classify.failure_of(
        error,
        classify.Attempt(
            reached_connection=loop.connection is not None,
            carried_txn_number=loop.attempts.carries_txn_number(),
            # If no server was selected, pymongo's loop still holds the previous attempt's server.
            server=None if unselected else loop.attempts.server_address(),
            min_rtt=driver.csot.min_rtt(),
        ),
    )
    if failure.stage is Stage.NOT_SENT:
        waited_for_router = unselected and loop.router_wait_ends is not None
        if waited_for_router or loop.attempts.cannot_be_pinned():
            failure = replace(failure, router_lost=True)
    failure = loop.txn_number.known(loop.attempts, failure, state, loop.began)
    if state.time_limit is None:
        failure = replace(failure, unhurried_until=when_pymongo_would_retry(loop, failure))
    if failure.reason is RetryReason.NO_REPLY and is_merely_slow(loop, error):
        failure = replace(failure, server_answered=True)
    if isinstance(error, (BulkWriteError, ClientBulkWriteException)):
        stopped_bulks.show_as_answered(error)
    if failure.timed_out and failure.code is not None:
        failure = command_limits.with_limit(loop.operation, failure, state)
    return failure if loop.hooks is None else loop.hooks.reclassify(loop, failure, state)


def is_merely_slow(loop: RetryLoop, error: Exception) -> bool:
    """Return True if the server is alive and has received the attempt that got no reply."""
    if loop.sign_of_life is None or not loop.sign_of_life.is_seen():
        return False
    cause = error.__cause__
    return not isinstance(cause, driver.connections.SocketTimeoutError) or cause.arrived


SERVER_LOST = frozenset({
    RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT, RetryReason.SOCKET_NOT_AVAILABLE,
    RetryReason.DEAD_PEER, RetryReason.INTERRUPTED, RetryReason.NOT_PRIMARY,
})  # fmt: skip
"""After these errors, pymongo checks the server before its single retry. After all other errors,
pymongo and the library retry at once.
"""
WAITS = 2
"""How many checks pymongo alone may wait for: one before its first attempt, if another operation
has lost the server, and one before its retry.
"""
LATE = 1.2
"""How late a check may be, as a multiple of its interval."""


def when_pymongo_would_retry(loop: RetryLoop, failure: Failure) -> Deadline | None:
    """Return the time until which plain pymongo might wait for the failed attempt's server before
    it retries, or None if it would not wait.
    """
    if failure.reason not in SERVER_LOST:
        return None
    clock = loop.runtime.executor.clock
    seconds = common.MIN_HEARTBEAT_INTERVAL * WAITS * LATE
    if failure.reason is RetryReason.NOT_PRIMARY and loop.server is not None:
        topology = driver.clients.topology_of(loop.client)
        address = driver.selection.address(loop.server)
        if (hurried_checks := driver.monitors.check_intervals_at(topology, address)) is not None:
            checked_by = hurried_checks.last + driver.monitors.max_wait(topology)
            seconds = max(seconds, checked_by - driver.csot.now())
    return Deadline.after(clock, seconds)


def final_error(loop: RetryLoop, failure: Failure, rule: Rule, state: RetryState) -> Exception:
    """Return the error that the application gets after the last attempt.

    Its text contains the reason why the library does not retry.

    Args:
        loop: The loop.
        failure: The last failure.
        rule: The rule that declined a retry.
        state: The operation's state.
    """
    # Do not use the operation's client: a task that runs this loop may outlive the operation in
    # which it was started.
    client = loop.client
    clients = loop.runtime.clients
    if failure.stage is Stage.NOT_SENT and clients.closed(client):
        closed = failure.error
        if not isinstance(closed, InvalidOperation):
            # pymongo's error depends on which wait was ended by ``close()``. Raise the same one in
            # all cases.
            closed = InvalidOperation(closed_text(client))
            closed.__cause__ = failure.error
        return closed
    if loop.attempts.command_name() == ABORT:
        transactions, event = clients.of(client).open_transactions, event_of(failure)
        driver.sessions.note_end(transactions, loop.session, event, loop.connection)
    raised = error_to_raise(loop.last, failure)
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
            elapsed_s=elapsed(loop.operation),
            name=state.method or state.name,
            advice=precedence.advice(loop.operation),
        )
    if _ends_the_transaction(raised, state):
        driver.sessions.label_transient(error)
    why = why_not_retried(rule, state, raised)
    if isinstance(error, DuplicateKeyError) and loop.may_be_applied:
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
