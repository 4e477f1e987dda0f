"""Metrics of connection pools besides the gauges: the time to create a connection, and waits
without success.

With ``metrics="all"``, also how long operations wait for and use connections. That needs pymongo's
pool events, three for each operation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from opentelemetry.context import Context
from pymongo import monitoring

from pymongo_resilience_instrumentation import driver, in_progress
from pymongo_resilience_instrumentation.addresses import Address
from pymongo_resilience_instrumentation.clients.client_registry import Clients
from pymongo_resilience_instrumentation.deferred import defer
from pymongo_resilience_instrumentation.failures.causes import is_rejection
from pymongo_resilience_instrumentation.interceptor import Interceptor, Row
from pymongo_resilience_instrumentation.operation import Operation

from .listeners import NO_CONTEXT, OurListener, guarded
from .metrics import DriverMetrics
from .setup import Telemetry

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.driver.protocols import Pool


def wrapped(clients: Clients, metrics: DriverMetrics) -> Iterator[Row]:
    pools = driver.clients.classes("pool", "Pool")
    for owner in driver.clients.defining(driver.connections.OUT_OF_TIME, *pools):
        yield owner, driver.connections.OUT_OF_TIME, CheckoutTimeout(clients, metrics)


def _context() -> Context | None:
    """Return the context of a measurement: the caller's, if it is in an operation."""
    return None if in_progress.current() else NO_CONTEXT


def connected(
    clients: Clients, telemetry: Telemetry, pool: Pool, seconds: float, error: BaseException | None
) -> None:
    """Record that a pool has created a connection (TCP, TLS, hello and authentication) or failed
    to.
    """
    metrics = telemetry.driver_metrics
    if metrics is None or not telemetry.records or not (error is None or is_rejection(error)):
        return
    attributes = clients.attributes(pool)
    if attributes is None:
        return
    if error is None:
        metrics.create_time.record(seconds, attributes, _context())
    else:
        metrics.rejected_handshakes.add(1, attributes, _context())


class CheckoutTimeout(Interceptor):
    """Counts waits for a connection that timed out, at the pool's method that raises the error."""

    def __init__(self, clients: Clients, metrics: DriverMetrics) -> None:
        self._clients = clients
        self._metrics = metrics

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        # pymongo reports no event if the wait is interrupted, so count here.
        if not in_progress.in_foreign_call():
            self._metrics.timeouts.add(1, self._clients.attributes(args[0]) or {})


@dataclass(eq=False, repr=False)
class Pools(OurListener, monitoring.ConnectionPoolListener):
    """Measures how long connections are awaited and used."""

    pool_name: Callable[[Address], dict[str, Any]]
    """Returns the attributes of the client's pool for an address."""
    metrics: DriverMetrics
    _taken: dict[tuple[Address, int], tuple[float, Operation | None]] = field(default_factory=dict)
    """When and in which operation each connection was checked out, by pymongo's number of the
    connection.
    """

    @guarded
    def connection_checked_out(self, event: monitoring.ConnectionCheckedOutEvent) -> None:
        if self.metrics.wait_time is not None and not in_progress.in_foreign_call():
            taken = time.perf_counter(), in_progress.current_or_ended()
            self._taken[event.address, event.connection_id] = taken
            seconds = event.duration or 0.0
            self.metrics.wait_time.record(seconds, self.pool_name(event.address), _context())

    @guarded
    def connection_checked_in(self, event: monitoring.ConnectionCheckedInEvent) -> None:
        taken = self._taken.pop((event.address, event.connection_id), None)
        if taken is None or self.metrics.use_time is None:
            return
        seconds, attributes = time.perf_counter() - taken[0], self.pool_name(event.address)
        if in_progress.current_or_ended() is taken[1]:
            self.metrics.use_time.record(seconds, attributes, _context())
        else:
            # In another context, the garbage collector may be closing the coroutine that used the
            # connection, while this thread holds a lock of the SDK.
            defer(partial(self.metrics.use_time.record, seconds, attributes, NO_CONTEXT))

    def _ignore(self, event: Any) -> None: ...

    pool_created = pool_ready = pool_cleared = pool_closed = _ignore
    connection_created = connection_ready = connection_closed = _ignore
    connection_check_out_started = connection_check_out_failed = _ignore
