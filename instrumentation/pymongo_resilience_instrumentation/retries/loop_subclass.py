"""The subclass that runs in place of the driver's retry loop, for every operation of every client.

The first attempt is the driver's own. Once it has failed, the engine's executor decides, and makes
the next ones. What is no part of an operation yet, such as a commit or a method that was bound
before ``instrument()``, gets a call of its own that keeps its deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from sys import exception
from typing import Any
from weakref import ref

from pymongo.errors import AutoReconnect

from pymongo_resilience.breakers import Permit
from pymongo_resilience.errors import CircuitBreakerOpenError
from pymongo_resilience.internal_errors import faults, is_closing, logger, shielded
from pymongo_resilience.rules.budget import RetryBudget
from pymongo_resilience.rules.failure import Evidence, Failure, RetryReason, evidence
from pymongo_resilience.rules.retry_state import RetryState
from pymongo_resilience_instrumentation import driver, in_progress
from pymongo_resilience_instrumentation.deferred import defer
from pymongo_resilience_instrumentation.interceptor import OperationInterceptor, Subclass
from pymongo_resilience_instrumentation.operation import NEVER, NO_DEADLINE, Operation
from pymongo_resilience_instrumentation.runtime import Runtime
from pymongo_resilience_instrumentation.selection.client_limits import ClientLimits
from pymongo_resilience_instrumentation.telemetry.decisions import UNREPORTED
from pymongo_resilience_instrumentation.timeouts import bounded_waits, command_limits

from . import failed_attempts
from .txn_number import TxnNumber, TxnNumberLostError, TxnNumberUnsupportedError, refuse_lost

Run = Callable[..., Any]
"""A method of the loop."""
NOT_OURS: Any = None
"""In place of an operation: the driver's own ``run`` does it all."""


