"""What the application gets once no attempt follows: which error, and what is added to it."""

from __future__ import annotations

from typing import Any

from pymongo.errors import (
    AutoReconnect,
    ConnectionFailure,
    InvalidOperation,
    OperationFailure,
    ProtocolError,
    PyMongoError,
    WaitQueueTimeoutError,
)

from pymongo_resilience.rules.explanations import why_not_repeated
from pymongo_resilience.rules.failure import Failure, RetryReason, Stage
from pymongo_resilience.rules.retried_operation import Operation
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.clients import background_work
from pymongo_resilience_instrumentation.clients.by_client import CLOSED
from pymongo_resilience_instrumentation.failures.error_texts import Origin, state_origin
from pymongo_resilience_instrumentation.operations import ABORT
from pymongo_resilience_instrumentation.timeouts import precedence
from pymongo_resilience_instrumentation.timeouts.timeout_errors import elapsed, timed_out


def final_error(loop: Any, failure: Failure, rule: Rule, operation: Operation) -> Exception:
    """A method of ``RetryLoop``."""
    # The loop's own client: a task may outlive the call that it was started in.
    client = driver.retry_loop.client(loop)
    if failure.stage is Stage.NOT_SENT and loop.runtime.closings.closed(client):
        closed = failure.error
        if not isinstance(closed, InvalidOperation):
            # The driver's own error, whatever the wait was for that its client's close() ended.
            closed = InvalidOperation(CLOSED)
            closed.__cause__ = failure.error
        return closed
    name = driver.retry_loop.operation_name(loop)
    if name == ABORT and (failure.stage is not Stage.ANSWERED or failure.overloaded):
        session = driver.retry_loop.session(loop)
        background_work.leave_open(client, driver.sessions.open_transaction(session))
    raised = _chosen(loop.last, failure)
    error = raised.error
    if not isinstance(error, PyMongoError):
        return error
    reasons = operation.reasons
    origin = Origin(raised.server, raised.stage, len(reasons), reasons[:-1])
    if rule is Rule.DEADLINE and operation.deadline is not None:
        return timed_out(
            error,
            origin,
            timeout_s=operation.deadline.timeout,
            elapsed_s=elapsed(loop.call),
            name=operation.method or operation.name,
            advice=precedence.advice(loop.call),
        )
    state_origin(error, origin, rule, why_not_repeated(rule, operation, raised))
    loop.call.history.final_error = error
    return error


def _chosen(before: Failure | None, failure: Failure) -> Failure:
    """Whose error is raised. Retryable Reads and Writes: the newer, but for those that say less
    than the earlier one."""
    if before is None or before.error is failure.error:
        return failure
    if failure.repeats_transaction and not before.repeats_transaction:
        # The runner of the transaction must see that it can be repeated.
        return failure
    if failure.reason is RetryReason.CIRCUIT_BREAKER_OPEN:
        # An attempt that was made, and failed, says more.
        says_less = before.reason is not RetryReason.CIRCUIT_BREAKER_OPEN
    else:
        out_of_time = failure.timed_out and failure.stage is Stage.NOT_SENT
        of_the_driver = failure.selection or _of_the_driver(failure.error)
        says_less = failure.no_writes_performed or of_the_driver or out_of_time
    if not says_less:
        return failure
    if failure.no_writes_performed:
        before.error.__cause__ = failure.error
    else:
        before.error.__context__ = failure.error
    return before


def _of_the_driver(error: Exception) -> bool:
    """An error that the driver came to by itself: it does not tell that an attempt was made."""
    if isinstance(error, WaitQueueTimeoutError):
        return True
    if isinstance(error, ConnectionFailure):
        # Of a pool that was cleared: what else ends a connection is caused by a socket's error.
        return isinstance(error.__cause__, AutoReconnect)
    return isinstance(error, PyMongoError) and not isinstance(
        error, (OperationFailure, ProtocolError)
    )
