"""Paths that swallow packets: the kernel closes a connection whose peer acknowledges nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience.faults import logger
from pymongo_resilience_instrumentation import driver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from pymongo_resilience_instrumentation.interception.methods import Wrapper
    from pymongo_resilience_instrumentation.runtime import Runtime


def wrapped(runtime: Runtime) -> Iterator[tuple[type | ModuleType, str, Wrapper]]:
    """What to wrap of pools, and with what."""
    if runtime.config.dead_peer_s and driver.connections.CAN_WATCH:
        for half in (driver.waits.SYNC_HALF, driver.waits.ASYNC_HALF):
            asynchronous = half is driver.waits.ASYNC_HALF
            yield half.module("pool"), half.connect, _connect(runtime, asynchronous)


def _connect(runtime: Runtime, asynchronous: bool) -> Wrapper:
    """A new connection, once it is there: connecting has a timeout of its own."""

    def watch(interface: Any) -> Any:
        try:
            if runtime.enabled_flag.on:
                driver.connections.watch_peer(interface, runtime.config.dead_peer_s)
        except Exception:
            logger.exception("internal error in pymongo-resilience after a connection was made")
        return interface

    def wrapper(
        wrapped: Callable[..., Any], _module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return watch(wrapped(*args, **kwargs))

    async def async_wrapper(
        wrapped: Callable[..., Any], _module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return watch(await wrapped(*args, **kwargs))

    return async_wrapper if asynchronous else wrapper
