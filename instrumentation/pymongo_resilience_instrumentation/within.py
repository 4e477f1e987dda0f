"""A method of the driver's, run as it is within a context of ours: a timeout in force, say."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience_instrumentation.calls import NO_DEADLINE

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pymongo_resilience_instrumentation.runtime import Runtime
    from pymongo_resilience_instrumentation.wrappers import Wrapper

logger = logging.getLogger("pymongo_resilience")


def within(
    runtime: Runtime, begin: Callable[[Any], AbstractContextManager[None]], asynchronous: bool
) -> Wrapper:
    """The method within what ``begin`` gives, which raises ConfigurationError to refuse."""

    def enter(instance: Any) -> AbstractContextManager[None]:
        if not runtime.switch.on:
            return NO_DEADLINE
        try:
            return begin(instance)
        except ConfigurationError:
            raise
        except Exception:
            logger.exception("a fault of pymongo-resilience before %s", begin.__qualname__)
            return NO_DEADLINE

    def sync_wrapper(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        with enter(instance):
            return wrapped(*args, **kwargs)

    async def async_wrapper(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        with enter(instance):
            return await wrapped(*args, **kwargs)

    return async_wrapper if asynchronous else sync_wrapper
