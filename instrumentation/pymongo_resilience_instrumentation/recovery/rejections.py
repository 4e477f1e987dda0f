"""Which errors may change what a client knows of a server, decided in one place.

A server whose rate limiter has no tokens left rejects every command, hello and login of a new
connection included. pymongo 4.20 takes a rejected handshake for a dead server: it marks the
server Unknown, clears its pool, and looks again up to ten seconds later. But a server that
rejects a command is alive, and remains what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pymongo_resilience.config import RecoveryStep
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.failures.causes import is_rejection
from pymongo_resilience_instrumentation.interceptor import Entered, Interceptor, Row
from pymongo_resilience_instrumentation.runtime import Runtime

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.driver.protocols import Topology


def wrapped(runtime: Runtime) -> Iterator[Row]:
    """Yield what to wrap of topologies, and with what."""
    if RecoveryStep.REJECTIONS in runtime.config.disabled_recovery:
        return
    for owner in driver.clients.classes("topology", "Topology"):
        for name, of_handshake in (
            (driver.monitors.HANDLE_ERROR, _rejects_handshake),
            (driver.monitors.CHANGE, _rejects_check),
        ):
            yield owner, name, UnlessRejected(of_handshake)


def _rejects_handshake(_topology: Topology, args: tuple[Any, ...]) -> bool:
    """``args`` of ``handle_error``: the failed attempt's server, and its error with context."""
    _address, context = args
    return not context.completed_handshake and is_rejection(context.error)


def _rejects_check(topology: Topology, args: tuple[Any, ...]) -> bool:
    """``args`` of ``on_change`` begin with what a monitor's check has found.

    A server that the client has not reached yet, or has lost, stays Unknown: its hello would have
    said what it is.
    """
    found = args[0]
    return is_rejection(found.error) and driver.monitors.is_known(topology, found.address)


class UnlessRejected(Interceptor):
    """Leaves out what pymongo does about an error if the server has rejected a command."""

    def __init__(self, is_rejected: Callable[[Topology, tuple[Any, ...]], bool]) -> None:
        self._is_rejected = is_rejected

    def enter(self, all_args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entered | None:
        topology, *args = all_args
        rejected = self._is_rejected(topology, tuple(args) or tuple(kwargs.values()))
        return Entered(topology) if rejected else None

    def send(self, *_given: Any, **_kwargs: Any) -> None:
        """In place of pymongo's method."""

    async def send_async(self, *_given: Any, **_kwargs: Any) -> None:
        """In place of pymongo's coroutine function."""
