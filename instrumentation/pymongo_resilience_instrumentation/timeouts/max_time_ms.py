"""What runs in place of the method that gives a command its limit of time.

Source: Client Side Operations Timeout, "Command Execution" and "timeoutMS overrides deprecated
timeout options".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo.errors import ExecutionTimeout

from pymongo_resilience import internal_errors
from pymongo_resilience.internal_errors import logger
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.driver.commands import LIMIT
from pymongo_resilience_instrumentation.interception.methods import Wrapped

if TYPE_CHECKING:
    from pymongo_resilience.enabled_flag import EnabledFlag
    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.interception.methods import Function


def limit(enabled_flag: EnabledFlag) -> Wrapped:
    """Less than a millisecond is refused; a timeout of 0 sets the older limits aside.

    A cursor's first command has none by iteration; an attempt may have a shorter one.
    """
    timeout_in_force, found = driver.csot.TIMEOUT.get, calls.found

    def wrapper(original: Function, connection: Any, given: Any, kwargs: Any) -> Any:
        timeout, call = timeout_in_force(), found()
        attempt = None if call is None else call.attempt_timeout
        if (timeout is None and attempt is None) or not enabled_flag.on:
            return original(*given, **kwargs)
        # None for a getMore, which gets no limit: it may wait for news.
        command = kwargs["cmd"] if "cmd" in kwargs else given[-1]
        own = None if command is None else command.get(LIMIT)
        result = original(*given, **kwargs)
        try:
            # Most commands are of no cursor, and have time.
            plain = timeout and command and command.get(LIMIT) and call and call.cursor is None
            if timeout is not None and not plain:
                _adjust(connection, command, own, timeout, call)
            if call is not None and attempt is not None:
                call.reply_within = None if command is None else attempt
                if call.reply_within is not None:
                    driver.commands.limit_attempt(connection, command, call.reply_within)
        except ExecutionTimeout:
            raise
        except internal_errors.faults:
            logger.exception("internal error in pymongo-resilience while limiting a command")
        return result

    return Wrapped(wrapper)


def _adjust(
    connection: Any, command: Any, own: int | None, timeout: float, call: Call | None
) -> None:
    # What is in a document for command() is the application's affair.
    document = call is not None and call.operation == "runCommand"
    if not timeout:
        if not document:
            driver.commands.lift_limits(connection, command)
    elif command is None:
        return
    elif call is not None and call.cursor is not None and call.cursor.omits_max_time:
        driver.commands.leave_limit_out(command, own if document else None)
    elif command.get(LIMIT) == 0:
        driver.commands.refuse_without_end(driver.csot.remaining() or 0.0)
