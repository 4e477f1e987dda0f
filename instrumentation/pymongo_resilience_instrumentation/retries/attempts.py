"""One run of the driver's retry loop as the engine's work: the loop itself keeps its state.

What a healthy operation does not need is an attribute of the class until it is set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from pymongo.errors import AutoReconnect, PyMongoError, ServerSelectionTimeoutError

from pymongo_resilience.breakers import Permit
from pymongo_resilience.clock import Deadline
from pymongo_resilience.errors import CircuitBreakerOpenError, OverloadShedError
from pymongo_resilience.internal_errors import faults, is_closing, logger, shielded
from pymongo_resilience.option_types import NORMAL
from pymongo_resilience.policies.policy import shorter
from pymongo_resilience.rules.failure import Evidence, Failure, RetryReason, Stage, evidence
from pymongo_resilience.rules.retried_operation import NO_DATA, Kind, Operation
from pymongo_resilience.rules.strategy import follows_specification
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import Address
from pymongo_resilience_instrumentation.calls import Call
from pymongo_resilience_instrumentation.deferred import defer
from pymongo_resilience_instrumentation.failures import classify
from pymongo_resilience_instrumentation.failures.causes import terminal_cause
from pymongo_resilience_instrumentation.runtime import Runtime
from pymongo_resilience_instrumentation.timeouts import bounded_waits, command_limits

from . import deprioritized, stopped_bulks
from .final_errors import REFUSED, final_error

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.selection.client_limits import ClientLimits


NOT_OURS: Any = None
"""In place of a call: the driver's own ``run`` does it all."""


class TxnNumberLostError(PyMongoError):
    """A retryable write was not sent, since its server would take it for one that is not.

    Raised inside of a checkout, where a network error would make the driver clear its pool.
    """


class TxnNumberUnsupportedError(TxnNumberLostError):
    """The server takes no retryable writes, and an earlier attempt may be applied elsewhere."""


