"""One run of the driver's loop as the engine's work: each attempt is one ``_read`` or ``_write``.

The work stands in for the function that the loop calls once it has a connection. That it was
called is how we know that a command may have been sent, whether or not anybody listens.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from pymongo.errors import (
    AutoReconnect,
    ConnectionFailure,
    InvalidOperation,
    OperationFailure,
    ProtocolError,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
)

from pymongo_resilience.deadline import Deadline
from pymongo_resilience.errors import CircuitBreakerOpenError, OverloadShedError
from pymongo_resilience.failure import Stage
from pymongo_resilience.faults import logger
from pymongo_resilience.health import Evidence, evidence
from pymongo_resilience.operation import NO_DATA, Kind, Operation
from pymongo_resilience.policy import shorter
from pymongo_resilience.retry_rules import Rule
from pymongo_resilience.rule_texts import why_not_repeated
from pymongo_resilience.strategy import MongoDBSpecification
from pymongo_resilience.unfinished import closes_a_coroutine
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.deferred import defer
from pymongo_resilience_instrumentation.failures import classify as failures
from pymongo_resilience_instrumentation.failures.errors_raised import CLOSED
from pymongo_resilience_instrumentation.failures.origins import state_origin
from pymongo_resilience_instrumentation.failures.terminal_causes import terminal_cause
from pymongo_resilience_instrumentation.selection.selection_errors import name_servers_once
from pymongo_resilience_instrumentation.timeouts import cursor_timeouts, wait_times
from pymongo_resilience_instrumentation.timeouts.errors import elapsed, timed_out

from . import deprioritized

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo_resilience.breaker_states import Permit
    from pymongo_resilience.budget import RetryBudget
    from pymongo_resilience.failure import Failure
    from pymongo_resilience_instrumentation.addresses import Address
    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.runtime import Runtime
    from pymongo_resilience_instrumentation.selection.breakers import ClientBreakers
    from pymongo_resilience_instrumentation.selection.load_shedding import ClientShedders
    from pymongo_resilience_instrumentation.selection.operation_counts import AttemptCount


class GaveUp(Exception):  # noqa: N818 - a signal through the driver's loop, never seen outside
    """Ends the driver's loop, which repeats only what is a PyMongoError."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class TxnNumberLostError(PyMongoError):
    """A retryable write was not sent, since its server would take it for one that is not.

    Raised inside of a checkout, where a network error would make the driver clear its pool.
    """


class TxnNumberUnsupportedError(TxnNumberLostError):
    """The server takes no retryable writes, and an earlier attempt may be applied elsewhere."""


def _method(call: Call, kind: Kind) -> str:
    """As the operation shows it. A method may fetch the batches of a cursor of its own."""
    inside = kind is Kind.GET_MORE and call.batch_of is None and call.method
    return f"{call.method}/getMore" if inside else call.method


