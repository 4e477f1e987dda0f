"""What runs in place of the method that gives a command its limit of time.

Source: Client Side Operations Timeout, "Command Execution" and "timeoutMS overrides deprecated
timeout options".
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pymongo.errors import ExecutionTimeout

from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.methods import Method

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.methods import Function
    from pymongo_resilience_instrumentation.runtime import Runtime

logger = logging.getLogger("pymongo_resilience")


def limit(runtime: Runtime) -> Method:
    """Less than a millisecond is refused; a timeout of 0 sets the older limits aside."""

    def around(original: Function) -> Function:
        def method(connection: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(connection, *args, **kwargs)
            try:
                timeout = driver.TIMEOUT.get()
                if timeout is not None and runtime.switch.on:
                    _limit(connection, driver.limited_command(args, kwargs), timeout)
            except ExecutionTimeout:
                raise
            except Exception:
                logger.exception("a fault of pymongo-resilience with the time limit of a command")
            return result

        return method

    return Method(around)


def _limit(connection: Any, command: Any, timeout: float) -> None:
    if not timeout:
        # What is in a document for command() is the application's affair.
        call = calls.current()
        if call is None or call.operation != "runCommand":
            driver.lift_limits(connection, command)
    elif command is not None:
        driver.refuse_without_end(command, driver.remaining() or 0.0)
