"""A command's limits of time: ``maxTimeMS``, ``attempt_timeout_ms``, and the older options that a
deadline sets aside.

Source: Client Side Operations Timeout, "Command Execution", "timeoutMS overrides deprecated timeout
options" and "Deprecations".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pymongo.errors import ExecutionTimeout

from pymongo_resilience.enabled_flag import EnabledFlag
from pymongo_resilience.internal_errors import faults, logger, shielded
from pymongo_resilience.rules.failure import Failure, RetryReason, Stage
from pymongo_resilience.rules.retry_state import RetryState
from pymongo_resilience_instrumentation import driver, in_progress
from pymongo_resilience_instrumentation.clients.client_registry import ByClient
from pymongo_resilience_instrumentation.driver.connections import LIMIT
from pymongo_resilience_instrumentation.failures.reasons import AttemptTimeoutError, unsent
from pymongo_resilience_instrumentation.interceptor import (
    Entered,
    Function,
    Interceptor,
    Row,
    Wrapper,
)
from pymongo_resilience_instrumentation.operation import Operation

IGNORED = (
    "ignored where an operation has a timeout (timeout_ms, timeoutMS or pymongo.timeout): %s; "
    "give a shorter one there; further cases of this client are not logged"
)


def of_cursors(enabled_flag: EnabledFlag) -> Iterator[Row]:
    """For ``strategy=driver``: only cursors with a timeout that was set through this library."""
    for owner in driver.connections.connections_with(driver.connections.LIMITED):
        yield owner, driver.connections.LIMITED, limit_cursor(enabled_flag)


def limit_cursor(enabled_flag: EnabledFlag) -> Wrapper:
    """The server must not count later batches to the first command's limit."""
    found = in_progress.found

    def wrapper(original: Function, connection: Any, given: Any, kwargs: Any) -> Any:
        operation = found()
        cursor = None if operation is None else operation.cursor
        if cursor is None or not cursor.omits_max_time or not enabled_flag.on:
            return original(*given, **kwargs)
        command = kwargs["cmd"] if "cmd" in kwargs else given[-1]
        own = None if command is None else command.get(LIMIT)
        result = original(*given, **kwargs)
        with shielded("while limiting a command"):
            if timeout := driver.csot.TIMEOUT.get():
                _adjust(connection, command, own, timeout, operation)
        return result

    return wrapper


def wrapped(enabled_flag: EnabledFlag) -> Iterator[Row]:
    for owner in driver.connections.connections_with(driver.connections.LIMITED):
        yield owner, driver.connections.LIMITED, limit(enabled_flag)
    for module, name in driver.connections.receivers():
        yield module, name, Reply()


def limit(enabled_flag: EnabledFlag) -> Wrapper:
    """Less than a millisecond is refused; a timeout of 0 sets the older limits aside.

    A cursor's first command has none by iteration; an attempt may have a shorter one.
    """
    timeout_in_force, found = driver.csot.TIMEOUT.get, in_progress.found
    warned: ByClient[bool] = ByClient(lambda _: True)

    def wrapper(original: Function, connection: Any, given: Any, kwargs: Any) -> Any:
        timeout, operation = timeout_in_force(), found()
        attempt = None if operation is None else operation.attempt_timeout
        if (timeout is None and attempt is None) or not enabled_flag.on:
            return original(*given, **kwargs)
        # None for a getMore, which gets no limit: it may wait for news.
        command = kwargs["cmd"] if "cmd" in kwargs else given[-1]
        own = None if command is None else command.get(LIMIT)
        try:
            result = original(*given, **kwargs)
        except ExecutionTimeout as error:
            unsent(error)
            raise
        try:
            # Most commands have time left, and are of no cursor.
            has_time = timeout and command and command.get(LIMIT)
            if timeout is not None and not (has_time and operation and operation.cursor is None):
                _adjust(connection, command, own, timeout, operation)
            if timeout is not None and own is not None and operation is not None:
                _warn_once(warned, operation)
            if operation is not None and attempt is not None:
                operation.reply_within = None if command is None else attempt
                if command is not None:
                    driver.connections.limit_attempt(connection, command, attempt)
        except ExecutionTimeout:
            raise
        except faults():
            logger.exception("internal error in pymongo-resilience while limiting a command")
        return result

    return wrapper


