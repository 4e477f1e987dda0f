"""pymongo's events, turned into command spans, metrics and the state of clients.

Each listener is a no-op while the library is switched off, since a client keeps its listeners for
life; but connections are counted nevertheless, or the count would be wrong once it is on again.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

from pymongo import monitoring

from pymongo_resilience.internal_errors import logger
from pymongo_resilience_instrumentation import calls, driver

from .client_tracing import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo_resilience.enabled_flag import EnabledFlag
    from pymongo_resilience_instrumentation.clients.client_registry import ClientState

    from .client_tracing import Tracing
    from .commands.command_spans import CommandSpans
    from .metrics.driver_metrics import DriverMetrics

_E = TypeVar("_E")


class OurListener:
    """Marks listeners of ours: a client made from another one's options must not get two."""

    def __init__(self, enabled_flag: EnabledFlag) -> None:
        self.enabled_flag = enabled_flag


_L = TypeVar("_L", bound=OurListener)
faulty: set[Any] = set()
"""Methods whose first internal error was logged."""


def _callback(
    method: Callable[[_L, _E], None], *, always: bool = False
) -> Callable[[_L, _E], None]:
    """A listener's method that the driver sees no internal error of: the first is logged.

    ``always``: also while the library is switched off.
    """

    @functools.wraps(method)
    def callback(self: _L, event: _E) -> None:
        try:
            if always or self.enabled_flag.acts():
                method(self, event)
        except Exception:
            if method not in faulty:
                faulty.add(method)
                logger.exception("internal error in pymongo-resilience in %s", method.__qualname__)

    return callback


_counted = functools.partial(_callback, always=True)


class Commands(OurListener, monitoring.CommandListener):
    """Notes which server a call's command went to, and has its span recorded."""

    def __init__(
        self,
        spans: CommandSpans | None,
        enabled_flag: EnabledFlag,
        tracing: Tracing = DEFAULT,
        recorded_elsewhere: Callable[[], bool] | None = None,
    ) -> None:
        """``recorded_elsewhere``: asked for each command, where another tracer was active when the
        client was made."""
        super().__init__(enabled_flag)
        self._spans = spans
        self._tracing = tracing
        self._recorded_elsewhere = recorded_elsewhere

    @_callback
    def started(self, event: monitoring.CommandStartedEvent) -> None:
        call = calls.current()
        if call is None:
            return
        call.server = event.connection_id
        if self._spans is None or (
            self._recorded_elsewhere is not None and self._recorded_elsewhere()
        ):
            return
        self._spans.start(event, call, self._tracing)

    @_callback
    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        call = calls.current()
        if call is not None and call.command_spans and self._spans is not None:
            self._spans.succeed(event, call)

    @_callback
    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        call = calls.current()
        if call is not None and call.command_spans and self._spans is not None:
            self._spans.fail(event, call, self._tracing)


class Heartbeats(OurListener, monitoring.ServerHeartbeatListener):
    """Measures the hellos of a client's monitors."""

    def __init__(self, metrics: DriverMetrics, enabled_flag: EnabledFlag) -> None:
        super().__init__(enabled_flag)
        self._metrics = metrics

    @_callback
    def started(self, event: monitoring.ServerHeartbeatStartedEvent) -> None: ...

    @_callback
    def succeeded(self, event: monitoring.ServerHeartbeatSucceededEvent) -> None:
        self._metrics.heartbeat(
            event.connection_id, event.duration, awaited=event.awaited, failed=False
        )

    @_callback
    def failed(self, event: monitoring.ServerHeartbeatFailedEvent) -> None:
        # A check that the client itself has ended, as by close(), tells nothing of the server.
        failed = not driver.monitors.was_cancelled(event.reply)
        self._metrics.heartbeat(
            event.connection_id, event.duration, awaited=event.awaited, failed=failed
        )


