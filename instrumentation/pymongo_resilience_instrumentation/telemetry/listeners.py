"""pymongo's events, turned into command spans and into the state of clients.

Each is a no-op while the library is switched off, since a client keeps its listeners for life; but
connections are counted nevertheless, or the count would be wrong once it is on again. A fault of
ours is logged once and never reaches the driver, which would print it for every event.
"""

from __future__ import annotations

import functools
from sys import exception
from typing import TYPE_CHECKING, Any, TypeVar

from pymongo import monitoring

from pymongo_resilience.internal_errors import deliver, from_outside, logger
from pymongo_resilience_instrumentation import calls, driver

from .client_tracing import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo_resilience.enabled_flag import EnabledFlag
    from pymongo_resilience_instrumentation.addresses import Address
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


class _Complaint:
    """Logs the first exception of a callback."""

    def __init__(self, callback: str) -> None:
        self._callback = callback
        self._logged = False

    def log(self, error: BaseException) -> None:
        """What strikes from outside is raised by the call in progress, as soon as may be: the
        driver keeps what listeners raise to itself, or loses a connection by it."""
        if from_outside(error):
            call = calls.current()
            if call is None:
                raise error
            call.struck = error
        elif not self._logged:
            self._logged = True
            logger.error(
                "internal error in pymongo-resilience in %s", self._callback, exc_info=error
            )


def _safely(method: Callable[[_L, _E], None]) -> Callable[[_L, _E], None]:
    """The callback; what it raises is logged once."""
    complaint = _Complaint(method.__qualname__)

    @functools.wraps(method)
    def callback(self: _L, event: _E) -> None:
        try:
            method(self, event)
        except BaseException as error:  # noqa: BLE001 - logged, or raised by the call
            complaint.log(error)

    return callback


def _harmless(method: Callable[[_L, _E], None]) -> Callable[[_L, _E], None]:
    """The same, while the library is on."""
    complaint = _Complaint(method.__qualname__)

    @functools.wraps(method)
    def callback(self: _L, event: _E) -> None:
        try:
            if self.enabled_flag.acts():
                method(self, event)
        except BaseException as error:  # noqa: BLE001 - logged, or raised by the call
            complaint.log(error)

    return callback