class RetryLoop(driver.retry_loop.DriverLoop):
    """Work for both executors, in one thread or task; mixed into the driver's loop.

    What a healthy operation does not need is an attribute of the class until it is set.
    """

    runtime: Runtime
    drivers_run: Callable[[], Any]
    operation: Operation
    limits: ClientLimits
    """The client's; known where it may refuse attempts, and once one has failed."""
    permit: Permit | None = None
    """The breaker's, until the attempt's outcome is reported to it."""
    last: Failure | None = None
    """The one whose error is raised, unless a later one says more."""
    txn_number: TxnNumber
    """Known once an attempt has failed."""
    only_reads = False
    resumption: Any = None
    """A Fetch (features/resumable_finds/), of a batch."""
    progress: tuple[Any, int] | None = None
    """Of a bulk, where it stood after the last failure."""
    began = 0.0
    """When the last attempt did, on the executor's clock; known once one has failed."""
    final_error = failed_attempts.final_error

    def begin(self) -> bool:
        """Before the first attempt. False after an internal error: the driver runs it alone."""
        operation, runtime = self.operation, self.runtime
        operation.terminal_detector = None
        self.connection, self.was_retryable = None, driver.retry_loop.is_retryable(self)
        runtime.in_flight[id(self)] = ref(self)
        try:
            if operation.only_reads:
                # The runner's own command comes first; what others run inside comes later.
                self.only_reads, operation.only_reads = True, False
                if operation.resumption is not None:
                    self.resumption, operation.resumption = operation.resumption, None
                    self.resumption.begin(self)
                if operation.hedge is not None:
                    operation.hedge.began(self)
            if runtime.admits:
                self.limits = runtime.limits.of(self._client)
        except faults():
            logger.exception("internal error in pymongo-resilience before the driver's loop")
            self.release(None)
            self.leave_to_driver()
            return False
        return True

    def leave_to_driver(self, error: Exception | None = None) -> None:
        self.operation = NOT_OURS
        super().leave_to_driver(error)

    def undecided(self, error: Exception) -> Callable[[], Any]:
        self.release(error)
        self.leave_to_driver(error)
        return self.drivers_run

    def lost_race(self, error: Exception) -> bool:
        """Whether a try of a hedged read ends with its ``error``, since the other one goes on."""
        self.runtime.in_flight.pop(id(self), None)
        return self.operation.hedge is not None and self.operation.hedge.ends(self, error)

    def release(self, error: BaseException | None) -> None:
        """The run is over. Once more, it changes nothing.

        ``error``: what the run ends with, None where its last attempt succeeded.
        """
        operation, runtime = self.operation, self.runtime
        runtime.in_flight.pop(id(self), None)
        if operation is NOT_OURS:
            return
        unfinished = error is not None and is_closing(error)
        if error is None and not self.began:
            limits = runtime.limits.get(id(self._client))
            if limits is not None and not limits.budget.full:
                limits.budget.succeeded(retried=False)
        if self.permit is not None:
            # An unacknowledged write has no outcome; a failed attempt was reported before.
            no_reply = error is not None or (operation.public and not operation.acknowledged)
            shown = Evidence.NONE if no_reply else Evidence.HEALTHY
            self._end_permit(shown, unfinished=unfinished)
        if self.began:
            # An error's frames hold the loop: nothing may keep the two alive together.
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

    def limit_selection(self, own: float) -> AbstractContextManager[None]:
        """In force while a server is selected, for ``own`` seconds (``serverSelectionTimeoutMS``).
        Checkout and connecting have what the selection leaves of them."""
        if self.operation is NOT_OURS:
            return NO_DEADLINE
        try:
            # With 0 the servers are looked at once. A connection takes some time.
            self.operation.waits_until = driver.csot.now() + (own or NEVER)
            return driver.csot.within(own) if driver.csot.timeout_in_force() else NO_DEADLINE
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
            self._server = server  # the driver notes it only now
            raise
        except faults():
            logger.exception("internal error in pymongo-resilience after a server was selected")

    @property
    def budget(self) -> RetryBudget:
        return self.limits.budget

    def retry_state(self) -> RetryState:
        self.check_repeated()
        clock = self.runtime.executor.clock
        self.txn_number = TxnNumber(clock)
        self.began = clock.now() - self.operation.elapsed()
        state = failed_attempts.described(self)
        state.deadline, state.retry_window = failed_attempts.deadlines(self)
        return state

    def attempt(self) -> Any:
        self.runtime.in_flight[id(self)] = ref(self)
        self.operation.terminal_detector = None
        self.began = self.runtime.executor.clock.now()
        return self.again()

    def classify(self, error: Exception, state: RetryState) -> Failure:
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
        progress = driver.retry_loop.bulk_progress(self)
        if self.progress is not None and progress != self.progress:
            # A bulk has gone on: the retry of its last command has succeeded.
            if state.attempts:
                self.budget.succeeded(retried=True)
            state.next_command()
            self.txn_number.next_command()
        self.progress = progress

    def report(self, failure: Failure, state: RetryState) -> Callable[[], Any] | None:
        self._end_permit(evidence(failure))
        try:
            self.budget.failed(failure, retried=state.attempts > 0)
            if failure.overloaded and self.runtime.hedges is not None:
                self.runtime.hedges.of(self._client).budget.overloaded()
        except faults():
            logger.exception("internal error in pymongo-resilience after an attempt")
        return driver.retry_loop.needed_release(self, failure)

    def prepare(self, failure: Failure, state: RetryState) -> None:
        unsent = failure.reason is RetryReason.CIRCUIT_BREAKER_OPEN
        if self.last is None or not (failure.no_writes_performed or unsent):
            self.last = failure
        driver.retry_loop.prepare_retry(self, failure)
        if failure.reason is RetryReason.ATTEMPT_TIMEOUT:
            rules = self.runtime.executor.retry_rules
            command_limits.lift_attempt_timeout(self.operation, rules, state, failure)
        if self.resumption is not None:
            self.resumption.prepare(self)
        self.txn_number.bind(failure, state)
        if driver.retry_loop.stays_pinned(self, failure):
            driver.retry_loop.pin_again(self)
        elif self._avoids_server(failure):
            driver.retry_loop.deprioritize(self, driver.retry_loop.server(self))

    def _avoids_server(self, failure: Failure) -> bool:
        """Whether the next attempt goes elsewhere, where there are others and that helps.

        Unless asked to, a read that prefers the primary or secondaries is not moved off an
        overloaded member: it would read older data, or overload the primary.
        """
        if (
            driver.retry_loop.topology_type(self) == "Sharded"
            or failure.elsewhere
            or failure.reason is RetryReason.ATTEMPT_TIMEOUT
        ):
            return True
        if not failure.overloaded:
            return False
        asked = driver.clients.retargets_on_overload(self._client)
        if asked is None:
            asked = self.runtime.config.overload_retargeting
        return not driver.retry_loop.prefers_members(self) if asked is None else bool(asked)


def subclass(runtime: Runtime, asynchronous: bool) -> Subclass:
    run, get_server = (_async_run, _async_get_server) if asynchronous else (_run, _get_server)
    loop_operation = LoopOperation(runtime)

    def derive(drivers: Any) -> type:
        name = driver.retry_loop.run_name(drivers)
        drivers_run = getattr(drivers, name)

        def entered(loop: Any) -> Any:
            if _inside(loop):
                return ours(loop)
            loop.leave_to_driver()
            return drivers_run(loop)

        ours = run(
            runtime, drivers_run, loop_operation.around(entered, runtime.enabled_flag, asynchronous)
        )
        select = driver.selection.SELECT
        more = {"runtime": runtime, "drivers_run": drivers_run, name: ours}
        more[select] = get_server(runtime, getattr(drivers, select))
        return driver.retry_loop.subclass(drivers, RetryLoop, ("operation",), more)

    return Subclass(derive)


