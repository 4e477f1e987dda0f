"""One call around a method of pymongo: what begins it, what ends it, however it ends."""

from __future__ import annotations

from collections.abc import Callable
from sys import exception
from typing import TYPE_CHECKING, Any

from pymongo.errors import InvalidOperation

from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.faults import from_outside, logger
from pymongo_resilience_instrumentation import calls
from pymongo_resilience_instrumentation.calls import BEGINNING, NO_DEADLINE, Call
from pymongo_resilience_instrumentation.failures.errors_raised import end_with
from pymongo_resilience_instrumentation.interception.methods import Method

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.interception.methods import Function
    from pymongo_resilience_instrumentation.runtime import Runtime

Begin = Callable[[tuple[Any, ...], dict[str, Any]], "Call | None"]
"""From what a method is given, beginning with its instance: a tuple that is only handed on takes
less than half of what it takes to put one together."""
After = Callable[["Call", Any], None]

FAULT_BEFORE = "internal error in pymongo-resilience before %s"

REFUSED = (ConfigurationError, InvalidOperation)
"""What the library refuses is no fault of its own."""


def call_around(  # noqa: PLR0915 - one method, as a coroutine function and as a plain one
    runtime: Runtime, begin: Begin, asynchronous: bool, after: After | None = None
) -> Method:
    """Outermost wins: what a call calls in turn on its own client is no call of its own.

    ``begin`` raises ConfigurationError for what the application gave; ``after`` sees the result.
    An exception of a signal handler may strike at any line: what undoes a call is run again where
    it has struck in there.
    """
    enabled_flag, end, end_well, found = (
        runtime.enabled_flag,
        runtime.end,
        runtime.end_well,
        calls.found,
    )

    def is_for_the_caller(error: BaseException, around: Call | None) -> bool:
        """Of an error of ``begin``; a fault of ours is logged."""
        calls.unwind(around)
        # What the library refuses is no fault of its own.
        if isinstance(error, REFUSED) or from_outside(error):
            return True
        logger.error(FAULT_BEFORE, begin.__qualname__, exc_info=error)
        return False

    def over(call: Call, error: BaseException) -> None:
        call.deadline.__exit__(None, error, None)
        if call.reporting or call.client is None:
            # It was left already, or half-way.
            calls.leave(call)
        else:
            end_with(end, call, error)

    def of_sync(original: Function) -> Function:
        def method(*given: Any, **kwargs: Any) -> Any:
            if not (enabled_flag.on and (exception() is None or enabled_flag.acts())):
                return original(*given, **kwargs)
            call, around = BEGINNING, found()
            try:
                try:
                    call = begin(given, kwargs)
                    if call is None:
                        return original(*given, **kwargs)
                    if call.deadline is NO_DEADLINE:
                        result = original(*given, **kwargs)
                    else:
                        with call.deadline:
                            result = original(*given, **kwargs)
                    if after is not None:
                        _see(after, call, result)
                    if call.struck is not None:
                        raise call.struck
                    end_well(call)
                    return result  # noqa: TRY300 - a signal handler's may strike here, too
                except BaseException as error:
                    if call is None:
                        raise
                    if call is not BEGINNING:
                        over(call, error)
                        raise
                    if is_for_the_caller(error, around):
                        raise
            except BaseException as error:
                calls.undo(call, around, error)
                raise
            return original(*given, **kwargs)

        return method

    def of_async(original: Function) -> Function:
        async def method(*given: Any, **kwargs: Any) -> Any:
            if not (enabled_flag.on and (exception() is None or enabled_flag.acts())):
                return await original(*given, **kwargs)
            call, around = BEGINNING, found()
            try:
                try:
                    call = begin(given, kwargs)
                    if call is None:
                        return await original(*given, **kwargs)
                    if call.deadline is NO_DEADLINE:
                        result = await original(*given, **kwargs)
                    else:
                        with call.deadline:
                            result = await original(*given, **kwargs)
                    if after is not None:
                        _see(after, call, result)
                    if call.struck is not None:
                        raise call.struck
                    end_well(call)
                    return result  # noqa: TRY300 - a signal handler's may strike here, too
                except BaseException as error:
                    if call is None:
                        raise
                    if call is not BEGINNING:
                        over(call, error)
                        raise
                    if is_for_the_caller(error, around):
                        raise
            except BaseException as error:
                calls.undo(call, around, error)
                raise
            return await original(*given, **kwargs)

        return method

    return Method(of_async if asynchronous else of_sync)


def _see(after: After, call: Call, result: Any) -> None:
    try:
        after(call, result)
    except Exception:
        logger.exception("internal error in pymongo-resilience after %s", call.operation)
