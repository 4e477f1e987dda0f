"""What pools and monitors report: waits, uses, handshakes, timeouts, heartbeats."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.context import Context
from pymongo.monitoring import ConnectionCheckOutFailedReason

from pymongo_resilience_instrumentation.telemetry import semconv

from .operation_metrics import Instruments

if TYPE_CHECKING:
    from collections.abc import Collection

    from opentelemetry.metrics import Meter

    from pymongo_resilience_instrumentation.addresses import Address
    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.clients.client_registry import Pool

NO_CONTEXT = trace.set_span_in_context(trace.INVALID_SPAN, Context())
"""Monitors and background tasks of async clients have inherited the context of the client's first
operation: what they measure must not lead to its trace. The SDK takes an empty context for none
(opentelemetry-sdk 1.45.2), so it says that there is no span."""


class DriverMetrics:
    """Thread- and task-safe. Durations are seconds."""

    def __init__(self, meter: Meter, without: Collection[str] = ()) -> None:
        """``without``: the names of instruments that are left out."""
        made = Instruments(meter, without)
        self._wait_time = made.histogram(
            semconv.CONNECTION_WAIT_TIME, "Time until the pool gave a connection."
        )
        self._use_time = made.histogram(
            semconv.CONNECTION_USE_TIME, "Time from taking a connection to giving it back."
        )
        self._create_time = made.histogram(
            semconv.CONNECTION_CREATE_TIME,
            "Time to connect: TCP, TLS, hello and authentication.",
        )
        self._timeouts = made.counter(
            semconv.CONNECTION_TIMEOUTS,
            "Waits for a connection of the pool that ended without one, out of time.",
            "{timeout}",
        )
        self._heartbeat = made.histogram(
            semconv.HEARTBEAT_DURATION,
            "Duration of a monitor's hello; an awaited one lasts until the server has news.",
        )
        self._heartbeat_failures = made.counter(
            semconv.HEARTBEAT_FAILURES, "Hellos of a monitor that failed.", "{failure}"
        )
        self.times_waits = self._wait_time is not None
        self.times_uses = self._use_time is not None

    def waited(self, pool: Pool, seconds: float | None, call: Call | None) -> None:
        """``call``, here and below: the one that it is measured in, which its exemplars lead to.

        What makes no sense is not recorded: None, or less than nothing.
        """
        if self._wait_time is not None and seconds is not None and 0 <= seconds < math.inf:
            self._wait_time.record(seconds, pool.attributes, _context(call))

    def used(self, pool: Pool, seconds: float, call: Call | None) -> None:
        if self._use_time is not None:
            self._use_time.record(seconds, pool.attributes, _context(call))

    def connected(self, pool: Pool, seconds: float | None, call: Call | None) -> None:
        if self._create_time is not None and seconds is not None and 0 <= seconds < math.inf:
            self._create_time.record(seconds, pool.attributes, _context(call))

    def refused(self, pool: Pool, reason: str, call: Call | None) -> None:
        """A check-out ended without a connection."""
        if self._timeouts is not None and reason == ConnectionCheckOutFailedReason.TIMEOUT:
            self._timeouts.add(1, pool.attributes, _context(call))

    def heartbeat(
        self, server: Address, seconds: float | None, *, awaited: bool, failed: bool
    ) -> None:
        attributes: dict[str, Any] = {
            **semconv.address_attributes(server),
            semconv.AWAITED: awaited,
        }
        if self._heartbeat is not None and seconds is not None and 0 <= seconds < math.inf:
            self._heartbeat.record(seconds, attributes, NO_CONTEXT)
        if failed and self._heartbeat_failures is not None:
            self._heartbeat_failures.add(1, attributes, NO_CONTEXT)


def _context(call: Call | None) -> Context | None:
    """None is the current one."""
    return NO_CONTEXT if call is None else None
