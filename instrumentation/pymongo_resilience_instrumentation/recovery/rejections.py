"""Decides which errors may change what a client knows about a server.

An overloaded server may reject every command, including the hello and the login of a new
connection. pymongo 4.20 treats a rejected handshake like a dead server: it marks the server
Unknown, clears its pool, and checks it again up to ten seconds later. But a server that rejects a
command is alive, so its description must not change.
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
    """Yield the methods of topologies to wrap, and their interceptors."""
    if RecoveryStep.REJECTIONS in runtime.config.disabled_recovery:
        return
    for owner in driver.clients.classes("topology", "Topology"):
        for name, of_handshake in (
            (driver.monitors.HANDLE_ERROR, _rejects_handshake),
            (driver.monitors.CHANGE, _rejects_check),
        ):
            yield owner, name, UnlessRejected(of_handshake)


def _rejects_handshake(_topology: Topology, args: tuple[Any, ...]) -> bool:
    """Return True if the server rejected a handshake.

    ``args`` are those of ``handle_error``: the address, and the error with its context.
    """
    _address, context = args
    # After the handshake, pymongo does not treat a rejection as a lost server.
    return not context.completed_handshake and is_rejection(context.error)


def _rejects_check(topology: Topology, args: tuple[Any, ...]) -> bool:
    """Return True if the server rejected a monitor's check.

    ``args`` are those of ``on_change``; the first is the result of the check. A server that the
    client has not reached yet, or has lost, stays Unknown, because only its hello could report its
    type.
    """
    found = args[0]
    return is_rejection(found.error) and driver.monitors.is_known(topology, found.address)


class UnlessRejected(Interceptor):
    """Skips pymongo's reaction to an error if the server has rejected a command."""

    def __init__(self, is_rejected: Callable[[Topology, tuple[Any, ...]], bool]) -> None:
        self._is_rejected = is_rejected

    def enter(self, all_args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entered | None:
        topology, *args = all_args
        # pymongo passes the arguments by position or by keyword.
        rejected = self._is_rejected(topology, tuple(args) or tuple(kwargs.values()))
        return Entered(topology) if rejected else None

    def send(self, *_given: Any, **_kwargs: Any) -> None:
        """Called in place of pymongo's method: does nothing."""

    async def send_async(self, *_given: Any, **_kwargs: Any) -> None:
        """Called in place of pymongo's coroutine function: does nothing."""
