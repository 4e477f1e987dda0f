"""What runs in place of the loop's method that selects a server, where breakers are on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.attempts import Attempts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pymongo_resilience_instrumentation.runtime import Runtime
    from pymongo_resilience_instrumentation.wrappers import Wrapper


def wrapped(runtime: Runtime) -> Iterator[tuple[Any, str, Wrapper]]:
    """A class, the name of its method, and what runs in its place; nothing while they are off."""
    if runtime.breakers is None:
        return
    for loop, asynchronous in driver.loop_classes():
        yield loop, driver.SELECT, _select_async if asynchronous else _select


def _select(
    wrapped: Callable[..., Any], loop: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    server = wrapped(*args, **kwargs)
    work = driver.func(loop)
    if type(work) is Attempts:
        work.ask_breaker(server)
    return server


async def _select_async(
    wrapped: Callable[..., Any], loop: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    server = await wrapped(*args, **kwargs)
    work = driver.func(loop)
    if type(work) is Attempts:
        work.ask_breaker(server)
    return server
