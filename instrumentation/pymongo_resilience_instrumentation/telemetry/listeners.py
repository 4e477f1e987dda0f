"""pymongo's events of pools and monitors, turned into metrics and the state of clients.

Each listener is a no-op while the library is switched off, since a client keeps its listeners for
life; but connections are counted nevertheless, or the count would be wrong once it is on again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from sys import exception
from typing import Any, TypeVar

from pymongo import monitoring

from pymongo_resilience import internal_errors
from pymongo_resilience.enabled_flag import EnabledFlag
from pymongo_resilience.internal_errors import logger
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.calls import Call
from pymongo_resilience_instrumentation.clients.client_registry import ClientState, Pool

from .metrics import DriverMetrics


class OurListener:
    """Marks listeners of ours: a client made from another one's options must not get two."""

    def __init__(self, enabled_flag: EnabledFlag) -> None:
        self.enabled_flag = enabled_flag


_E = TypeVar("_E")
_L = TypeVar("_L", bound=OurListener)
faulty: set[Any] = set()
"""Methods whose first internal error was logged."""


def callback(method: Callable[[_L, _E, Call | None], None]) -> Callable[[_L, _E], None]:
    """A listener's method that is given the call in progress, too, and that the driver sees no
    internal error of: the first is logged. Nothing while the library is switched off.

    The driver would drop what a signal handler has raised, so the call in progress keeps it."""

    @functools.wraps(method)
    def called(self: _L, event: _E) -> None:
        try:
            flag = self.enabled_flag
            if flag.on and (exception() is None or flag.acts()):
                call = calls.found()
                method(self, event, None if call is None or call.ended else call)
        except Exception as error:
            call = calls.current()
            if not isinstance(error, internal_errors.faults) and call is not None:
                call.interruption = error
            elif method not in faulty:
                faulty.add(method)
                logger.exception("internal error in pymongo-resilience in %s", method.__qualname__)

    return called


class Heartbeats(OurListener, monitoring.ServerHeartbeatListener):
    """Measures the hellos of a client's monitors."""

    def __init__(self, metrics: DriverMetrics, enabled_flag: EnabledFlag) -> None:
        super().__init__(enabled_flag)
        self._metrics = metrics

    def started(self, event: monitoring.ServerHeartbeatStartedEvent) -> None: ...

    @callback
    def succeeded(self, event: monitoring.ServerHeartbeatSucceededEvent, _: Call | None) -> None:
        self._metrics.heartbeat(
            event.connection_id, event.duration, awaited=event.awaited, failed=False
        )

    @callback
    def failed(self, event: monitoring.ServerHeartbeatFailedEvent, _: Call | None) -> None:
        # A check that the client itself has ended, as by close(), tells nothing of the server.
        failed = not driver.monitors.was_cancelled(event.reply)
        self._metrics.heartbeat(
            event.connection_id, event.duration, awaited=event.awaited, failed=failed
        )


class Pools(OurListener, monitoring.ConnectionPoolListener):
    """Counts every connection from its socket's making to its closing. A server has a pool as long
    as the client knows it. What only stores a number has no guard: nothing in there fails."""

    def __init__(
        self, client: ClientState, metrics: DriverMetrics | None, enabled_flag: EnabledFlag
    ) -> None:
        super().__init__(enabled_flag)
        self.client = client
        self._pools = client.pools
        self._metrics = metrics
        self._times_uses = metrics is not None and metrics.times_uses

    def pool_created(self, event: monitoring.PoolCreatedEvent) -> None:
        self.client.open_pool(event.address)

    def pool_closed(self, event: monitoring.PoolClosedEvent) -> None:
        self.client.close_pool(event.address)

    def connection_created(self, event: monitoring.ConnectionCreatedEvent) -> None:
        pool = self._pools.get(event.address)
        if pool is not None:
            pool.created(event.connection_id)

    def connection_closed(self, event: monitoring.ConnectionClosedEvent) -> None:
        pool = self._pools.get(event.address)
        if pool is not None:
            pool.closed(event.connection_id)

    @callback
    def connection_ready(self, event: monitoring.ConnectionReadyEvent, call: Call | None) -> None:
        pool = self._pools.get(event.address)
        if pool is not None and self._metrics is not None:
            self._metrics.connected(pool, event.duration, call)

    @callback
    def connection_check_out_failed(
        self, event: monitoring.ConnectionCheckOutFailedEvent, call: Call | None
    ) -> None:
        pool = self._pools.get(event.address)
        if pool is not None and self._metrics is not None:
            self._metrics.refused(pool, event.reason, call)

    def connection_checked_out(self, event: monitoring.ConnectionCheckedOutEvent) -> None:
        call = calls.found()
        if call is not None:
            call.driver_connection_id = event.connection_id
        if self._times_uses:
            self._checked_out(event)

    @callback
    def _checked_out(self, event: monitoring.ConnectionCheckedOutEvent, call: Call | None) -> None:
        pool = self._pools.get(event.address)
        if pool is not None and self._metrics is not None and not calls.reporting():
            pool.checked_out(event.connection_id)
            self._metrics.waited(pool, event.duration, call)

    def connection_checked_in(self, event: monitoring.ConnectionCheckedInEvent) -> None:
        pool = self._pools.get(event.address) if self._times_uses else None
        seconds = None if pool is None else pool.checked_in(event.connection_id)
        if pool is not None and seconds is not None:
            self._used((pool, seconds))

    @callback
    def _used(self, use: tuple[Pool, float], call: Call | None) -> None:
        if self._metrics is not None:
            self._metrics.used(*use, call)

    def connection_check_out_started(
        self, event: monitoring.ConnectionCheckOutStartedEvent
    ) -> None: ...

    def pool_ready(self, event: monitoring.PoolReadyEvent) -> None: ...

    def pool_cleared(self, event: monitoring.PoolClearedEvent) -> None: ...
