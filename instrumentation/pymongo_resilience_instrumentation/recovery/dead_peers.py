"""Paths that drop packets: the kernel closes a connection whose peer acknowledges nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience.internal_errors import shielded
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.interception.interceptor import Entered, Interceptor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pymongo_resilience_instrumentation.interception.interceptor import Wrapped
    from pymongo_resilience_instrumentation.runtime import Runtime


def wrapped(runtime: Runtime) -> Iterator[Wrapped]:
    """What to wrap of pools, and with what."""
    if runtime.config.dead_peer_s and driver.connections.can_watch():
        for half in (driver.waits.SYNC_HALF, driver.waits.ASYNC_HALF):
            yield half.module("pool"), half.connect, Connected(runtime.config.dead_peer_s)


class Connected(Interceptor):
    """A new connection, once it is there: connecting has a timeout of its own."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds

    def enter(self, _given: tuple[Any, ...], _kwargs: dict[str, Any]) -> Entered:
        return Entered(None)

    def succeeded(self, _entered: Entered, interface: Any) -> Any:
        with shielded("after a connection was made"):
            driver.connections.watch_peer(interface, self._seconds)
        return interface
