"""Commands that a cancellation or an interrupt leaves behind: reported as failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience.faults import logger
from pymongo_resilience.unfinished import closes_a_coroutine
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.deferred import defer

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo_resilience.enabled_flag import EnabledFlag
    from pymongo_resilience_instrumentation.interception.methods import Wrapper


def connection_error(enabled_flag: EnabledFlag) -> Wrapper:
    """A topology's ``handle_error``. The async one is called here and awaited by the caller, so
    that nothing can be cancelled in between."""

    def wrapper(
        wrapped: Callable[..., Any], _topology: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        try:
            error = driver.interruptions.handled_error(args, kwargs)
            if enabled_flag.on and not isinstance(error, Exception):
                unfinished = closes_a_coroutine(error)
                for report in driver.interruptions.interrupted_commands(error):
                    defer(report) if unfinished else report()
        except Exception:
            logger.exception("internal error in pymongo-resilience after an interruption")
        return wrapped(*args, **kwargs)

    return wrapper
