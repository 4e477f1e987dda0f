"""One run of pymongo's retry loop.

The engine's executors call it to make attempts, to get the facts of each failure, and to update the
client's budget and circuit breakers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from weakref import ref

from pymongo.errors import AutoReconnect

from pymongo_resilience.breakers import Permit
from pymongo_resilience.errors import CircuitBreakerOpenError, ConfigurationError
from pymongo_resilience.executor import UndecidedError
from pymongo_resilience.internal_errors import internal_error_types, logger
from pymongo_resilience.rules.failure import Evidence, Failure, RetryReason, Stage, evidence
from pymongo_resilience.rules.outcome import Outcome
from pymongo_resilience.rules.retry_rules import Retry
from pymongo_resilience.rules.retry_state import RetryState
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.deferred import defer
from pymongo_resilience_instrumentation.driver.attempts import (
    DriverAttempts,
    PymongoLoop,
    RetryPlan,
    Txn,
)
from pymongo_resilience_instrumentation.interceptor import raised_by_library
from pymongo_resilience_instrumentation.operation import Operation
from pymongo_resilience_instrumentation.selection.client_limits import ClientLimits
from pymongo_resilience_instrumentation.timeouts import bounded_waits, command_limits

from . import failed_attempts, own_documents
from .txn_number import TxnNumber, TxnNumberLostError, TxnNumberUnsupportedError, refuse_lost

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.driver.protocols import Connection, Server
    from pymongo_resilience_instrumentation.runtime import Runtime

    from .throttled_bulks import HeldBack

ROUTER_WAIT = 1.0
"""Seconds to wait for the router of an open transaction after it was first unreachable. No other
router can continue the transaction, and a longer wait would only delay the retry of the whole
transaction.
"""


def is_internal(error: Exception) -> bool:
    """Return True if the error is a bug of the library.

    It is if the rules could not decide, or if the library's own code raised it unintentionally.
    """
    if isinstance(error, UndecidedError):
        return True
    if isinstance(error, ConfigurationError):
        # The library raises this error on purpose, to refuse an operation.
        return False
    return raised_by_library(error)


def release(retry_loop: RetryLoop, error: BaseException | None) -> None:
    """End a run with ``error``.

    A bug of the library in this step is logged and does not replace the error.
    """
    try:
        retry_loop.release(error)
    except internal_error_types() as internal_error:
        log_after_release(internal_error)


def log_after_release(internal_error: Exception) -> None:
    """Log a bug of the library during a release."""
    logger.error(
        "internal error in pymongo-resilience after the driver's loop", exc_info=internal_error
    )


def left_to_pymongo(
    retry_loop: RetryLoop | None,
    loop: PymongoLoop,
    base: type,
    error: Exception,
    failed: Exception | None = None,
) -> PymongoLoop:
    """Return pymongo's own loop, to continue after an internal error.

    Args:
        retry_loop: The run, if it was created.
        loop: pymongo's loop.
        base: pymongo's own class of the loop.
        error: The internal error.
        failed: The error of the last attempt; None if nothing was sent.
    """
    if isinstance(error, UndecidedError):
        failed = error.failed
    text = "internal error in pymongo-resilience before the driver's loop"
    if failed is not None:
        text = "internal error in pymongo-resilience between attempts: pymongo decides"
    logger.error(text, exc_info=error.__cause__ or error)
    # Return the breaker's permit and end the waits before pymongo continues alone.
    if retry_loop is not None:
        release(retry_loop, failed or error)
    return driver.attempts.pymongo_alone(loop, base, failed)


class LoopHooks:
    """Hooks that the first loop of an operation calls. Features override them in subclasses.

    Operations with hooks only read, so they are retried like any other read.
    """

    def begin(self, loop: RetryLoop) -> None:
        """Called before the first attempt."""

    def gives_up(self, loop: RetryLoop, error: Exception) -> bool:  # noqa: ARG002 - for others
        """Return True to end the loop with the error of its first attempt, without a retry."""
        return False

    def reclassify(self, loop: RetryLoop, failure: Failure, state: RetryState) -> Failure:  # noqa: ARG002 - for others
        """Return the failure that the retry rules should use."""
        return failure

    def prepare(self, loop: RetryLoop) -> None:
        """Called before each retry."""

    def unfinished(self, loop: RetryLoop) -> Callable[[], Any] | None:  # noqa: ARG002 - for others
        """Return a function to call after the loop has succeeded, or None. In async clients, a
        coroutine function.
        """
        return None


class RetryLoop:
    """One run of pymongo's retry loop. Belongs to one thread or task.

    Attributes that a healthy operation does not need are class attributes until they are set, so
    that creating the object is cheap.
    """

    hooks: LoopHooks | None = None
    client_limits: ClientLimits
    """The client's limits, which all its operations share."""
    permit: Permit | None = None
    """The breaker's permit, until the outcome of the attempt is reported."""
    state: RetryState | None = None
    """The state for the rules. Set after the first failure; other threads may read it."""
    last: Failure | None = None
    """An earlier failure. Its error is raised unless that of the last attempt is more informative.
    """
    txn_number: TxnNumber
    """Set after the first failure."""
    may_be_applied = False
    """True if an attempt without a transaction number was sent and may have been applied."""
    uncertain_command: tuple[Any, int] | None = None
    """The position of the bulk write's command that such an attempt has sent; see
    ``DriverAttempts.bulk_progress``.
    """
    held_back: HeldBack | None = None
    """The throttled statements of a bulk write that pymongo sends next, if the rules allow it."""
    uncertain_end = 0
    """The position after the last statement of that command. Set once a reply to its retry contains
    duplicates.
    """
    began = 0.0
    """When the last attempt began, on the executor's clock. Set after the first failure."""
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
    final_error = failed_attempts.final_error

    def __init__(self, runtime: Runtime, operation: Operation, attempts: DriverAttempts) -> None:
        """Begin a run, before its first attempt."""
        self.runtime = runtime
        self.operation = operation
        self.attempts = attempts
        self.client = attempts.client
        # Look the limits up without a call of ours, because every operation does so.
        self.client_limits = runtime.limits.get(id(self.client)) or runtime.limits.of(self.client)
        attempts.loop.owner, attempts.loop.send = self, attempts.send
        operation.loop = self
        if operation.terminal_detector is not None:
            operation.begin_attempt()
        if operation.hooks is not None and (hooks := operation.take_hooks()) is not None:
            # The operation's own command runs in its first loop; commands of nested operations come
            # later.
            self.hooks = hooks
            hooks.begin(self)
        # Other threads look for attempts here, to interrupt those on a silent server.
        runtime.in_flight[id(self)] = ref(self)

    # As in Operation, a property written in Python would cost a call for each access.
    if TYPE_CHECKING:
        connection: Connection | None
        """pymongo's connection of the last attempt, once it has one."""
        server: Server | None
        """The server that the last attempt selected, as pymongo's object; None before."""
    else:
        connection = property(attrgetter("attempts.connection"))
        server = property(attrgetter("attempts.server"))

    session = property(attrgetter("attempts.session"))

    def failed_before_sending(self, error: Exception) -> bool:
        """Return True if a bug of the library ended the attempt before it had a connection."""
        return self.connection is None and is_internal(error)

    def gives_up(self, error: Exception) -> bool:
        """Return True if the loop ends with the error of its first attempt, without applying the
        rules.
        """
        self.runtime.in_flight.pop(id(self), None)
        # The coroutine is being closed, so nothing may be awaited or sent any more.
        if self.operation.is_closed_by(error):
            return True
        if self.hooks is not None:
            return self.hooks.gives_up(self, error)
        return self.attempts.streams()

    def release(self, error: BaseException | None) -> None:
        """End the run. A second call has no effect.

        Args:
            error: The error that the run ends with, or None if its last attempt succeeded.
        """
        operation = self.operation
        unfinished = False
        if error is None:
            session, budget = self.attempts.session, self.client_limits.budget
            if session is not None and session.in_transaction:
                # pymongo's own ``run`` does this after a success, but it is not used here.
                self.attempts.note_completed()
            # A full budget need not count a success, so most successes cost nothing here.
            if not (budget.full or self.began):
                budget.succeeded(retried=False)
        else:
            unfinished = operation.is_closed_by(error)
        if self.permit is not None:
            # An unacknowledged write shows nothing about the server. Nor does an error: if it shows
            # anything, ``report`` has already told the breaker.
            no_reply = error is not None or (
                operation.call.is_public and not operation.call.is_acknowledged
            )
            shown = Evidence.NONE if no_reply else Evidence.HEALTHY
            self._end_permit(shown, unfinished=unfinished)
        # The traceback of the error references this loop. Drop the loop's references to errors, so
        # that both can be freed.
        if self.hooks is not None:
            self.hooks = None
        if self.began:
            self.last, self.txn_number.bound_to = None, None
        if operation.limits.waits:
            bounded_waits.end_waits(operation, None if self.connection is not None else error)

    def _end_permit(self, shown: Evidence, *, unfinished: bool = False) -> None:
        """Report to the breaker what the attempt shows about the server.

        If a coroutine is being closed, ``unfinished`` is True. No lock may be taken then, so the
        report is deferred.
        """
        permit, self.permit = self.permit, None
        if permit is None:
            return
        if unfinished:
            defer(partial(permit.report, shown))
        else:
            permit.report(shown)

    def check_txn(self, connection: Connection, retryable: bool) -> bool:
        """Return True if a write should carry a transaction number.

        ``retryable`` is pymongo's decision, which applies to the first attempt. For the retries of
        a retryable write, the library decides.

        Raises:
            TxnNumberLostError: If the write must not be sent.
        """
        if self.attempts.txn is Txn.CHECKED:
            return self.txn_number.take(self.attempts, connection)
        if not retryable:
            refuse_lost(self.attempts, connection)
        return retryable

    def limit_selection(self) -> AbstractContextManager[None] | None:
        """Return a context that limits server selection, or None if no limit is needed.

        The limit is the wait for a transaction's router, or the client's
        ``serverSelectionTimeoutMS``.

        Raises:
            ExecutionTimeout: If the incoming request's deadline has passed.
        """
        if self.router_wait_ends is not None:
            return driver.csot.within(max(0.0, self.router_wait_ends - driver.csot.now()))
        if self.operation.limits.without_request is not None:
            command_limits.check_request(self.operation.limits)
        timeout = driver.csot.active_timeout()
        if not timeout:
            return None
        own = self.client_limits.selection_timeout
        if own is None:
            own = self.client_limits.selection_timeout = self.attempts.server_selection_timeout
        # If the deadline is later, pymongo would wait for a server until the deadline.
        return None if timeout <= own else driver.csot.within(own)

    def ask_for_life(self, server: Server) -> None:
        """Request a check of the selected server, to find out if it is alive while it executes the
        attempt.
        """
        topology = driver.clients.topology_of(self.client)
        address = driver.selection.address(server)
        self.sign_of_life = driver.monitors.SignOfLife(topology, address)

    def selected(self, server: Server) -> None:
        """Get a permit from the selected server's circuit breaker, before anything is sent.

        Raises:
            CircuitBreakerOpenError: If the breaker refuses. This is also a pymongo AutoReconnect.
        """
        # killCursors and endSessions are never refused.
        if not self.operation.has_operations:
            return
        try:
            if (breakers := self.client_limits.breakers) is not None:
                self.permit = breakers.admit(self.attempts, driver.selection.address(server))
        except CircuitBreakerOpenError:
            # pymongo's loop has not stored the server yet, but the error, the log, and the next
            # selection need it.
            self.attempts.note_server(server)
            raise

    @property
    def outcome(self) -> Outcome:
        return self.operation.outcome

    def retry_state(self) -> RetryState:
        clock = self.runtime.executor.clock
        self.txn_number = TxnNumber(clock)
        self.began = clock.now() - self.operation.elapsed()
        state = failed_attempts.retry_state_of(self)
        state.began = self.began
        state.deadline, state.retry_window = failed_attempts.deadlines(self)
        self.state = state
        return state

    def attempt(self) -> Any:
        self.runtime.in_flight[id(self)] = ref(self)
        self.sign_of_life = None
        self.operation.begin_attempt()
        self.began = self.runtime.executor.clock.now()
        return self.attempts.again()

    def classify(self, error: Exception, state: RetryState) -> Failure:
        if self.operation.is_closed_by(error):
            raise error
        self._attempt_ends(error, state)
        # Nothing was sent, so this shows nothing about the server.
        if isinstance(error, TxnNumberUnsupportedError):
            self._end_permit(Evidence.NONE)
            if (earlier := self.txn_number.unsupported()) is not None:
                return earlier
        if isinstance(error, TxnNumberLostError):
            # The library raised its own class, because pymongo clears the pool if AutoReconnect is
            # raised inside of a checkout.
            error = AutoReconnect(str(error))
        return failed_attempts.classify_error(self, error, state)

    def _attempt_ends(self, error: Exception, state: RetryState) -> None:
        self.runtime.in_flight.pop(id(self), None)
        if self.operation.limits.waits:
            bounded_waits.end_waits(self.operation, None if self.connection is not None else error)
        # A bulk write consists of several commands, each with its own attempts and number.
        before, progress = self.attempts.progress, self.attempts.bulk_progress()
        if before is not None and progress != before:
            # The bulk write has moved on, so its previous command has succeeded. If it had failed
            # attempts, it succeeded at a retry.
            if state.attempts:
                state.budget.succeeded(retried=True, rejections=state.rejections)
            state.next_command()
            self.txn_number.next_command()
        self.attempts.progress = progress

    def report(self, failure: Failure, state: RetryState) -> Callable[[], Any] | None:
        self._end_permit(evidence(failure))
        self.client_limits.failed(failure, state)
        return self.attempts.needed_release(failure)

    def prepare(self, failure: Failure, state: RetryState, retry: Retry) -> None:
        refused_by_breaker = failure.reason is RetryReason.CIRCUIT_BREAKER_OPEN
        # An attempt that the breaker refused, or that wrote nothing, is less informative than an
        # earlier one.
        if self.last is None or not (failure.no_writes_performed or refused_by_breaker):
            self.last = failure
        if own_documents.may_be_applied(failure):
            self.uncertain_command = self.attempts.bulk_progress()
            if not self.may_be_applied:
                self.may_be_applied = True
                # From now on, a duplicate key may be the document of the earlier attempt.
                own_documents.recognize(self.attempts)
        # pymongo's loop still holds state of the failed attempt that would affect the next one.
        self.attempts.reset_after(failure)
        if retry.held_back and failure.reason is RetryReason.ATTEMPT_TIMEOUT:
            # If the budget is spent, let the attempt use all of the remaining time. Giving up an
            # attempt costs a connection, and the server has worked for nothing.
            command_limits.limit_attempts(self.operation.limits, None)
        if self.hooks is not None:
            self.hooks.prepare(self)
        self.is_unanswered = failure.reason is RetryReason.NO_REPLY
        self.txn_number.bind(failure, state)
        plan = self._plan(failure)
        if plan.stay_pinned and failure.stage is Stage.NOT_SENT and self.router_wait_ends is None:
            # Only that router can continue the transaction, so wait for it, but not for long.
            self.router_wait_ends = driver.csot.now() + ROUTER_WAIT
        self.attempts.follow(plan)

    def _plan(self, failure: Failure) -> RetryPlan:
        """Return how to make the attempt after ``failure``."""
        attempts = self.attempts
        txn = Txn.CHECKED if attempts.is_numbered_write() else Txn.AS_DECIDED
        stay_pinned = attempts.stays_pinned(failure)
        avoids = not stay_pinned and self._avoids_server(failure)
        return RetryPlan(txn, stay_pinned, attempts.server if avoids else None)

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
