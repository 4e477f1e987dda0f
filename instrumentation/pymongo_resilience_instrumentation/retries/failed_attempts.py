"""What the retry rules decide on: the operation that a run of the loop is part of, and the facts of
an attempt that has failed. ``loop``: a RetryLoop."""

from __future__ import annotations

from typing import Any

from pymongo.errors import ServerSelectionTimeoutError

from pymongo_resilience.clock import Deadline
from pymongo_resilience.internal_errors import shielded
from pymongo_resilience.policies.policy import shorter
from pymongo_resilience.rules.failure import Failure
from pymongo_resilience.rules.retried_operation import NO_DATA, Kind, Operation
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.failures import classify
from pymongo_resilience_instrumentation.failures.causes import terminal_cause
from pymongo_resilience_instrumentation.operations import ABORT
from pymongo_resilience_instrumentation.timeouts import command_limits

from . import stopped_bulks

CLOSING = 0.5
"""Seconds after its first failure in which endSessions is repeated, and that a repetition may stay
unanswered: close() must not take long."""


def described(loop: Any) -> Operation:
    """The operation for the retry rules. Reads nothing of the caller's context."""
    call, runtime, client = loop.call, loop.runtime, driver.retry_loop.client(loop)
    policy = call.policy(runtime.rules)
    kind = Kind.READ if loop.only_reads else driver.retry_loop.kind(loop)
    method = call.method
    if kind is Kind.GET_MORE and call.batch_of is None and method:
        method += "/getMore"  # a method fetches the batches of a cursor of its own
    return Operation(
        name=call.operation,
        namespace=call.namespace,
        kind=kind,
        strategy=runtime.rules.strategy_of(policy),
        retries_enabled=driver.retry_loop.retries_enabled(loop, kind),
        in_transaction=driver.retry_loop.in_transaction(loop),
        acknowledged=call.acknowledged,
        declared_idempotent=bool(policy.idempotent),
        max_retries=driver.clients.max_retries(client),
        budget=runtime.limits.of(client).budget,
        once=driver.retry_loop.operation_name(loop) == ABORT,
        method=method,
        data=NO_DATA if policy.data is None else policy.data,
    )


def deadlines(loop: Any) -> tuple[Deadline | None, Deadline | None]:
    """The operation's deadline, and without one the end of repeating, by the caller's context."""
    timeout, clock = driver.csot.timeout_in_force(), loop.runtime.executor.clock
    if loop.call.operation == driver.retry_loop.END_SESSIONS:
        left = driver.csot.remaining()
        return None, Deadline.after(clock, CLOSING if left is None else min(CLOSING, left))
    if timeout is None:
        return None, None
    ends = driver.csot.deadline_on(clock)
    if ends is None:
        return None, Deadline.after(clock, driver.retry_loop.server_selection_timeout(loop))
    # Of two that are in force, the driver keeps the earlier end, but only the inner length.
    given = shorter(timeout, loop.call.timeout or 0)
    return Deadline(clock, ends, given), None


def classified(loop: Any, error: Exception, operation: Operation) -> Failure:
    """The facts of the attempt that ended with ``error``, whose own text is corrected where it
    says too little, or what only the library has added."""
    unselected = isinstance(error, ServerSelectionTimeoutError) and not loop.reached_connection
    if unselected and terminal_cause(error) is None:
        with shielded("while a failed selection was explained"):
            from pymongo_resilience_instrumentation.selection import selection_explained  # noqa: PLC0415 - rarely needed

            selection_explained.explain(error, loop)
    if terminal_cause(error) is not None:
        driver.selection.forget_transient(error)
    failure = classify.failure_of(
        error,
        classify.Attempt(
            reached_connection=loop.reached_connection,
            carried_txn_number=driver.retry_loop.carries_txn_number(loop),
            # The loop still has that of the attempt before.
            server=None if unselected else driver.retry_loop.server_address(loop),
            min_rtt=driver.csot.min_rtt(),
        ),
    )
    failure = loop.txn_number.known(loop, failure, operation, loop.began)
    stopped_bulks.show_as_answered(error)
    limited = loop.call.attempt_timeout is not None
    if limited and failure.timed_out and failure.code is not None:
        failure = command_limits.as_attempt_timeout(failure, operation)
    if loop.resumption is not None:
        own = operation.max_retries
        most = loop.runtime.executor.retry_rules.max_retries if own is None else own
        failure = loop.resumption.reclassified(failure, operation, most)
    return failure
