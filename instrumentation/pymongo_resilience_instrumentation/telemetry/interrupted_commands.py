"""Commands that a cancellation or an interrupt leaves behind: reported as failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience.closed_coroutines import closes_a_coroutine
from pymongo_resilience.internal_errors import shielded
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.deferred import defer
from pymongo_resilience_instrumentation.interception.methods import Method

if TYPE_CHECKING:
    from pymongo_resilience.enabled_flag import EnabledFlag
    from pymongo_resilience_instrumentation.interception.methods import Function


def connection_error(enabled_flag: EnabledFlag) -> Method:
    """A topology's ``handle_error``. The async one is called here and awaited by the caller, so
    that nothing can be cancelled in between."""

    def around(original: Function) -> Function:
        def method(*given: Any, **kwargs: Any) -> Any:
            with shielded("after an interruption"):
                error = driver.interruptions.handled_error(given[1:], kwargs)
                if enabled_flag.on and not isinstance(error, Exception):
                    unfinished = closes_a_coroutine(error)
                    for report in driver.interruptions.interrupted_commands(error):
                        defer(report) if unfinished else report()
            return original(*given, **kwargs)

        return method

    return Method(around)