class Attempts(driver.retry_loop.DriverLoop):
    """Work for both executors, in one thread or task; mixed into the driver's loop."""

    runtime: Runtime
    drivers_run: Callable[[], Any]
    call: Call
    limits: ClientLimits
    """The client's; known where it may refuse attempts, and once one has failed."""
    permit: Permit | None = None
    """The breaker's, until the attempt's outcome is reported to it."""
    last: Failure | None = None
    avoided: tuple[Address, ...] | None = None
    """What the operation around this one avoids, where this one avoids something else."""
    avoiding: deprioritized.Mark | None = None
    bound_to_txn_number: Failure | None = None
    """After it, no attempt may be sent without the transaction number."""
    only_reads = False
    resumption: Any = None
    """A Fetch (features/resumable_finds/), of a batch."""
    progress: tuple[Any, int] | None = None
    final_error = final_error
    began = 0.0
    """When the last attempt did, on the executor's clock; known once one has failed."""
    numbered_since: float | None = None
    """When the first attempt began that may be applied, and a server knows by its number."""
    session_ends: Deadline | None = None
    """How long the server does."""

    def begin(self) -> bool:
        """Before the first attempt. False where a fault of ours leaves it all to the driver."""
        call, runtime, client = self.call, self.runtime, driver.retry_loop.client(self)
        call.terminal_detector = None
        self.connection, self.was_retryable = None, driver.retry_loop.is_retryable(self)
        runtime.in_flight[id(self)] = ref(self)
        try:
            if avoided := deprioritized.avoided():
                self.avoided = avoided
                self.avoiding = deprioritized.begin()
            if call.only_reads:
                # The runner's own command comes first; what others run inside comes later.
                self.only_reads, call.only_reads = True, False
                if call.resumption is not None:
                    self.resumption, call.resumption = call.resumption, None
                    self.resumption.begin(self)
                if call.hedge is not None:
                    call.hedge.began(self)
            if runtime.admits:
                self.limits = runtime.limits.of(client)
        except faults():
            logger.exception("internal error in pymongo-resilience before the driver's loop")
            self.release(None)
            self.leave_to_driver()
            return False
        return True

    def leave_to_driver(self, error: Exception | None = None) -> None:
        self.call = NOT_OURS
        super().leave_to_driver(error)

    def undecided(self, error: Exception) -> Callable[[], Any]:
        self.release(error)
        self.leave_to_driver(error)
        return self.drivers_run

    def lost_race(self, error: Exception) -> bool:
        """Whether a try of a hedged read ends with its ``error``, since the other one goes on."""
        self.runtime.in_flight.pop(id(self), None)
        return self.call.hedge is not None and self.call.hedge.ends(self, error)

    def release(self, error: BaseException | None) -> None:
        """The run is over. Once more, it changes nothing.

        ``error``: what the run ends with, None where its last attempt succeeded.
        """
        call, runtime = self.call, self.runtime
        runtime.in_flight.pop(id(self), None)
        if call is NOT_OURS:
            return
        unfinished = error is not None and is_closing(error)
        if error is None and not self.began:
            limits = runtime.limits.get(id(driver.retry_loop.client(self)))
            if limits is not None and limits.budget is not None and not limits.budget.full:
                limits.budget.succeeded(retried=False)
        if self.permit is not None:
            # An unacknowledged write has no outcome; a failed attempt was reported before.
            no_reply = error is not None or (call.public and not call.acknowledged)
            shown = Evidence.NONE if no_reply else Evidence.HEALTHY
            self._report(shown, unfinished=unfinished)
        if self.avoided is not None:
            if not unfinished:
                deprioritized.end(self.avoiding)
            self.avoided = None
        if self.last is not None:
            # Its error's frames hold the loop: nothing may keep the two alive together.
            self.last = self.bound_to_txn_number = None
        if call.waits:
            bounded_waits.over(call, None if self.reached_connection else error)
        if not call.ended:
            call.selected = driver.retry_loop.server(self)

    def _report(self, shown: Evidence, *, unfinished: bool = False) -> None:
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
        if self.call is NOT_OURS:
            return self.driver_func(*args)
        try:
            if self.was_retryable is None:
                retryable = self._takes_txn_number(connection)
            elif not retryable:
                self._refuse_lost(connection)
        except TxnNumberLostError:
            raise
        except faults():
            logger.exception("internal error in pymongo-resilience before a write was sent")
        self.connection = connection
        return self.driver_func(session, connection, retryable)

    def _takes_txn_number(self, connection: Any) -> bool:
        supported = driver.retry_loop.supports_txn_number(self, connection)
        self._note_session(connection)
        ends, before = self.session_ends, self.bound_to_txn_number
        if ends is not None and ends.expired() and before is not None:
            raise TxnNumberUnsupportedError("the server may have ended the write's session")
        if not supported:
            self._refuse_lost(connection)
            if before is not None:
                raise TxnNumberUnsupportedError("the server supports no retryable writes any more")
        driver.retry_loop.set_retryable(self, supported)
        return supported

    def _refuse_lost(self, connection: Any) -> None:
        """Raises TxnNumberLostError for a write that lost its number on the way."""
        if driver.retry_loop.lost_its_txn_number(self, connection):
            driver.retry_loop.set_retryable(self, True)
            raise TxnNumberLostError(
                "the server ceased to be a known primary before the write was sent"
            )

    def _note_session(self, known_to: Any) -> None:
        """``known_to``: the connection, or what is known of all servers."""
        if self.numbered_since is not None:
            timeout = driver.sessions.session_timeout(known_to)
            ends = self.numbered_since + timeout
            self.session_ends = Deadline(self.runtime.executor.clock, ends, timeout)

    def selected(self, server: Any) -> None:
        """Before anything is sent to the server that was selected.

        Raises CircuitBreakerOpenError or OverloadShedError, both also pymongo's AutoReconnect.
        """
        if self.call is NOT_OURS or not self.call.has_operations:
            return
        try:
            priority = self.call.wanted(self.runtime.rules, "priority") or NORMAL
            self.permit = self.limits.admit(self, server, priority)
        except (CircuitBreakerOpenError, OverloadShedError):
            driver.selection.note_server(self, server)
            raise
        except faults():
            logger.exception("internal error in pymongo-resilience after a server was selected")

    def operation(self) -> Operation:
        self.check_repeated()
        self.began = self.runtime.executor.clock.now() - self.call.elapsed()
        self.limits = self.runtime.limits.of(driver.retry_loop.client(self))
        operation = self.described()
        operation.deadline, operation.retry_window = self._deadlines()
        return operation

    def described(self) -> Operation:
        """The operation for the retry rules. Reads nothing of the caller's context."""
        call, policy = self.call, self.call.policy(self.runtime.rules)
        kind = Kind.READ if self.only_reads else driver.retry_loop.kind(self)
        method = call.method
        if kind is Kind.GET_MORE and call.batch_of is None and method:
            method += "/getMore"  # a method fetches the batches of a cursor of its own
        return Operation(
            name=call.operation,
            namespace=call.namespace,
            kind=kind,
            strategy=self.runtime.rules.strategy_of(policy),
            retries_enabled=driver.retry_loop.retries_enabled(self, kind),
            in_transaction=driver.retry_loop.in_transaction(self),
            acknowledged=call.acknowledged,
            declared_idempotent=bool(policy.idempotent),
            max_retries=driver.clients.max_retries(driver.retry_loop.client(self)),
            budget=self.runtime.limits.of(driver.retry_loop.client(self)).budget,
            part=call.whole is not None,
            method=method,
            data=NO_DATA if policy.data is None else policy.data,
        )

    def _deadlines(self) -> tuple[Deadline | None, Deadline | None]:
        timeout, clock = driver.csot.timeout_in_force(), self.runtime.executor.clock
        if timeout is None:
            return None, None
        ends = driver.csot.deadline_on(clock)
        if ends is None:
            window = driver.retry_loop.server_selection_timeout(self)
            return None, Deadline.after(clock, window)
        # Of two that are in force, the driver keeps the earlier end, but only the inner length.
        given = shorter(timeout, self.call.timeout or 0)
        return Deadline(clock, ends, given), None

    def attempt(self) -> Any:
        self.runtime.in_flight[id(self)] = ref(self)
        self.call.terminal_detector = None
        self.began = self.runtime.executor.clock.now()
        return self.again()

    def classify(self, error: Exception, operation: Operation) -> Failure:
        self.runtime.in_flight.pop(id(self), None)
        if self.call.waits:
            bounded_waits.over(self.call, None if self.reached_connection else error)
        progress = driver.retry_loop.bulk_progress(self)
        if self.progress is not None and progress != self.progress:
            if operation.attempts:
                self.limits.succeeded(retried=True)
            operation.next_command()
            self.bound_to_txn_number = self.numbered_since = self.session_ends = None
        self.progress = progress
        if isinstance(error, TxnNumberLostError):
            before = self.bound_to_txn_number
            if isinstance(error, TxnNumberUnsupportedError) and before is not None:
                self._report(Evidence.NONE)
                return replace(before, carried_txn_number=False, session_ends=self.session_ends)
            error = AutoReconnect(str(error))
        unselected = isinstance(error, ServerSelectionTimeoutError) and not self.reached_connection
        if unselected and terminal_cause(error) is None:
            with shielded("while a failed selection was explained"):
                from pymongo_resilience_instrumentation.selection import selection_explained  # noqa: PLC0415 - rarely needed

                selection_explained.explain(error, self)
        if terminal_cause(error) is not None:
            driver.selection.forget_transient(error)
        failure = classify.failure_of(
            error,
            classify.Attempt(
                reached_connection=self.reached_connection,
                carried_txn_number=driver.retry_loop.carries_txn_number(self),
                # The loop still has that of the attempt before.
                server=None if unselected else driver.retry_loop.server_address(self),
                min_rtt=driver.csot.min_rtt(),
            ),
        )
        if failure.stage is not Stage.NOT_SENT and not failure.retryable_overload and (
            failure.carried_txn_number or operation.kind is Kind.TRANSACTION_END
        ):  # fmt: skip
            self.numbered_since = self.began if self.numbered_since is None else self.numbered_since
        if self.numbered_since is not None:
            self._note_session(driver.retry_loop.client(self).topology_description)
            failure = replace(failure, session_ends=self.session_ends)
        stopped_bulks.show_as_answered(error)
        if failure.timed_out and failure.code is not None and self.call.attempt_timeout is not None:
            failure = command_limits.as_attempt_timeout(failure, operation)
        if self.resumption is not None:
            own = operation.max_retries
            most = self.runtime.executor.retry_rules.max_retries if own is None else own
            failure = self.resumption.reclassified(failure, operation, most)
        return failure

    def report(self, failure: Failure, operation: Operation) -> Callable[[], Any] | None:
        self._report(evidence(failure))
        with shielded("after an attempt"):
            self.limits.failed(failure, retried=operation.attempts > 0)
            if failure.overloaded and self.runtime.hedges is not None:
                self.runtime.hedges.of(driver.retry_loop.client(self)).budget.overloaded()
        check = driver.next_attempt.needed_check(self, failure)
        return driver.next_attempt.needed_unpin(self, failure) if check is None else check

    def prepare(self, failure: Failure, operation: Operation) -> None:
        if self.last is None or not (failure.no_writes_performed or failure.reason in REFUSED):
            self.last = failure
        driver.next_attempt.prepare_retry(self, failure)
        if failure.reason is RetryReason.ATTEMPT_TIMEOUT:
            command_limits.lift_attempt_timeout(
                self.call, self.runtime.executor.retry_rules, operation, failure
            )
        if self.resumption is not None:
            self.resumption.prepare(self)
        if not (failure.retryable_overload or operation.declared_idempotent) and (
            failure.stage is not Stage.NOT_SENT
            or (follows_specification(operation) and self.bound_to_txn_number is None)
        ):
            # Retryable Writes: where the server of the retry does not support it, the original
            # error is raised. By our own rules, what was never sent is sent without a number.
            self.bound_to_txn_number = failure
        if driver.next_attempt.stays_pinned(self, failure):
            driver.next_attempt.pin_again(self)
        elif (
            driver.retry_loop.is_sharded(self)
            or failure.elsewhere
            or failure.reason is RetryReason.ATTEMPT_TIMEOUT
            or (failure.overloaded and self._avoids_overloaded())
        ):
            if self.avoided is None:
                self.avoided = deprioritized.avoided()
            self.avoiding = deprioritized.avoid(
                driver.next_attempt.deprioritize(self), self.avoiding
            )

    def _avoids_overloaded(self) -> bool:
        """Unless asked to, a read that prefers the primary or secondaries is not moved to the
        other kind of member: it would read older data, or overload the primary."""
        asked = driver.clients.retargets_on_overload(driver.retry_loop.client(self))
        if asked is None:
            asked = self.runtime.config.overload_retargeting
        return not driver.retry_loop.prefers_members(self) if asked is None else asked
