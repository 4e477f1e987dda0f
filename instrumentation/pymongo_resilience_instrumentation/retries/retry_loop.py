"""The driver's retry loop as the engine's executors use it: its attempts, the facts of their
failures, and what an outcome means for the client's limits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from weakref import ref

from pymongo.errors import AutoReconnect

from pymongo_resilience.breakers import Permit
from pymongo_resilience.errors import CircuitBreakerOpenError
from pymongo_resilience.internal_errors import faults, logger, shielded
from pymongo_resilience.rules.failure import Evidence, Failure, RetryReason, Stage, evidence
from pymongo_resilience.rules.retry_rules import Retry
from pymongo_resilience.rules.retry_state import RetryState
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.deferred import defer
from pymongo_resilience_instrumentation.operation import NEVER, NO_DEADLINE, Operation
from pymongo_resilience_instrumentation.runtime import Runtime
from pymongo_resilience_instrumentation.selection.client_limits import ClientLimits
from pymongo_resilience_instrumentation.timeouts import bounded_waits

from . import failed_attempts
from .txn_number import TxnNumber, TxnNumberLostError, TxnNumberUnsupportedError, refuse_lost

ROUTER_WAIT = 1.0
"""Seconds, from the first failure on, in which the router of an open transaction may become usable
again. A longer wait would only delay the repetition of the whole transaction on another router."""
NOT_OURS: Any = None
"""In place of an operation: the driver's own ``run`` does it all."""


class ReadOnly:
    """What an operation says of the first loop that it runs: it only reads, so it is repeated as
    any read is. Features add more in a subclass."""

    def begin(self, loop: RetryLoop) -> None:
        """Before its first attempt."""

    def gives_up(self, loop: RetryLoop, error: Exception) -> bool:  # noqa: ARG002 - for others
        """After the first attempt has failed: whether that error ends the loop, unrepeated."""
        return False

    def reclassified(self, loop: RetryLoop, failure: Failure, state: RetryState) -> Failure:  # noqa: ARG002 - for others
        """The failure that the rules are to see."""
        return failure

    def prepare(self, loop: RetryLoop) -> None:
        """Before an attempt that is made after a failure."""

    def unfinished(self, loop: RetryLoop) -> Callable[[], Any] | None:  # noqa: ARG002 - for others
        """What is still to be done, awaited in tasks, once the loop has succeeded."""
        return None


