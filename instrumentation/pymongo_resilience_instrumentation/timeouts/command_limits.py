"""The time limits of a command: ``maxTimeMS``, ``attempt_timeout_ms``, and older options.

A timeout that the application sets replaces the older options (maxTimeMS, socketTimeoutMS, wtimeout
and so on), as the specification demands. A timeout from the configuration does not replace the
older options, because the application did not choose between the two. In that case, the shorter
limit applies.
Source: Client Side Operations Timeout, "Command Execution", "timeoutMS overrides deprecated timeout
options" and "Deprecations".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from pymongo.errors import ExecutionTimeout

from pymongo_resilience.enabled_flag import EnabledFlag
from pymongo_resilience.first_use import FirstUse
from pymongo_resilience.internal_errors import contain_internal_errors, internal_error_types, logger
from pymongo_resilience.rules.failure import Failure, RetryReason, Stage
from pymongo_resilience.rules.retry_state import RetryState
from pymongo_resilience_instrumentation import driver, in_progress
from pymongo_resilience_instrumentation.clients.client_registry import ByClient
from pymongo_resilience_instrumentation.driver.connections import LIMIT, socket_timeout_of
from pymongo_resilience_instrumentation.failures.reasons import AttemptTimeoutError, mark_unsent
from pymongo_resilience_instrumentation.interceptor import (
    Entered,
    Function,
    Interceptor,
    Row,
    Wrapper,
)
from pymongo_resilience_instrumentation.limits import Limits
from pymongo_resilience_instrumentation.operation import Operation
from pymongo_resilience_instrumentation.public_operations import COMMIT

if TYPE_CHECKING:
    from types import ModuleType

    from pymongo_resilience_instrumentation.driver.protocols import Client, Command, Connection

T = TypeVar("T")

IGNORED = (
    "ignored: %s. A timeout that the application sets (timeoutMS, pymongo.timeout or override) "
    "replaces these options. To limit an operation, set a shorter timeout. Further cases of this "
    "client are not logged"
)


def of_pymongo(enabled_flag: EnabledFlag, *, configured: bool) -> Iterator[Row]:
    """Yield what to wrap for ``strategy=driver``.

    With this strategy, pymongo enforces every timeout. The library only corrects the limits that
    are sent to the server under a timeout that was set through the library.

    Args:
        enabled_flag: Whether the library is enabled.
        configured: Whether the configuration has a timeout.
    """
    if configured:
        yield driver.csot.MODULE, driver.csot.WRITE_CONCERN, KeepWtimeout()
    for owner in driver.connections.connections_with(driver.connections.LIMITED):
        yield owner, driver.connections.LIMITED, limit_for_pymongo(enabled_flag)


def limit_for_pymongo(enabled_flag: EnabledFlag) -> Wrapper:
    """Return a wrapper of ``Connection.apply_timeout`` for ``strategy=driver``.

    If each batch of a cursor has its own timeout, it removes ``maxTimeMS`` from the first command,
    because the server would apply the limit to all batches together. If the timeout comes from the
    configuration, it keeps the application's own limit if that is shorter.
    """
    current_operation = in_progress.current_or_ended

    def wrapper(
        original: Function, connection: Connection, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        operation = current_operation()
        limits = None if operation is None else operation.limits
        if operation is None or limits is None or not enabled_flag.on:
            return original(*args, **kwargs)
        by_batch = limits.cursor is not None and limits.cursor.omits_max_time
        if not (by_batch or limits.source.is_configuration):
            return original(*args, **kwargs)
        command = kwargs["cmd"] if "cmd" in kwargs else args[-1]
        own = None if command is None else command.get(LIMIT)
        # pymongo replaces the limit in the command by the remaining time.
        result = original(*args, **kwargs)
        with contain_internal_errors("while limiting a command"):
            timeout = driver.csot.TIMEOUT.get()
            if timeout and by_batch:
                _adjust(connection, command, own, timeout, operation)
            if timeout and limits.source.is_configuration and command is not None:
                _keep_configured_limit(command, own, operation)
        return result

    return wrapper


class OurLimit(int):
    """A ``maxTimeMS`` that remains in a document which the application passed to ``command``.

    The type shows that the application did not set it, in case it passes the document again.
    """


def wrapped(enabled_flag: EnabledFlag, *, configured: bool) -> Iterator[Row]:
    """Yield what to wrap, and the replacements. ``configured`` is True if the configuration has any
    timeout.
    """
    if configured:
        yield driver.csot.MODULE, driver.csot.WRITE_CONCERN, KeepWtimeout()
    for owner in driver.connections.connections_with(driver.connections.LIMITED):
        yield owner, driver.connections.LIMITED, limit(enabled_flag)


reply_limits_used = FirstUse()
"""Notes when a reply first gets a limit other than the operation's deadline."""


