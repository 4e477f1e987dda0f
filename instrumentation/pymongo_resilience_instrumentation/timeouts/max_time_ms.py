"""What runs in place of the method that gives a command its limit of time.

Source: Client Side Operations Timeout, "Command Execution" and "timeoutMS overrides deprecated
timeout options".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo.errors import ExecutionTimeout

from pymongo_resilience.internal_errors import logger
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.interception.methods import Method

if TYPE_CHECKING:
    from pymongo_resilience.enabled_flag import EnabledFlag
    from pymongo_resilience_instrumentation.interception.methods import Function


def limit(enabled_flag: EnabledFlag) -> Method:
    """Less than a millisecond is refused; a timeout of 0 sets the older limits aside.

    A cursor's first command has none by iteration.
    """

    timeout_in_force = driver.csot.TIMEOUT.get

    def around(original: Function) -> Function:
        def method(connection: Any, cmd: Any) -> Any:
            if timeout_in_force() is None or not enabled_flag.on:
                return original(connection, cmd)
            own = driver.commands.limit_of(cmd)
            result = original(connection, cmd)
            _limit(connection, cmd, own)
            return result

        def method_of_a_client(connection: Any, client: Any, cmd: Any) -> Any:
            if timeout_in_force() is None or not enabled_flag.on:
                return original(connection, client, cmd)
            own = driver.commands.limit_of(cmd)
            result = original(connection, client, cmd)
            _limit(connection, cmd, own)
            return result

        return method_of_a_client if driver.commands.limits_for_a_client(original) else method

    return Method(around)


def _limit(connection: object, command: object, own: int | None) -> None:
    """``command`` is None for a getMore, which gets no limit."""
    try:
        _lift_or_refuse(connection, command, own)
    except ExecutionTimeout:
        raise
    except Exception:
        logger.exception("internal error in pymongo-resilience while limiting a command's time")


def _lift_or_refuse(connection: Any, command: Any, own: int | None) -> None:
    timeout = driver.csot.TIMEOUT.get()
    if timeout and command is None:
        return
    call = calls.current()
    # What is in a document for command() is the application's affair.
    document = call is not None and call.operation == "runCommand"
    if not timeout:
        if not document:
            driver.commands.lift_limits(connection, command)
    elif call is not None and call.cursor is not None and call.cursor.omits_max_time:
        driver.commands.leave_limit_out(command, own if document else None)
    else:
        driver.commands.refuse_without_end(command, driver.csot.remaining() or 0.0)