class Attempts:
    """Work for both executors; lives as long as one run of the loop, in one thread or task."""

    send: Callable[[Any], Any]
    """The ``_read`` or ``_write`` of the driver's loop, which takes the loop."""
    budget: RetryBudget | None = None
    """Known once an attempt has failed, and before where successes fill it."""
    breakers: ClientBreakers | None = None
    shedders: ClientShedders | None = None
    count: AttemptCount | None = None
    _last: Failure | None = None
    permit: Permit | None = None
    """The breaker's, until it has heard what came of the attempt."""
    _avoided: tuple[Address, ...] | None = None
    """What the operation around this one avoids, where this one avoids something else."""
    _avoiding: deprioritized.Mark | None = None
    _bound_to_txn_number: Failure | None = None
    """After it, no attempt may be sent without the transaction number."""
    _only_reads = False
    _progress: tuple[Any, int] | None = None
    reached_connection = False
    """Whether the last attempt had one: a command may have been sent."""

    def __init__(self, loop: Any, call: Call, owns_call: bool, runtime: Runtime) -> None:
        self._loop = loop
        self.call = call
        self.owns_call = owns_call
        self.runtime = runtime
        if call.only_reads:
            # The runner's own command comes first; what others run inside of the call comes later.
            self._only_reads, call.only_reads = True, False
        self.wants_txn_number = driver.retry_loop.carries_txn_number(loop)
        self._func = driver.retry_loop.func(loop)

    def begin(self) -> None:
        """From now on ``release`` is needed, which may be called more than once."""
        avoided = deprioritized.avoided()
        if avoided:
            self._avoided = avoided
            self._avoiding = deprioritized.begin()
        driver.retry_loop.replace_func(self._loop, self)

    def release(self, error: BaseException | None) -> None:
        """Give the loop its function back: nothing may keep the two alive together.

        ``error``: what the run ends with, None where its last attempt succeeded.
        """
        unfinished = error is not None and closes_a_coroutine(error)
        if self.count is not None:
            try:
                if unfinished:
                    defer(self.count.release)
                else:
                    self.count.release()
            except Exception:
                logger.exception("internal error in pymongo-resilience after an attempt")
        if self.permit is not None:
            # Of an unacknowledged write nobody knows; of a failed attempt, it was told before.
            unheard = error is not None or (self.call.public and not self.call.acknowledged)
            if unfinished:
                defer(partial(self.permit.report, Evidence.NONE))
            else:
                self._report_to_breaker(Evidence.NONE if unheard else Evidence.HEALTHY)
        if self._avoided is not None:
            if not unfinished:
                deprioritized.end(self._avoiding, self._avoided)
            self._avoided = None
        if self.call.waits:
            wait_times.over(self.call, None if self.reached_connection else error)
        if not self.call.ended:
            self.call.selected = driver.retry_loop.server(self._loop)
        driver.retry_loop.replace_func(self._loop, self._func)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.release(error)

    def __call__(self, *args: Any) -> Any:
        if self.wants_txn_number:
            session, connection, retryable = args
            if self._last is not None:
                args = session, connection, self._takes_txn_number(connection)
            elif not retryable:
                refuse_lost_txn_number(self._loop, connection)
        self.reached_connection = True
        return self._func(*args)

    def _takes_txn_number(self, connection: Any) -> bool:
        """Whether a repeated attempt is sent as a retryable write; of the first, the driver says.

        Raises TxnNumberLostError where it must not be sent.
        """
        loop = self._loop
        try:
            supported = driver.retry_loop.supports_txn_number(loop, connection)
        except Exception:
            logger.exception("internal error in pymongo-resilience before a write was sent")
            return bool(driver.retry_loop.is_retryable(loop))
        if not supported:
            refuse_lost_txn_number(loop, connection)
            if self._bound_to_txn_number is not None:
                raise TxnNumberUnsupportedError("the server supports no retryable writes any more")
        driver.retry_loop.set_retryable(loop, supported)
        return supported

    def ask_breaker(self, server: Any) -> None:
        """Before anything is sent to the server that was selected.

        Raises CircuitBreakerOpenError or OverloadShedError, both also pymongo's AutoReconnect.
        """
        try:
            if self.shedders is not None:
                self.shedders.admit(self._loop, server, self.call)
            if self.breakers is not None:
                self.permit = self.breakers.admit(self._loop, server, self)
        except (CircuitBreakerOpenError, OverloadShedError):
            driver.selection.note_server(self._loop, server)
            raise
        except Exception:
            logger.exception(
                "internal error in pymongo-resilience before a connection was checked out"
            )

    def _report_to_breaker(self, what: Evidence) -> None:
        permit = self.permit
        try:
            if permit is None:
                return
            if what is Evidence.HEALTHY:
                permit.success()
            else:
                permit.report(what)
            self.permit = None
        except Exception:
            logger.exception("internal error in pymongo-resilience after an attempt")

    def attempt(self) -> Any:
        self.reached_connection = False
        self.call.terminal_detector = None
        return self.send(self._loop)

    def operation(self) -> Operation:
        loop = self._loop
        call = self.call
        rules = self.runtime.rules
        said = call.policy(rules)
        kind = Kind.READ if self._only_reads else driver.retry_loop.kind(loop)
        deadline, window = self._deadlines()
        self.budget = self.runtime.budgets.of(call.client)
        return Operation(
            name=call.operation,
            namespace=call.namespace,
            kind=kind,
            strategy=rules.strategy if said.strategy is None else said.strategy,
            retries_enabled=driver.retry_loop.retries_enabled(loop, kind),
            in_transaction=driver.retry_loop.in_transaction(loop),
            acknowledged=call.acknowledged,
            declared_idempotent=bool(said.idempotent),
            deadline=deadline,
            retry_window=window,
            max_retries=driver.clients.max_retries(driver.retry_loop.client(loop)),
            budget=self.budget,
            shedders=self.shedders,
            method=_method(call, kind),
            data=NO_DATA if said.data is None else said.data,
        )

    def _deadlines(self) -> tuple[Deadline | None, Deadline | None]:
        timeout, clock = driver.deadline.timeout_in_force(), self.runtime.executor.clock
        if timeout is None:
            return None, None
        left = driver.deadline.remaining()
        if left is None:
            window = driver.retry_loop.server_selection_timeout(self._loop)
            return None, Deadline.after(clock, window)
        # Of two that are in force, the driver keeps the earlier end, but only the inner length.
        given = shorter(timeout, self.call.timeout or 0)
        return Deadline(clock, clock.now() + left, given), None

    def describe(self, error: Exception, operation: Operation) -> Failure:
        if self.call.waits:
            wait_times.over(self.call, None if self.reached_connection else error)
        progress = driver.retry_loop.bulk_progress(self._loop)
        if self._progress is not None and progress != self._progress:
            operation.next_command()
            self._bound_to_txn_number = None
        self._progress = progress
        if isinstance(error, TxnNumberLostError):
            before = self._bound_to_txn_number
            if isinstance(error, TxnNumberUnsupportedError) and before is not None:
                self._report_to_breaker(Evidence.NONE)
                return replace(before, carried_txn_number=False)
            error = AutoReconnect(str(error))
        unselected = isinstance(error, ServerSelectionTimeoutError) and not self.reached_connection
        if unselected and self.call.likely_cause is not None:
            name_servers_once(error, self.call.likely_cause)
        if terminal_cause(error) is not None:
            driver.waits.forget_transient(error)
        failure = failures.describe(
            error,
            failures.Attempt(
                reached_connection=self.reached_connection,
                carried_txn_number=driver.retry_loop.carries_txn_number(self._loop),
                # The loop still has that of the attempt before.
                server=None if unselected else driver.retry_loop.server_address(self._loop),
                min_rtt=driver.deadline.min_rtt(),
            ),
        )
        if self.permit is not None:
            self._report_to_breaker(evidence(failure))
        return failure

    def leave(self, failure: Failure) -> Callable[[], Any] | None:
        return driver.repetition.needed_unpin(self._loop, failure)

    def prepare(self, failure: Failure, operation: Operation) -> None:
        if self._last is None or not (failure.no_writes_performed or _refused(failure)):
            self._last = failure
        driver.repetition.prepare_retry(self._loop, failure, operation.attempts, self._last.error)
        follows_texts = isinstance(operation.strategy, MongoDBSpecification)
        if not (failure.retryable_overload or operation.declared_idempotent) and (
            failure.stage is not Stage.NOT_SENT
            or (follows_texts and self._bound_to_txn_number is None)
        ):
            # Retryable Writes: where the server of the retry does not support it, the original
            # error is raised. By our own rules, what was never sent is sent without a number.
            self._bound_to_txn_number = failure
        if driver.repetition.stays_pinned(self._loop, failure):
            driver.repetition.pin_again(self._loop)
        elif (
            driver.retry_loop.is_sharded(self._loop)
            or failure.elsewhere
            or (failure.overloaded and self._avoids_overloaded())
        ):
            if self._avoided is None:
                self._avoided = deprioritized.avoided()
            self.runtime.need("avoided server")
            self._avoiding = deprioritized.avoid(
                driver.repetition.deprioritize(self._loop), self._avoiding
            )

    def _avoids_overloaded(self) -> bool:
        """Unless asked to, a read that prefers the primary or secondaries is not moved to the
        other kind of member: it would read older data, or overload the primary."""
        asked = driver.clients.retargets_on_overload(driver.retry_loop.client(self._loop))
        if asked is None:
            asked = self.runtime.config.overload_retargeting
        return not driver.retry_loop.prefers_members(self._loop) if asked is None else asked

    def final_error(self, failure: Failure, rule: Rule, operation: Operation) -> Exception:
        if failure.stage is Stage.NOT_SENT and self.runtime.closings.closed(self.call.client):
            return GaveUp(_closed(failure.error))
        raised = self._chosen(failure)
        error = raised.error
        if not isinstance(error, PyMongoError):
            return GaveUp(error)
        attempts = len(operation.reasons)
        deadline = operation.deadline
        if rule is not Rule.DEADLINE or deadline is None:
            state_origin(
                error,
                server=raised.server,
                attempts=attempts,
                reasons=operation.reasons[:-1],
                rule=rule,
                why=why_not_repeated(rule, operation, failure),
            )
            self.call.judged = error
            return GaveUp(error)
        return GaveUp(
            timed_out(
                error,
                timeout_s=deadline.timeout,
                elapsed_s=elapsed(self.call),
                attempts=attempts,
                name=operation.method or operation.name,
                reasons=operation.reasons[:-1],
                server=raised.server,
                stage=raised.stage,
                advice=cursor_timeouts.advice(self.call),
            )
        )

    def _chosen(self, failure: Failure) -> Failure:
        """Whose error is raised. Retryable Reads and Writes: the newer, but for those that say less
        than the earlier one."""
        before = self._last
        if before is None or before.error is failure.error:
            return failure
        if failure.repeats_transaction and not before.repeats_transaction:
            # Whoever runs the transaction must hear that it can be repeated.
            return failure
        if _refused(failure):
            if _refused(before):
                return failure
            before.error.__context__ = failure.error
            return before
        out_of_time = failure.timed_out and failure.stage is Stage.NOT_SENT
        if failure.no_writes_performed:
            before.error.__cause__ = failure.error
            return before
        if failure.selection or _of_the_driver(failure.error) or out_of_time:
            before.error.__context__ = failure.error
            return before
        return failure


def refuse_lost_txn_number(loop: Any, connection: Any) -> None:
    """Raises TxnNumberLostError for a write that lost its txnNumber on the way."""
    try:
        lost = driver.retry_loop.lost_its_txn_number(loop, connection)
    except Exception:
        logger.exception("internal error in pymongo-resilience before a write was sent")
        return
    if lost:
        driver.retry_loop.set_retryable(loop, True)
        raise TxnNumberLostError(
            "the server ceased to be a known primary before the write was sent"
        )


def _closed(error: Exception) -> Exception:
    """As the driver tells it, whatever the wait was for that its client's ``close()`` ended."""
    if isinstance(error, InvalidOperation):
        return error
    told = InvalidOperation(CLOSED)
    told.__cause__ = error
    return told


def _refused(failure: Failure) -> bool:
    """By the library itself: an attempt that was made, and failed, says more."""
    return isinstance(failure.error, (CircuitBreakerOpenError, OverloadShedError))


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