def _warn_once(warned: ByClient[bool], operation: Operation) -> None:
    if operation.name != "runCommand" and not warned.known(operation.client):
        warned.of(operation.client)
        logger.warning(IGNORED, "maxTimeMS")


def _adjust(
    connection: Any, command: Any, own: int | None, timeout: float, operation: Operation | None
) -> None:
    # What is in a document for command() is the application's affair.
    document = operation is not None and operation.name == "runCommand"
    if not timeout:
        if not document:
            driver.connections.lift_limits(connection, command)
    elif command is None:
        return
    elif operation is not None and operation.cursor is not None and operation.cursor.omits_max_time:
        command.pop(LIMIT, None)
        if document and own is not None:
            command[LIMIT] = own
    elif command.get(LIMIT) == 0:
        # It would be without end: refused in the driver's words and shape.
        text = f"operation would exceed time limit, remaining timeout:{driver.csot.remaining():.5f}"
        text += " < 1 ms "
        raise unsent(ExecutionTimeout(text, 50, {"ok": 0, "errmsg": text, "code": 50}))


class Reply(Interceptor):
    """A reply is awaited no longer than ``attempt_timeout_ms``."""

    def wrapper(self, flag: EnabledFlag, asynchronous: bool) -> Wrapper:
        limited, found = super().wrapper(flag, asynchronous), in_progress.found

        def wrapper(original: Function, module: Any, given: Any, kwargs: Any) -> Any:
            operation = found()
            if operation is None or operation.reply_within is None:
                return original(*given, **kwargs)
            return limited(original, module, given, kwargs)

        return wrapper

    def enter(self, _given: tuple[Any, ...], _kwargs: dict[str, Any]) -> Entered:
        operation: Any = in_progress.found()
        seconds, operation.reply_within = operation.reply_within, None
        return Entered(seconds, driver.csot.within(seconds))

    def failed(self, entered: Entered | None, error: BaseException, *_: Any) -> BaseException:
        left = driver.csot.remaining()
        # Once the operation's own deadline is over, it is that one's.
        over = left is not None and left <= 0
        if entered is None or not isinstance(error, TimeoutError) or over:
            return error
        late = AttemptTimeoutError(entered.instance)
        late.__cause__ = error.__cause__
        return late


def with_limit(operation: Operation, failure: Failure, state: RetryState) -> Failure:
    """Add to a failure with code 50 whose time limit it was. What was not sent for want of time
    says nothing about the server."""
    if failure.stage is Stage.NOT_SENT:
        return failure
    if operation.application_limit_ms is not None:
        return replace(failure, application_limit_ms=operation.application_limit_ms)
    deadline = state.deadline
    if operation.attempt_timeout is None or (deadline is not None and not deadline.allows(0)):
        return failure
    return replace(failure, reason=RetryReason.ATTEMPT_TIMEOUT, timed_out=False)


def warn_of_ignored_options(client: Any, default_ms: int | None) -> None:
    """Where all that a client does has a timeout, name its older options, which have no effect."""
    with shielded("before the calls of a client"):
        options, pool = client.options, client.options.pool_options
        if options.timeout is None and default_ms is None:
            return
        older = {
            "socketTimeoutMS": pool.socket_timeout,
            "waitQueueTimeoutMS": pool.wait_queue_timeout,
            "wtimeout": options.write_concern.document.get("wtimeout"),
        }
        ignored = [name for name, value in older.items() if value is not None]
        if ignored:
            logger.warning(IGNORED, ", ".join(ignored))
