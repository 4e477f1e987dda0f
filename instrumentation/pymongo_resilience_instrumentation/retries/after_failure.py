"""What a run of pymongo's retry loop needs once an attempt has failed.

The engine's executors take these steps after a failed attempt, in this order: ``classify`` closes
the attempt and returns its facts, ``report`` reports them, and the engine's rules decide. To retry,
``plan`` returns how to make the next attempt, and ``again`` makes it. Otherwise, ``final_error``
returns the error to raise. The second try of a hedged read is not retried; it calls only
``classify`` and ``report``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from pymongo import common
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ClientBulkWriteException,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
)

from pymongo_resilience.clock import Deadline
from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.executor import UndecidedError
from pymongo_resilience.policies.policy import shorter
from pymongo_resilience.rules.failure import Evidence, Failure, RetryReason, Stage, evidence
from pymongo_resilience.rules.retry_rules import Retry, Rule
from pymongo_resilience.rules.retry_state import Kind, RetryState
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.deferred import defer
from pymongo_resilience_instrumentation.driver.attempts import (
    DriverAttempts,
    RetryPlan,
    Txn,
    TxnNumberLostError,
)
from pymongo_resilience_instrumentation.failures import classify
from pymongo_resilience_instrumentation.failures.causes import terminal_cause
from pymongo_resilience_instrumentation.interceptor import raised_by_library
from pymongo_resilience_instrumentation.public_operations import ABORT
from pymongo_resilience_instrumentation.timeouts import bounded_waits, command_limits

from . import final_error, own_documents, stopped_bulks
from .txn_number import TxnNumber, TxnNumberUnsupportedError

if TYPE_CHECKING:
    from pymongo_resilience.rules.outcome import Outcome
    from pymongo_resilience_instrumentation.driver.protocols import Server
    from pymongo_resilience_instrumentation.runtime import Runtime

ROUTER_WAIT = 1.0
"""Seconds to wait for the router of an open transaction after it was first unreachable. No other
router can continue the transaction, and a longer wait would only delay the retry of the whole
transaction.
"""
CLOSING = 0.5
"""Limits in seconds for endSessions after its first failure: for all retries together, and for the
reply to each of them. They are short because ``close()`` waits for endSessions.
"""
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


def is_internal(error: Exception) -> bool:
    """Return True if the error is a bug of the library.

    True if the rules could not decide, or if the library's own code raised it unintentionally.
    """
    if isinstance(error, UndecidedError):
        return True
    if isinstance(error, ConfigurationError):
        # The library raises this error on purpose, to refuse an operation.
        return False
    return raised_by_library(error)


def failed_before_sending(attempts: DriverAttempts, error: Exception) -> bool:
    """Return True if a bug of the library ended the attempt before it had a connection."""
    return attempts.connection is None and is_internal(error)


def end_permit(attempts: DriverAttempts, shown: Evidence, *, unfinished: bool = False) -> None:
    """Report to the breaker what the attempt shows about the server.

    If a coroutine is being closed, ``unfinished`` is True. No lock may be taken then, so the report
    is deferred.
    """
    permit, attempts.permit = attempts.permit, None
    if permit is None:
        return
    if unfinished:
        defer(partial(permit.report, shown))
    else:
        permit.report(shown)


def retry_state_of(runtime: Runtime, attempts: DriverAttempts) -> RetryState:
    """Return the operation's state for the retry rules, without its deadlines.

    Another thread may call this function, so it must not read context variables.
    """
    operation, client = attempts.operation, attempts.client
    call, policy = operation.call, operation.policy(runtime.rules)
    kind = Kind.READ if attempts.hooks is not None else attempts.kind()
    method = call.method
    if kind is Kind.GET_MORE and call.cursor_class is None and method:
        # Methods such as ``find_one`` also fetch the later batches of their own cursor. Append
        # /getMore to tell these from the first batch.
        method += "/getMore"
    return RetryState(
        name=call.name,
        namespace=call.namespace,
        kind=kind,
        strategy=runtime.rules.strategy_of(policy),
        retries_enabled=attempts.retries_enabled(kind, declared=bool(policy.idempotent)),
        in_transaction=attempts.in_transaction(),
        acknowledged=call.is_acknowledged,
        declared_idempotent=bool(policy.idempotent),
        max_retries=driver.clients.max_retries(client),
        budget=attempts.client_limits.budget,
        once=kind is Kind.TRANSACTION_END and attempts.command_name() == ABORT,
        method=method,
        data={} if policy.data is None else policy.data,
    )


class Retries:
    """The retries of one run of pymongo's loop. Created when the first attempt has failed.

    Owns everything that only a failure needs, and is the work of the engine's executors. Belongs to
    one thread or task; other threads may read ``state`` and ``began``.
    """

    last: Failure | None = None
    """An earlier failure. Its error is raised unless the last attempt's error is more informative.
    """
    uncertain_command: tuple[Any, int] | None = None
    """The position of the bulk write's command that was sent and may have been applied; see
    ``DriverAttempts.bulk_progress``.
    """
    uncertain_end = 0
    """The position after the last statement of that command. Set once a reply to its retry contains
    duplicates.
    """
    is_unanswered = False
    """True if the last attempt got no reply. The next attempt then also requests a check of its
    server.
    """
    sign_of_life: driver.monitors.SignOfLife | None = None
    """That check: whether the server of the current attempt is alive."""
    router_wait_ends: float | None = None
    """The time on pymongo's clock until which a statement that was not sent waits for the router of
    its transaction.
    """

    def __init__(self, runtime: Runtime, attempts: DriverAttempts) -> None:
        self.runtime = runtime
        self.attempts = attempts
        self.client = attempts.client
        self.operation = attempts.operation
        self.clock = runtime.executor.clock
        self.txn_number = TxnNumber(self.clock)
        self.began = self.clock.now() - self.operation.elapsed()
        """When the last attempt began, on the executor's clock."""
        self.state = retry_state_of(runtime, attempts)
        self.state.began = self.began
        self.state.deadline, self.state.retry_window = self._deadlines()
        attempts.retries = self

    @property
    def outcome(self) -> Outcome:
        return self.operation.outcome

    def _deadlines(self) -> tuple[Deadline | None, Deadline | None]:
        """Return the operation's deadline and, if it has none, the end of its retries.

        At least one of the two is None.
        """
        limits, timeout = self.operation.limits, driver.csot.active_timeout()
        # Read this clock before pymongo's. Otherwise, the deadline of the rules could be later than
        # pymongo's, and they would allow an attempt that pymongo refuses.
        now, remaining = self.clock.now(), driver.csot.remaining()
        if self.operation.name == driver.attempts.END_SESSIONS:
            # ``close()`` sends endSessions and waits for it, so it gets only a short time.
            command_limits.limit_attempts(limits, CLOSING)
            seconds = CLOSING if remaining is None else min(CLOSING, remaining)
            return None, Deadline.after(self.clock, seconds)
        if timeout is None:
            return None, None
        if remaining is None:
            return None, Deadline.after(self.clock, self.attempts.server_selection_timeout)
        # With nested timeouts, pymongo keeps the earlier deadline but reports the inner duration.
        length = shorter(timeout, limits.timeout or 0)
        return Deadline(self.clock, now + remaining, length), None

    def classify(self, error: Exception) -> Failure:
        """Close the attempt that ended with ``error``, and return its facts.

        Not a pure query, so call it once per attempt. Ends the attempt's waits. If a bulk write has
        moved on to its next command, credits the budget and resets the counts. If nothing was sent
        because the server does not support the transaction number, ends the breaker's permit.
        Corrects the error's text and labels if pymongo's are misleading.

        Raises ``error`` itself if its coroutine is being closed, because no other attempt may
        follow.
        """
        attempts = self.attempts
        if self.operation.is_closed_by(error):
            raise error
        self._end_attempt(error)
        # Nothing was sent, so this shows nothing about the server.
        if isinstance(error, TxnNumberUnsupportedError):
            end_permit(attempts, Evidence.NONE)
            if (earlier := self.txn_number.unsupported()) is not None:
                return earlier
        if isinstance(error, TxnNumberLostError):
            # The library raised its own class, because pymongo clears the pool if AutoReconnect is
            # raised inside of a checkout.
            error = AutoReconnect(str(error))
        self._correct(error)
        failure = classify.failure_of(error, attempts.facts(error))
        if failure.stage is Stage.NOT_SENT:
            is_unselected = (
                isinstance(error, ServerSelectionTimeoutError) and attempts.connection is None
            )
            waited_for_router = is_unselected and self.router_wait_ends is not None
            if waited_for_router or attempts.cannot_be_pinned():
                failure = replace(failure, router_lost=True)
        failure = self.txn_number.known(attempts, failure, self.state, self.began)
        if self.state.time_limit is None:
            failure = replace(failure, unhurried_until=self._when_pymongo_would_retry(failure))
        if failure.reason is RetryReason.NO_REPLY and self._is_merely_slow(error):
            failure = replace(failure, server_answered=True)
        if isinstance(error, (BulkWriteError, ClientBulkWriteException)):
            stopped_bulks.show_as_answered(error)
        if failure.timed_out and failure.code is not None:
            failure = command_limits.with_limit(self.operation, failure, self.state)
        return failure if attempts.hooks is None else attempts.hooks.reclassify(self, failure)

    def _end_attempt(self, error: Exception) -> None:
        """End what belonged to the attempt, and note how far a bulk write got."""
        attempts, operation, state = self.attempts, self.operation, self.state
        self.runtime.in_flight.pop(id(attempts), None)
        if operation.limits.waits:
            bounded_waits.end_waits(operation, None if attempts.connection is not None else error)
        # A bulk write consists of several commands, each with its own attempts and number.
        before, progress = attempts.progress, attempts.bulk_progress()
        if before is not None and progress != before:
            # The bulk write has moved on, so its previous command has succeeded. If it had failed
            # attempts, it succeeded at a retry.
            if state.attempts:
                state.budget.succeeded(retried=True, rejections=state.rejections)
            state.next_command()
            self.txn_number.next_command()
        attempts.progress = progress

    def _correct(self, error: Exception) -> None:
        """Correct the error's text and labels if pymongo's are misleading."""
        if isinstance(error, ServerSelectionTimeoutError):
            if terminal_cause(error) is not None:
                # pymongo labels every failed selection in a transaction as transient, and
                # with_transaction would retry it for two minutes. Waiting cannot help here, so
                # remove the label.
                driver.selection.forget_transient(error)
            elif self.attempts.connection is None:
                from pymongo_resilience_instrumentation.selection import selection_explained  # noqa: PLC0415 - rarely needed

                selection_explained.explain(error, self.attempts)
        elif isinstance(error, WaitQueueTimeoutError):
            bounded_waits.name_configured_limit(error, self.operation)
        elif (
            self.attempts.connection is None
            and isinstance(error, PyMongoError)
            and classify.ended_by_client(error)
        ):
            # pymongo adds the overload labels to the error of every connection that could not be
            # made. But here the library or the deadline ended the connection, and the server
            # rejected nothing.
            driver.selection.forget_overload(error)

    def _is_merely_slow(self, error: Exception) -> bool:
        """Return True if the server is alive and has received the attempt that got no reply."""
        if self.sign_of_life is None or not self.sign_of_life.is_seen():
            return False
        cause = error.__cause__
        return not isinstance(cause, driver.connections.SocketTimeoutError) or cause.arrived

    def _when_pymongo_would_retry(self, failure: Failure) -> Deadline | None:
        """Return the time until which plain pymongo might wait for the failed attempt's server
        before it retries, or None if it would not wait.
        """
        if failure.reason not in SERVER_LOST:
            return None
        seconds, server = common.MIN_HEARTBEAT_INTERVAL * WAITS * LATE, self.attempts.server
        if failure.reason is RetryReason.NOT_PRIMARY and server is not None:
            topology = driver.clients.topology_of(self.client)
            address = driver.selection.address(server)
            hurried_checks = driver.monitors.check_intervals_at(topology, address)
            if hurried_checks is not None:
                checked_by = hurried_checks.last + driver.monitors.max_wait(topology)
                seconds = max(seconds, checked_by - driver.csot.now())
        return Deadline.after(self.clock, seconds)

    def report(self, failure: Failure) -> Callable[[], Any] | None:
        """Report the failed attempt to the breaker and the budget, once.

        Returns:
            pymongo's function that releases what the attempt held, if any.
        """
        if self.attempts.permit is not None:
            end_permit(self.attempts, evidence(failure))
        self.attempts.client_limits.failed(failure, self.state)
        return self.attempts.needed_release(failure)

    def plan(self, failure: Failure, retry: Retry) -> RetryPlan:
        """Prepare pymongo for the attempt after ``failure``, and return how to make it."""
        attempts, reason = self.attempts, failure.reason
        # An attempt that the breaker refused, or that wrote nothing, is less informative than an
        # earlier one.
        refused_by_breaker = reason is RetryReason.CIRCUIT_BREAKER_OPEN
        if self.last is None or not (failure.no_writes_performed or refused_by_breaker):
            self.last = failure
        # A server recognizes a retry by the transaction number.
        if failure.may_be_applied and not failure.carried_txn_number:
            self.uncertain_command = attempts.bulk_progress()
            if not attempts.may_be_applied:
                attempts.may_be_applied = True
                # From now on, a duplicate key may be the document of the earlier attempt.
                own_documents.recognize(attempts)
        # pymongo's loop still holds state of the failed attempt that would affect the next one.
        attempts.reset_after(failure)
        if retry.held_back and reason is RetryReason.ATTEMPT_TIMEOUT:
            # If the budget is spent, let the attempt use all of the remaining time. Giving up an
            # attempt costs a connection, and the server has worked for nothing.
            command_limits.limit_attempts(self.operation.limits, None)
        if attempts.hooks is not None:
            attempts.hooks.prepare(attempts)
        self.is_unanswered = reason is RetryReason.NO_REPLY
        self.txn_number.bind(failure, self.state)
        txn = Txn.CHECKED if attempts.is_numbered_write() else Txn.AS_DECIDED
        if attempts.stays_pinned(failure):
            if failure.stage is Stage.NOT_SENT and self.router_wait_ends is None:
                # Only that router can continue the transaction, so wait for it, but not for long.
                self.router_wait_ends = driver.csot.now() + ROUTER_WAIT
            attempts.pin_again()
            return RetryPlan(txn)
        return RetryPlan(txn, attempts.server if self._avoids_server(failure) else None)

    def _avoids_server(self, failure: Failure) -> bool:
        """Return True if the next attempt should go to another server if possible."""
        if (
            self.attempts.topology_type() == "Sharded"
            or failure.elsewhere
            or failure.reason is RetryReason.ATTEMPT_TIMEOUT
        ):
            return True
        # Throttling limits a collection, on all servers alike.
        if not failure.reports_overload:
            return False
        retargets = driver.clients.retargets_on_overload(self.client)
        if retargets is None:
            retargets = self.runtime.config.overload_retargeting
        # By default, a read that prefers the primary or secondaries stays with its overloaded
        # member. On another member, it would read older data or overload the primary.
        return not self.attempts.prefers_members() if retargets is None else bool(retargets)

    def again(self, plan: RetryPlan) -> Any:
        """Make another attempt. Returns a coroutine in async clients."""
        self.runtime.in_flight[id(self.attempts)] = ref(self.attempts)
        self.sign_of_life = None
        self.operation.begin_attempt()
        self.began = self.clock.now()
        return self.attempts.again(plan)

    def ask_for_life(self, server: Server) -> None:
        """Request a check of the selected server, to find out if it is alive while it executes the
        attempt.
        """
        topology = driver.clients.topology_of(self.client)
        address = driver.selection.address(server)
        self.sign_of_life = driver.monitors.SignOfLife(topology, address)

    def failed_before_sending(self, error: Exception) -> bool:
        """Return True if a bug of the library ended the attempt before it had a connection."""
        return failed_before_sending(self.attempts, error)

    def final_error(self, failure: Failure, rule: Rule) -> Exception:
        """Return the error that the application gets after the last attempt."""
        return final_error.final_error(self, failure, rule)

    def end(self) -> None:
        """End the retries. Drop the references to errors, whose tracebacks reference the run, so
        that both can be freed.
        """
        self.last = self.txn_number.bound_to = self.attempts.retries = None