class RetryLoop(driver.retry_loop.DriverLoop):
    """Work for both executors, in one thread or task; mixed into the driver's loop.

    What a healthy operation does not need is an attribute of the class until it is set.
    """

    runtime: Runtime
    drivers_run: Callable[[], Any]
    operation: Operation
    read_only: ReadOnly | None = None
    limits: ClientLimits
    """The client's; known where it may refuse attempts, and once one has failed."""
    permit: Permit | None = None
    """The breaker's, until the attempt's outcome is reported to it."""
    state: RetryState | None = None
    """What the rules know; known once an attempt has failed. Other threads may read it."""
    last: Failure | None = None
    """The one whose error is raised, unless a later one says more."""
    txn_number: TxnNumber
    """Known once an attempt has failed."""
    progress: tuple[Any, int] | None = None
    began = 0.0
    """When the last attempt did, on the executor's clock; known once one has failed."""
    router_wait_ends: float | None = None
    """On the driver's clock: a statement that was not sent waits until then for the router of its
    transaction."""
    final_error = failed_attempts.final_error

    def begin(self) -> bool:
        """Before the first attempt. False after an internal error: the driver runs it alone."""
        operation, runtime = self.operation, self.runtime
        operation.terminal_detector = None
        self.connection, self.was_retryable = None, self.is_retryable
        runtime.in_flight[id(self)] = ref(self)
        try:
            if operation.read_only is not None:
                # The runner's own command comes first; what others run inside comes later.
                self.read_only, operation.read_only = operation.read_only, None
                self.read_only.begin(self)
            if runtime.admits:
                self.limits = runtime.limits.of(self.client)
        except faults() as fault:
            logger.exception("internal error in pymongo-resilience before the driver's loop")
            self.release(fault)
            self.leave_to_driver()
            return False
        return True

    def gives_up(self, error: Exception) -> bool:
        """Whether the loop ends with the error of its first attempt, whatever the rules say."""
        self.runtime.in_flight.pop(id(self), None)
        if self.operation.is_closed_by(error):
            return True
        if self.read_only is not None:
            return self.read_only.gives_up(self, error)
        return self.streams()

    def leave_to_driver(self, error: Exception | None = None) -> None:
        self.operation = NOT_OURS
        super().leave_to_driver(error)

    def undecided(self, error: Exception) -> Callable[[], Any]:
        self.release(error)
        self.leave_to_driver(error)
        return self.drivers_run

    def release(self, error: BaseException | None) -> None:
        """The run is over. Once more, it changes nothing.

        ``error``: what the run ends with, None where its last attempt succeeded.
        """
        operation, runtime = self.operation, self.runtime
        runtime.in_flight.pop(id(self), None)
        if operation is NOT_OURS:
            return
        unfinished = error is not None and operation.is_closed_by(error)
        if error is None and not self.began:
            limits = runtime.limits.get(id(self.client))
            if limits is not None and not limits.budget.full:
                limits.budget.succeeded(retried=False)
        if self.permit is not None:
            # An unacknowledged write has no outcome; a failed attempt was reported before.
            no_reply = error is not None or (operation.public and not operation.acknowledged)
            shown = Evidence.NONE if no_reply else Evidence.HEALTHY
            self._end_permit(shown, unfinished=unfinished)
        # An error's frames hold the loop: nothing may keep the two alive together.
        if self.read_only is not None:
            self.read_only = None
        if self.began:
            self.last, self.txn_number.bound_to = None, None
        if operation.history.waits:
            bounded_waits.over(operation, None if self.connection is not None else error)

    def _end_permit(self, shown: Evidence, *, unfinished: bool = False) -> None:
        """Report to the breaker of the attempt's server what the attempt has shown. ``unfinished``:
        no lock may be taken."""
        permit, self.permit = self.permit, None
        if permit is None:
            return
        with shielded("after an attempt"):
            if unfinished:
                defer(partial(permit.report, shown))
            else:
                permit.report(shown)

    def checked(self, *args: Any) -> Any:
        """Of a repeated attempt, the library says whether it is sent as a retryable write; of the
        first, the driver does. Raises TxnNumberLostError where it must not be sent."""
        session, connection, retryable = args
        if self.operation is NOT_OURS:
            return self.driver_func(*args)
        try:
            if self.was_retryable is None:
                retryable = self.txn_number.take(self, connection)
            elif not retryable:
                refuse_lost(self, connection)
        except TxnNumberLostError:
            raise
        except faults():
            logger.exception("internal error in pymongo-resilience before a write was sent")
        self.connection = connection
        return self.driver_func(session, connection, retryable)

    def limit_selection(self) -> AbstractContextManager[None]:
        """In force while a server is selected: the client's ``serverSelectionTimeoutMS``, where the
        driver would wait for all of a longer deadline. Checkout and connecting have what the
        selection leaves of them."""
        if self.router_wait_ends is not None and self.operation is not NOT_OURS:
            return driver.csot.within(max(0.0, self.router_wait_ends - driver.csot.now()))
        timeout, own = driver.csot.timeout_in_force(), self.server_selection_timeout
        if timeout is None or 0 < timeout <= own or self.operation is NOT_OURS:
            return NO_DEADLINE
        try:
            # With 0 the servers are looked at once. A connection takes some time.
            self.operation.waits_until = driver.csot.now() + (own or NEVER)
            return driver.csot.within(own) if timeout else NO_DEADLINE
        except faults():
            logger.exception("internal error in pymongo-resilience before a selection")
            return NO_DEADLINE

    def selected(self, server: Any) -> None:
        """Before anything is sent to the server that was selected.

        Raises CircuitBreakerOpenError, also pymongo's AutoReconnect.
        """
        if self.operation is NOT_OURS or not self.operation.has_operations:
            return
        try:
            if (breakers := self.limits.breakers) is not None:
                self.permit = breakers.admit(self, driver.selection.address(server))
        except CircuitBreakerOpenError:
            self.set_server(server)
            raise
        except faults():
            logger.exception("internal error in pymongo-resilience after a server was selected")

    def retry_state(self) -> RetryState:
        self.check_repeated()
        self.limits = self.runtime.limits.of(self.client)
        clock = self.runtime.executor.clock
        self.txn_number = TxnNumber(clock)
        self.began = clock.now() - self.operation.elapsed()
        state = failed_attempts.described(self)
        state.began = self.began
        state.deadline, state.retry_window = failed_attempts.deadlines(self)
        self.state = state
        return state

    def attempt(self) -> Any:
        self.runtime.in_flight[id(self)] = ref(self)
        self.operation.terminal_detector = None
        self.began = self.runtime.executor.clock.now()
        return self.again()

    def classify(self, error: Exception, state: RetryState) -> Failure:
        if self.operation.is_closed_by(error):
            raise error
        self._attempt_ends(error, state)
        if isinstance(error, TxnNumberUnsupportedError):
            self._end_permit(Evidence.NONE)
            if (earlier := self.txn_number.unsupported()) is not None:
                return earlier
        if isinstance(error, TxnNumberLostError):
            error = AutoReconnect(str(error))
        return failed_attempts.classified(self, error, state)

    def _attempt_ends(self, error: Exception, state: RetryState) -> None:
        self.runtime.in_flight.pop(id(self), None)
        if self.operation.history.waits:
            bounded_waits.over(self.operation, None if self.connection is not None else error)
        progress = self.bulk_progress()
        if self.progress is not None and progress != self.progress:
            # A bulk has gone on: the retry of its last command has succeeded.
            if state.attempts:
                state.budget.succeeded(retried=True, rejections=state.rejections)
            state.next_command()
            self.txn_number.next_command()
        self.progress = progress

    def report(self, failure: Failure, state: RetryState) -> Callable[[], Any] | None:
        self._end_permit(evidence(failure))
        try:
            self.limits.failed(failure, state)
        except faults():
            logger.exception("internal error in pymongo-resilience after an attempt")
        return self.needed_release(failure)

    def prepare(self, failure: Failure, state: RetryState, retry: Retry) -> None:
        unsent = failure.reason is RetryReason.CIRCUIT_BREAKER_OPEN
        if self.last is None or not (failure.no_writes_performed or unsent):
            self.last = failure
        self.prepare_retry(failure)
        if retry.held_back and failure.reason is RetryReason.ATTEMPT_TIMEOUT:
            # With the budget spent, an attempt has all the time that is left: each that is given
            # up costs a connection and work.
            self.operation.attempt_timeout = self.operation.reply_within = None
        if self.read_only is not None:
            self.read_only.prepare(self)
        self.txn_number.bind(failure, state)
        if self.stays_pinned(failure):
            self.pin_again()
            if failure.stage is Stage.NOT_SENT and self.router_wait_ends is None:
                self.router_wait_ends = driver.csot.now() + ROUTER_WAIT
        elif self._avoids_server(failure):
            self.deprioritize(self.server)

    def _avoids_server(self, failure: Failure) -> bool:
        """Whether the next attempt goes elsewhere, where there are others and that helps.

        Unless asked to, a read that prefers the primary or secondaries is not moved off an
        overloaded member: it would read older data, or overload the primary.
        """
        if (
            self.topology_type() == "Sharded"
            or failure.elsewhere
            or failure.reason is RetryReason.ATTEMPT_TIMEOUT
        ):
            return True
        if not failure.overloaded:
            return False
        asked = driver.clients.retargets_on_overload(self.client)
        if asked is None:
            asked = self.runtime.config.overload_retargeting
        return not self.prefers_members() if asked is None else bool(asked)