class LoopOperation(OperationInterceptor):
    """For a loop that is no part of an operation yet."""

    def enter(self, given: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation | None:  # noqa: ARG002 - none
        loop = given[0]
        around = in_progress.found()
        if around is not None and around.reporting:
            self.runtime.warn_once(UNREPORTED)
            driver.retry_loop.retry_once_at_most(loop)
            return None
        client = driver.retry_loop.client(loop)
        name, target = driver.retry_loop.operation_name(loop), driver.retry_loop.namespace(loop)
        operation = Operation(client, name, target)
        operation.session = driver.retry_loop.session(loop)
        operation.public, operation.unknown_concern = False, True
        self.runtime.begin(operation, span=False)
        return operation


def _inside(loop: Any) -> bool:
    """Whether the loop is part of an operation, and may be ours."""
    operation = in_progress.current()
    return (
        operation is not None
        and operation.client is driver.retry_loop.client(loop)
        and loop.runtime.enabled_flag.acts()
    )


def _run(runtime: Runtime, drivers: Run, outside: Run) -> Run:
    """``outside``: what runs a loop that is no part of an operation yet."""
    enabled_flag, found, executor = runtime.enabled_flag, in_progress.found, runtime.executor

    def run(self: RetryLoop) -> Any:
        failed: Exception | None = None
        operation = found()
        if (
            operation is None
            or operation.ended
            or not enabled_flag.on
            or operation.client is not self._client
        ):
            return outside(self)
        self.operation, operation.history.loop = operation, self
        try:
            if not self.begin():
                return drivers(self)
            try:
                result = self._read() if self._is_read else self.first_write()
            except Exception as error:  # noqa: BLE001 - the rules decide
                failed = error
            if failed is not None:
                if self.lost_race(failed):
                    raise failed
                result = executor.run(self, failed)
            if (session := self._session) is not None and session.in_transaction:
                self.note_completed()
            self.release(None)
            return result  # noqa: TRY300 - the driver's own errors, and ours, release it alike
        except BaseException as error:
            self.release(error)
            raise
        finally:
            del failed

    return run


def _async_run(runtime: Runtime, drivers: Run, outside: Run) -> Run:
    enabled_flag, found, executor = runtime.enabled_flag, in_progress.found, runtime.async_executor

    async def run(self: RetryLoop) -> Any:
        failed: Exception | None = None
        operation = found()
        if (
            operation is None
            or operation.ended
            or not enabled_flag.on
            or operation.client is not self._client
            # The cleanup in a coroutine that is being closed is the driver's alone.
            or (exception() is not None and not enabled_flag.acts())
        ):
            return await outside(self)
        self.operation, operation.history.loop = operation, self
        try:
            if not self.begin():
                return await drivers(self)
            try:
                result = await (self._read() if self._is_read else self.first_write())
            except Exception as error:  # noqa: BLE001 - the rules decide
                failed = error
            if failed is not None:
                if self.lost_race(failed):
                    raise failed
                result = await executor.run(self, failed)
            if (session := self._session) is not None and session.in_transaction:
                self.note_completed()
            self.release(None)
            return result  # noqa: TRY300 - the driver's own errors, and ours, release it alike
        except BaseException as error:
            self.release(error)
            raise
        finally:
            del failed

    return run


def _get_server(runtime: Runtime, drivers: Run) -> Run:
    """What the driver's selection ends with is what counts: where there is one address only or the
    operation is bound to one, the selector is never called."""
    admits, timeout_in_force = runtime.admits, driver.csot.TIMEOUT.get
    selection_timeout = driver.retry_loop.server_selection_timeout

    def get_server(loop: Any) -> Any:
        timeout, own = timeout_in_force(), selection_timeout(loop)
        if timeout is None or 0 < timeout <= own:
            server = drivers(loop)
        else:
            with loop.limit_selection(own):
                server = drivers(loop)
        if admits and loop.runtime is runtime:
            loop.selected(server)
        return server

    return get_server


def _async_get_server(runtime: Runtime, drivers: Run) -> Run:
    admits, timeout_in_force = runtime.admits, driver.csot.TIMEOUT.get
    selection_timeout = driver.retry_loop.server_selection_timeout

    async def get_server(loop: Any) -> Any:
        timeout, own = timeout_in_force(), selection_timeout(loop)
        if timeout is None or 0 < timeout <= own:
            server = await drivers(loop)
        else:
            with loop.limit_selection(own):
                server = await drivers(loop)
        if admits and loop.runtime is runtime:
            loop.selected(server)
        return server

    return get_server