class Commands(OurListener, monitoring.CommandListener):
    """Records one span for each command sent, unless another tracer does.

    ``recorded_elsewhere``: asked for each command, where the client was made while that was so.
    """

    def __init__(
        self,
        spans: CommandSpans,
        enabled_flag: EnabledFlag,
        tracing: Tracing = DEFAULT,
        recorded_elsewhere: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__(enabled_flag)
        self._spans = spans
        self._tracing = tracing
        self._recorded_elsewhere = recorded_elsewhere

    @_harmless
    def started(self, event: monitoring.CommandStartedEvent) -> None:
        call = calls.current()
        if call is None and calls.reporting():
            return
        if call is not None:
            call.server = event.connection_id
        if self._recorded_elsewhere is not None and self._recorded_elsewhere():
            return
        span = self._spans.start(
            event.command,
            event.database_name,
            event.request_id,
            event.connection_id,
            event.server_connection_id,
            call,
            self._tracing,
            name=event.command_name,
        )
        if span is not None and self._spans.hooks.request is not None:
            self._spans.hooks.request(span, event)

    @_harmless
    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        self._spans.succeed(event.request_id, event.reply, calls.current(), event)

    @_harmless
    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        self._spans.fail(event, self._tracing)

    def without_events(self) -> dict[str, Callable[..., None]]:
        """What the driver may call in place of making events, unless others listen."""
        if self._spans.hooks.any or self._recorded_elsewhere is not None:
            return {}
        enabled_flag, spans, tracing = self.enabled_flag, self._spans, self._tracing
        complaint = _Complaint(type(self).__qualname__)

        def start(  # noqa: PLR0917 - the driver's own, as is what follows
            command: Any,
            database_name: str,
            request_id: int,
            connection_id: Any,
            server_connection_id: int | None,
            op_id: int | None = None,
            service_id: Any = None,
        ) -> None:
            if not enabled_flag.on or (exception() is not None and not enabled_flag.acts()):
                return
            try:
                if "speculativeAuthenticate" in command:
                    # The event of such a command leaves out what is secret of it.
                    event = monitoring.CommandStartedEvent(
                        command,
                        database_name,
                        request_id,
                        connection_id,
                        op_id,
                        service_id,
                        server_connection_id,
                    )
                    self.started(event)
                    return
                call = calls.current()
                if call is None and calls.reporting():
                    return
                if call is not None:
                    call.server = connection_id
                    if call.struck is not None:
                        raise call.struck
                spans.start(
                    command,
                    database_name,
                    request_id,
                    connection_id,
                    server_connection_id,
                    call,
                    tracing,
                )
            except Exception as error:  # noqa: BLE001 - logged
                deliver(error)
                complaint.log(error)

        def succeed(
            duration: object,  # noqa: ARG001 - as the driver may name it, and so is what follows
            reply: object,
            command_name: str,  # noqa: ARG001
            request_id: int,
            *_: Any,
            **__: Any,
        ) -> None:
            if not enabled_flag.on:
                return
            try:
                call = calls.current()
                if call is None or call.command_spans:
                    spans.succeed(request_id, reply, call)
            except Exception as error:  # noqa: BLE001 - logged
                deliver(error)
                complaint.log(error)

        return {"publish_command_start": start, "publish_command_success": succeed}


class LastServer(OurListener, monitoring.CommandListener):
    """Where no spans are recorded, the duration metric still says which server answered last."""

    @_harmless
    def started(self, event: monitoring.CommandStartedEvent) -> None:
        call = calls.current()
        if call is not None:
            call.server = event.connection_id

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...

    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...


class Heartbeats(OurListener, monitoring.ServerHeartbeatListener):
    def __init__(self, metrics: DriverMetrics, enabled_flag: EnabledFlag) -> None:
        super().__init__(enabled_flag)
        self._metrics = metrics

    def started(self, event: monitoring.ServerHeartbeatStartedEvent) -> None: ...

    @_harmless
    def succeeded(self, event: monitoring.ServerHeartbeatSucceededEvent) -> None:
        self._metrics.heartbeat(
            event.connection_id, event.duration, awaited=event.awaited, failed=False
        )

    @_harmless
    def failed(self, event: monitoring.ServerHeartbeatFailedEvent) -> None:
        self._metrics.heartbeat(
            event.connection_id, event.duration, awaited=event.awaited, failed=True
        )


class Pools(OurListener, monitoring.ConnectionPoolListener):
    """Every connection from the moment its socket is made to the moment it is closed.

    A server has a pool as long as the client knows it, so pool events show when it comes and goes.
    """

    def __init__(
        self,
        client: ClientState,
        spans: CommandSpans | None,
        metrics: DriverMetrics | None,
        enabled_flag: EnabledFlag,
    ) -> None:
        super().__init__(enabled_flag)
        self.client = client
        self._pools = client.pools_by_address
        self._spans = spans
        self._metrics = metrics
        self._waited = None if metrics is None or not metrics.times_waits else metrics.waited
        self._used = None if metrics is None or not metrics.times_uses else metrics.used
        self._complaint = _Complaint(type(self).__qualname__)

    @_safely
    def pool_created(self, event: monitoring.PoolCreatedEvent) -> None:
        self.client.server(event.address)

    @_safely
    def pool_closed(self, event: monitoring.PoolClosedEvent) -> None:
        self.client.forget(event.address)

    @_safely
    def connection_created(self, event: monitoring.ConnectionCreatedEvent) -> None:
        pool = self._pools.get(event.address)
        if pool is not None:
            pool.created(event.connection_id)

    @_safely
    def connection_ready(self, event: monitoring.ConnectionReadyEvent) -> None:
        pool = self._pools.get(event.address)
        if pool is not None and self._metrics is not None and self.enabled_flag.acts():
            self._metrics.connected(pool, event.duration, calls.current())

    def connection_check_out_started(
        self, event: monitoring.ConnectionCheckOutStartedEvent
    ) -> None: ...

    def connection_checked_out(self, event: monitoring.ConnectionCheckedOutEvent) -> None:
        self._taken(event.address, event.connection_id, event.duration)

    def _taken(self, address: Address, connection_id: int, duration: float | None) -> None:
        call = calls.found()
        if exception() is not None and not self.enabled_flag.acts():
            call = None
        if call is not None:
            if call.reporting:
                return
            call.driver_connection_id = connection_id
        if self._waited is None and self._used is None:
            return
        try:
            pool = self._pools.get(address)
            if pool is None:
                return
            if self._used is not None:
                pool.checked_out(connection_id)
            if self._waited is not None and self.enabled_flag.acts():
                self._waited(pool, duration, calls.current())
        except BaseException as error:  # noqa: BLE001 - logged, or raised by the call
            self._complaint.log(error)

    @_harmless
    def connection_check_out_failed(self, event: monitoring.ConnectionCheckOutFailedEvent) -> None:
        pool = self._pools.get(event.address)
        if self._metrics is not None and pool is not None:
            self._metrics.refused(pool, event.reason, calls.current())

    def connection_checked_in(self, event: monitoring.ConnectionCheckedInEvent) -> None:
        self._given_back(event.address, event.connection_id)

    def _given_back(self, address: Address, connection_id: int) -> None:
        try:
            if self._used is not None:
                pool = self._pools.get(address)
                seconds = None if pool is None else pool.checked_in(connection_id)
                acts = self.enabled_flag.on and (exception() is None or self.enabled_flag.acts())
                if pool is not None and seconds is not None and acts:
                    self._used(pool, seconds, calls.current())
            if self._spans is not None and self._spans.without_call and self.enabled_flag.acts():
                self._spans.leave_connection()
        except BaseException as error:  # noqa: BLE001 - logged, or raised by the call
            self._complaint.log(error)

    def without_events(self) -> dict[str, Callable[..., None]]:
        """As for commands; not for what happens once in the life of a connection."""
        return {
            "publish_connection_check_out_started": _not_recorded,
            "publish_connection_checked_out": self._taken,
            "publish_connection_checked_in": self._given_back,
        }

    @_safely
    def connection_closed(self, event: monitoring.ConnectionClosedEvent) -> None:
        pool = self._pools.get(event.address)
        if pool is not None:
            pool.closed(event.connection_id)

    def pool_ready(self, event: monitoring.PoolReadyEvent) -> None: ...

    def pool_cleared(self, event: monitoring.PoolClearedEvent) -> None: ...


def publish_without_events(client: object, *, dispensable: bool) -> None:
    """Where ours alone listen to a client that was made, the driver makes no event for each command
    and for each connection taken.

    ``dispensable``: only spans use the events of commands.
    """
    for each in driver.publishing.listeners_of(client):
        if isinstance(each, (Commands, Pools)):
            instead = each.without_events()
            driver.publishing.publish_directly(
                client,
                each,
                instead,
                dispensable=dispensable and isinstance(each, Commands) and bool(instead),
            )


def _not_recorded(_address: Address) -> None: ...


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
    """What one new client is given: only what is consumed, since each listener costs.

    ``records_server``: only a command's event shows which server an operation went to.

    No server or topology listeners: with one, pymongo starts a thread for each client, whose
    ``close()`` then takes half a second longer, and an async client can no longer be made outside
    of a running event loop. The client itself says the same when it is asked.
    """
    if spans is not None:
        chosen: list[Any] = [Commands(spans, enabled_flag, tracing, recorded_elsewhere)]
    elif metrics is not None:
        chosen = [LastServer(enabled_flag)] if records_server else []
    else:
        return []
    if metrics is not None:
        chosen.append(Heartbeats(metrics, enabled_flag))
    # Only pool events name the connection of a command, so spans need them too.
    chosen.append(Pools(client, spans, metrics, enabled_flag))
    return chosen