class Pools(OurListener, monitoring.ConnectionPoolListener):
    """Every connection from the moment its socket is made to the moment it is closed.

    A server has a pool as long as the client knows it, so pool events show when it comes and goes.
    """

    def __init__(
        self, client: ClientState, metrics: DriverMetrics | None, enabled_flag: EnabledFlag
    ) -> None:
        super().__init__(enabled_flag)
        self.client = client
        self._pools = client.pools_by_address
        self._metrics = metrics
        self._times_waits = metrics is not None and metrics.times_waits
        self._times_uses = metrics is not None and metrics.times_uses

    @_counted
    def pool_created(self, event: monitoring.PoolCreatedEvent) -> None:
        self.client.server(event.address)

    @_counted
    def pool_closed(self, event: monitoring.PoolClosedEvent) -> None:
        self.client.forget(event.address)

    @_counted
    def connection_created(self, event: monitoring.ConnectionCreatedEvent) -> None:
        pool = self._pools.get(event.address)
        if pool is not None:
            pool.created(event.connection_id)

    @_counted
    def connection_ready(self, event: monitoring.ConnectionReadyEvent) -> None:
        pool = self._pools.get(event.address)
        if pool is not None and self._metrics is not None and self.enabled_flag.acts():
            self._metrics.connected(pool, event.duration, calls.current())

    @_callback
    def connection_check_out_started(
        self, event: monitoring.ConnectionCheckOutStartedEvent
    ) -> None: ...

    @_counted
    def connection_checked_out(self, event: monitoring.ConnectionCheckedOutEvent) -> None:
        acts = self.enabled_flag.acts()
        call = calls.current() if acts else None
        if call is not None:
            call.driver_connection_id = event.connection_id
        if not (self._times_waits or self._times_uses) or calls.reporting():
            return
        pool = self._pools.get(event.address)
        if pool is None or self._metrics is None:
            return
        if self._times_uses:
            pool.checked_out(event.connection_id)
        if self._times_waits and acts:
            self._metrics.waited(pool, event.duration, call)

    @_callback
    def connection_check_out_failed(self, event: monitoring.ConnectionCheckOutFailedEvent) -> None:
        pool = self._pools.get(event.address)
        if self._metrics is not None and pool is not None:
            self._metrics.refused(pool, event.reason, calls.current())

    @_counted
    def connection_checked_in(self, event: monitoring.ConnectionCheckedInEvent) -> None:
        pool = self._pools.get(event.address) if self._times_uses else None
        if pool is None or self._metrics is None:
            return
        seconds = pool.checked_in(event.connection_id)
        if seconds is not None and self.enabled_flag.acts():
            self._metrics.used(pool, seconds, calls.current())

    @_counted
    def connection_closed(self, event: monitoring.ConnectionClosedEvent) -> None:
        pool = self._pools.get(event.address)
        if pool is not None:
            pool.closed(event.connection_id)

    @_callback
    def pool_ready(self, event: monitoring.PoolReadyEvent) -> None: ...

    @_callback
    def pool_cleared(self, event: monitoring.PoolClearedEvent) -> None: ...


def listeners_of(
    client: ClientState,
    spans: CommandSpans | None,
    metrics: DriverMetrics | None,
    enabled_flag: EnabledFlag,
    *,
    tracing: Tracing = DEFAULT,
    recorded_elsewhere: Callable[[], bool] | None = None,
    records_server: bool = False,
) -> list[Any]:
    """The listeners of one new client: only what is consumed, since each listener costs.

    ``records_server``: only a command's event shows which server an operation went to.

    No server or topology listeners: with one, pymongo starts a thread for each client, whose
    ``close()`` then takes half a second longer, and an async client can no longer be made outside
    of a running event loop. ``client.topology_description`` has the same facts.
    """
    if spans is None and metrics is None:
        return []
    chosen: list[Any] = []
    if spans is not None or records_server:
        chosen.append(Commands(spans, enabled_flag, tracing, recorded_elsewhere))
    if metrics is not None:
        chosen.append(Heartbeats(metrics, enabled_flag))
    # Only pool events name the connection of a command, so spans need them too.
    chosen.append(Pools(client, metrics, enabled_flag))
    return chosen
