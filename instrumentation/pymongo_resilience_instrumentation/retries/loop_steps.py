"""The steps of a run of pymongo's retry loop that sync and async clients share."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING
from weakref import ref

from pymongo_resilience.errors import CircuitBreakerOpenError
from pymongo_resilience.executor import UndecidedError
from pymongo_resilience.internal_errors import internal_error_types, logger
from pymongo_resilience.rules.failure import Evidence
from pymongo_resilience_instrumentation import driver, in_progress
from pymongo_resilience_instrumentation.driver.attempts import DriverAttempts, PymongoLoop
from pymongo_resilience_instrumentation.timeouts import bounded_waits, command_limits

from .after_failure import Retries, end_permit, failed_before_sending

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.driver.protocols import Server
    from pymongo_resilience_instrumentation.runtime import Runtime


def begin_run(runtime: Runtime, loop: PymongoLoop) -> DriverAttempts | None:
    """Begin a run of ``loop``, before its first attempt.

    Returns:
        The attempts of the run, or None if the loop is not part of an operation yet.
    """
    operation, attempts = in_progress.current_or_ended(), DriverAttempts(loop)
    client = attempts.client
    if (
        operation is None
        or operation.ended
        or operation.call.client is not client
        or not runtime.enabled_flag.on
    ):
        return None
    attempts.operation, operation.attempts = operation, attempts
    # Look the limits up without a call of ours, because every operation does so.
    attempts.client_limits = runtime.limits.get(id(client)) or runtime.limits.of(client)
    loop.attempts, loop.send = attempts, attempts.send
    if operation.terminal_detector is not None:
        operation.begin_attempt()
    if operation.hooks is not None and (hooks := operation.take_hooks()) is not None:
        # The operation's own command runs in its first loop; commands of nested operations come
        # later.
        attempts.hooks = hooks
        hooks.begin(attempts)
    # Other threads look for attempts here, to interrupt those on a silent server.
    runtime.in_flight[id(attempts)] = ref(attempts)
    return attempts


def limit_selection(attempts: DriverAttempts) -> AbstractContextManager[None] | None:
    """Return a context that limits server selection, or None if no limit is needed.

    The limit is the wait for a transaction's router, or the client's ``serverSelectionTimeoutMS``.

    Raises:
        ExecutionTimeout: If the incoming request's deadline has passed.
    """
    retries, limits = attempts.retries, attempts.operation.limits
    if retries is not None and retries.router_wait_ends is not None:
        return driver.csot.within(max(0.0, retries.router_wait_ends - driver.csot.now()))
    if limits.without_request is not None:
        command_limits.check_request(limits)
    timeout = driver.csot.active_timeout()
    if not timeout:
        return None
    own = attempts.client_limits.selection_timeout
    if own is None:
        own = attempts.client_limits.selection_timeout = attempts.server_selection_timeout
    # If the deadline is later, pymongo would wait for a server until the deadline.
    return None if timeout <= own else driver.csot.within(own)


def admit(attempts: DriverAttempts, server: Server) -> None:
    """Get a permit from the selected server's circuit breaker, before anything is sent.

    Raises:
        CircuitBreakerOpenError: If the breaker refuses. This is also a pymongo AutoReconnect.
    """
    # killCursors and endSessions are never refused.
    if not attempts.operation.has_operations:
        return
    try:
        if (breakers := attempts.client_limits.breakers) is not None:
            attempts.permit = breakers.admit(attempts, driver.selection.address(server))
    except CircuitBreakerOpenError:
        # pymongo's loop has not stored the server yet, but the error, the log, and the next
        # selection need it.
        attempts.note_server(server)
        raise


def after_first_failure(
    runtime: Runtime, attempts: DriverAttempts, failed: Exception
) -> Retries | None:
    """Return the retries of a run whose first attempt ended with ``failed``.

    Returns:
        None if the run ends with the error, without asking the rules.

    Raises:
        UndecidedError: After a bug of the library.
    """
    if failed_before_sending(attempts, failed):
        raise UndecidedError(None) from failed
    runtime.in_flight.pop(id(attempts), None)
    # The coroutine is being closed, so nothing may be awaited or sent any more.
    if attempts.operation.is_closed_by(failed):
        return None
    hooks = attempts.hooks
    if hooks is None and attempts.streams():
        return None
    try:
        retries = Retries(runtime, attempts)
    except internal_error_types() as internal_error:
        raise UndecidedError(failed) from internal_error
    return None if hooks is not None and hooks.gives_up(retries, failed) else retries


def end_run(attempts: DriverAttempts, error: BaseException | None) -> None:
    """End a run. A second call has no effect.

    Args:
        attempts: The attempts of the run.
        error: The error that the run ends with, or None if its last attempt succeeded.
    """
    operation, retries = attempts.operation, attempts.retries
    unfinished = False
    if error is None:
        session, budget = attempts.session, attempts.client_limits.budget
        if session is not None and session.in_transaction:
            # pymongo's own ``run`` does this after a success, but it is not used here.
            attempts.note_completed()
        # The executor has counted a success after retries. A full budget need not count any, so
        # most successes cost nothing here.
        if not (budget.full or retries is not None):
            budget.succeeded(retried=False)
    else:
        unfinished = operation.is_closed_by(error)
    if attempts.permit is not None:
        # An unacknowledged write shows nothing about the server. An error is left out too: if it
        # shows anything, ``report`` has already told the breaker.
        no_reply = error is not None or (
            operation.call.is_public and not operation.call.is_acknowledged
        )
        shown = Evidence.NONE if no_reply else Evidence.HEALTHY
        end_permit(attempts, shown, unfinished=unfinished)
    if attempts.hooks is not None:
        attempts.hooks = None
    if retries is not None:
        retries.end()
    if operation.limits.waits:
        bounded_waits.end_waits(operation, None if attempts.connection is not None else error)


def end_with_error(attempts: DriverAttempts, error: BaseException) -> None:
    """End a run with ``error``.

    A bug of the library in this step is logged and does not replace the error.
    """
    try:
        end_run(attempts, error)
    except internal_error_types() as internal_error:
        log_after_run(internal_error)


def log_after_run(internal_error: Exception) -> None:
    """Log a bug of the library at the end of a run."""
    logger.error(
        "internal error in pymongo-resilience after the driver's loop", exc_info=internal_error
    )


def left_to_pymongo(
    attempts: DriverAttempts | None,
    loop: PymongoLoop,
    base: type,
    error: Exception,
    failed: Exception | None = None,
) -> PymongoLoop:
    """Return pymongo's own loop, to continue after an internal error.

    Args:
        attempts: The attempts of the run, if it has begun.
        loop: pymongo's loop.
        base: pymongo's own class of the loop.
        error: The internal error.
        failed: The error of the last attempt; None if nothing was sent.
    """
    if isinstance(error, UndecidedError):
        failed = error.failed
    text = "internal error in pymongo-resilience before the driver's loop"
    if failed is not None:
        text = (
            "internal error in pymongo-resilience after a failed attempt: pymongo's own retry "
            "rules apply to this operation (please report it)"
        )
    logger.error(text, exc_info=error.__cause__ or error)
    # Return the breaker's permit and end the waits before pymongo continues alone.
    if attempts is not None:
        end_with_error(attempts, failed or error.__cause__ or error)
    return driver.attempts.pymongo_alone(loop, base, failed)
