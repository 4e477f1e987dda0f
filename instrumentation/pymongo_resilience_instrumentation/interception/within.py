"""A method of the driver's, run as it is within a context of ours: a timeout in force, say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.faults import logger
from pymongo_resilience_instrumentation import calls
from pymongo_resilience_instrumentation.calls import NO_DEADLINE

from .methods import Method

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pymongo_resilience_instrumentation.runtime import Runtime

    from .methods import Function


def within(
    runtime: Runtime, begin: Callable[[Any], AbstractContextManager[None]], asynchronous: bool
) -> Method:
    """The method within what ``begin`` gives, which raises ConfigurationError to refuse.

    It is left once more where an exception of a signal handler may have struck while it was left.
    """
    enabled_flag = runtime.enabled_flag

    def enter(instance: Any) -> AbstractContextManager[None]:
        if calls.reporting():
            return NO_DEADLINE
        try:
            return begin(instance)
        except ConfigurationError:
            raise
        except Exception:
            logger.exception("internal error in pymongo-resilience before %s", begin.__qualname__)
            return NO_DEADLINE

    def of_sync(original: Function) -> Function:
        def method(instance: Any, *args: Any, **kwargs: Any) -> Any:
            context = enter(instance) if enabled_flag.acts() else NO_DEADLINE
            if context is NO_DEADLINE:
                return original(instance, *args, **kwargs)
            try:
                with context:
                    return original(instance, *args, **kwargs)
            except BaseException as error:
                context.__exit__(None, error, None)
                raise

        return method

    def of_async(original: Function) -> Function:
        async def method(instance: Any, *args: Any, **kwargs: Any) -> Any:
            context = enter(instance) if enabled_flag.acts() else NO_DEADLINE
            if context is NO_DEADLINE:
                return await original(instance, *args, **kwargs)
            try:
                with context:
                    return await original(instance, *args, **kwargs)
            except BaseException as error:
                context.__exit__(None, error, None)
                raise

        return method

    return Method(of_async if asynchronous else of_sync)