def for_replies() -> Iterator[Row]:
    """Yield the wrappers that are installed once ``reply_limits_used`` has been noted."""
    for module, name in driver.connections.receivers():
        yield module, name, Reply()


def limit(enabled_flag: EnabledFlag) -> Wrapper:
    """Return a wrapper of ``Connection.apply_timeout``, which sets ``maxTimeMS``.

    If each batch of a cursor has its own timeout, the first command does not get it as
    ``maxTimeMS``, because the server would apply the limit to all batches together. With
    ``attempt_timeout_ms``, the limit may be shorter than the remaining time.
    """
    active_timeout, current_operation = driver.csot.TIMEOUT.get, in_progress.current_or_ended
    warned: ByClient[bool] = ByClient(lambda _: True)

    def wrapper(
        original: Function, connection: Connection, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        timeout, operation = active_timeout(), current_operation()
        limits = None if operation is None else operation.limits
        attempt = None if limits is None else limits.attempt_timeout
        if (timeout is None and attempt is None) or not enabled_flag.on:
            return original(*args, **kwargs)
        # pymongo passes None for a getMore. That gets no limit, because it may wait for new
        # documents.
        command = kwargs["cmd"] if "cmd" in kwargs else args[-1]
        # Remember the application's own limit, because pymongo overwrites it.
        own = None if command is None else command.get(LIMIT)
        try:
            if own is not None and limits is not None and _is_left_over(own, limits):
                own = None
        except internal_error_types():
            logger.exception("internal error in pymongo-resilience while limiting a command")
        try:
            result = original(*args, **kwargs)
        except ExecutionTimeout as error:
            # Too little time is left, so pymongo does not send the command. Mark its error, because
            # it looks like one of the server's.
            mark_unsent(error)
            raise
        try:
            if operation is None or limits is None:
                if timeout is not None:
                    _adjust(connection, command, own, timeout, operation)
            elif (
                # The common case: there is time left, and the command has no other limit. It is not
                # a commit, which may have a ``maxCommitTimeMS`` that pymongo has left out. It is
                # not ``command()`` either, because our limit in the application's document must be
                # marked.
                own is None
                and attempt is None
                and limits.cursor is None
                and command
                and (sent := command.get(LIMIT))
                and COMMIT not in command
                and operation.call.name != "runCommand"
                and not (
                    limits.source.is_configuration and socket_timeout_of(connection) is not None
                )
            ):
                limits.sent_ms = sent
                if limits.application_limit_ms is not None:
                    limits.application_limit_ms = None
            else:
                if own is not None and timeout is not None and not limits.source.is_configuration:
                    _warn_once(warned, operation)
                _apply_other_limits(connection, command, own, timeout, operation)
        except ExecutionTimeout:
            # Raised on purpose, because too little time is left to send the command.
            raise
        except internal_error_types():
            logger.exception("internal error in pymongo-resilience while limiting a command")
        return result

    return wrapper


def _apply_other_limits(
    connection: Connection,
    command: Command | None,
    own: int | None,
    timeout: float | None,
    operation: Operation,
) -> None:
    """Apply the limits other than the operation's deadline, and record the limit that is sent."""
    limits = operation.limits
    is_configuration = limits.source.is_configuration
    if limits.attempt_timeout is not None or (
        is_configuration and socket_timeout_of(connection) is not None
    ):
        reply_limits_used.note()
    if timeout is not None:
        _adjust(connection, command, own, timeout, operation)
        if is_configuration:
            # pymongo has replaced the socket timeout by the remaining time. Restore the
            # application's own.
            driver.connections.keep_socket_timeout(connection)
            if command is not None and (own is not None or COMMIT in command):
                own = _keep_configured_limit(command, own, operation)
    if (attempt := limits.attempt_timeout) is not None:
        # Do not limit a getMore, because it may wait for new documents.
        limits.reply_within = None if command is None else attempt
        limits.attempt_limits_server = command is not None and driver.connections.limit_attempt(
            connection, command, attempt
        )
    if command is None:
        return
    limits.sent_ms = sent = command.get(LIMIT)
    limits.application_limit_ms = None if own is None or own != sent else int(own)
    if sent and own is None and operation.name == "runCommand":
        # The document belongs to the application, which may send it again.
        command[LIMIT] = OurLimit(sent)


def _is_left_over(limit: int, limits: Limits) -> bool:
    """Return True if the limit in a command was set for an earlier attempt or call, not by the
    application.

    pymongo reuses some documents for a retry, and the application may pass the same document to
    ``command`` twice.
    """
    if isinstance(limit, OurLimit):
        return True
    return limit == limits.sent_ms and limits.application_limit_ms is None


def _keep_configured_limit(command: Command, own: int | None, operation: Operation) -> int | None:
    """Restore the application's ``maxTimeMS`` or ``maxCommitTimeMS`` in a command if it is shorter
    than the remaining time.

    Returns:
        The application's limit, or None if the remaining time is sent.
    """
    if own is None and COMMIT in command:
        attempts = operation.attempts
        session = operation.call.session if attempts is None else attempts.session
        own = None if session is None else driver.sessions.max_commit_time_ms(session)
    remaining_ms = command.get(LIMIT)
    # A limit of 0 means no limit.
    if isinstance(own, int | float) and own and (not remaining_ms or own <= remaining_ms):
        command[LIMIT] = own
        return own
    return None


class KeepWtimeout(Interceptor):
    """Keeps the ``wtimeout`` of a write concern if the timeout comes from the configuration.

    pymongo omits it from every command for which a timeout is active.
    """

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Entered | None:
        operation, concern = in_progress.current_or_ended(), args[1]
        if not concern or concern.is_server_default or operation is None:
            return None
        if not operation.limits.source.is_configuration:
            return None
        return Entered(args) if "wtimeout" in concern.document else None

    def succeeded(self, entered: Entered, result: T) -> T:
        command, concern = entered.instance
        command.setdefault("writeConcern", {})["wtimeout"] = concern.document["wtimeout"]
        return result


def _warn_once(warned: ByClient[bool], operation: Operation) -> None:
    if operation.name != "runCommand" and not warned.known(operation.client):
        warned.of(operation.client)
        logger.warning(IGNORED, "maxTimeMS")


def _adjust(
    connection: Connection,
    command: Command | None,
    own: int | None,
    timeout: float,
    operation: Operation | None,
) -> None:
    """Correct the limits that pymongo has applied to a command under a timeout.

    Raises:
        ExecutionTimeout: If less than a millisecond is left, so that the command must not be sent.
    """
    # A document for ``command()`` belongs to the application, so do not remove limits that it set.
    is_document = operation is not None and operation.name == "runCommand"
    limits = None if operation is None else operation.limits
    if not timeout:
        if not (is_document or (limits is not None and limits.source.is_configuration)):
            # The application has disabled the timeout with 0, which also removes the older limits.
            driver.connections.lift_limits(connection, command)
    elif command is None:
        return
    elif limits is not None and limits.cursor is not None and limits.cursor.omits_max_time:
        command.pop(LIMIT, None)
        if is_document and own is not None:
            # Restore the application's own limit, which pymongo has overwritten.
            command[LIMIT] = own
    elif command.get(LIMIT) == 0:
        # pymongo 4.20 sends 0 if less than a millisecond is left, but for the server, 0 means no
        # limit.
        raise _no_time_left()


def _no_time_left() -> ExecutionTimeout:
    """Return the error for a command that is not sent, with pymongo's text and attributes."""
    remaining = max(0.0, driver.csot.remaining() or 0.0)
    text = f"operation would exceed time limit, remaining timeout:{remaining:.5f} < 1 ms "
    error = ExecutionTimeout(text, 50, {"ok": 0, "errmsg": text, "code": 50})
    mark_unsent(error)
    return error


def check_request(limits: Limits) -> None:
    """Raise ExecutionTimeout before an attempt if the incoming request's deadline has passed.

    pymongo would first select a server and get a connection. If the pool had no idle connection,
    pymongo would fail to open one with no time left, and would mark the server as lost.
    """
    left = driver.csot.remaining() if limits.without_request is not None else None
    if left is not None and left <= 0:
        raise _no_time_left()


class Reply(Interceptor):
    """Ends the wait for a reply after ``attempt_timeout_ms``, or after ``socketTimeoutMS`` if that
    is shorter and the timeout comes from the configuration.
    """

    def wrapper(self, flag: EnabledFlag, asynchronous: bool) -> Wrapper:
        limited, current_operation = (
            super().wrapper(flag, asynchronous),
            in_progress.current_or_ended,
        )

        def wrapper(
            original: Function,
            module: ModuleType | None,
            args: tuple[Any, ...],
            kwargs: dict[str, Any],
        ) -> Any:
            # Once applied, this wrapper sees every reply, so return early if there is nothing to
            # limit.
            operation = current_operation()
            limits = None if operation is None else operation.limits
            if limits is None or not (
                limits.reply_within is not None
                or (limits.source.is_configuration and socket_timeout_of(args[0]) is not None)
            ):
                return original(*args, **kwargs)
            return limited(original, module, args, kwargs)

        return wrapper

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Entered:
        operation: Any = in_progress.current_or_ended()
        limits: Limits = operation.limits
        # The limit is for a single reply. Each command sets it again.
        attempt, limits.reply_within = limits.reply_within, None
        own = socket_timeout_of(args[0]) if limits.source.is_configuration else None
        seconds = min(limit for limit in (attempt, own) if limit is not None)
        return Entered(attempt if seconds == attempt else None, driver.csot.within(seconds))

    def failed(
        self, entered: Entered | None, error: BaseException, args: tuple[Any, ...], *_: Any
    ) -> BaseException:
        remaining = driver.csot.remaining()
        # If the operation's own deadline has passed, it has caused the error, not the limit of the
        # attempt.
        has_expired = remaining is not None and remaining <= 0
        if entered is None or not isinstance(error, TimeoutError) or has_expired:
            return error
        # pymongo's error would blame the operation's timeout, but another limit has ended the wait.
        late: OSError = driver.connections.socket_timed_out(args[0])
        if entered.instance is not None:
            late = AttemptTimeoutError(entered.instance)
        late.__cause__ = error.__cause__
        return late


def with_limit(operation: Operation, failure: Failure, state: RetryState) -> Failure:
    """Add to a code 50 failure which time limit has expired, and return the failure.

    The limit may be the application's own ``maxTimeMS`` or ``attempt_timeout_ms``. If it is another
    limit, or if the command was not sent, the failure is returned unchanged.
    """
    if failure.stage is Stage.NOT_SENT:
        return failure
    limits = operation.limits
    if limits.application_limit_ms is not None:
        return replace(failure, application_limit_ms=limits.application_limit_ms)
    deadline = state.deadline
    # If the deadline has passed, it ends the whole operation, not only the attempt.
    if not limits.attempt_limits_server or (deadline is not None and not deadline.allows(0)):
        return failure
    return replace(failure, reason=RetryReason.ATTEMPT_TIMEOUT, timed_out=False)


def limit_attempts(limits: Limits, seconds: float | None) -> None:
    """Set how long an attempt may wait for its reply, from the next attempt on. None removes the
    limit.
    """
    limits.attempt_timeout = seconds
    if seconds is None:
        limits.reply_within = None


def warn_of_ignored_options(client: Client) -> None:
    """Log a warning that lists the client's older options which its ``timeoutMS`` replaces."""
    options, pool = client.options, client.options.pool_options
    if options.timeout is None:
        return
    older = {
        "socketTimeoutMS": pool.socket_timeout,
        "waitQueueTimeoutMS": pool.wait_queue_timeout,
        "wtimeout": options.write_concern.document.get("wtimeout"),
    }
    ignored = [name for name, value in older.items() if value is not None]
    if ignored:
        logger.warning(IGNORED, ", ".join(ignored))
