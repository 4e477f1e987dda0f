"""From a measurement and from a log line to the trace, by the span that each is made in."""

from __future__ import annotations

import logging

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from support.clients import Side
from support.telemetry import Instrument, Telemetry

from pymongo_resilience.testbed import CutAfter, ReplicaSet


def exemplars(telemetry: Telemetry) -> dict[str, set[tuple[int, int]]]:
    """By metric, trace and span that each one since the last look leads to."""
    data = telemetry.reader.get_metrics_data()
    return {
        metric.name: {
            (exemplar.trace_id, exemplar.span_id)
            for point in metric.data.data_points
            for exemplar in point.exemplars
        }
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def ids(telemetry: Telemetry, name: str) -> set[tuple[int, int]]:
    """Of the operation spans of that name."""
    return {(span.context.trace_id, span.context.span_id) for span in telemetry.operations(name)}


def test_measurements_of_a_call_lead_to_its_span(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000, metrics="all")
    coll = side.do(side.client, proxy.uri)[database].coll
    proxy.inject(CutAfter("insert"))
    side.do(coll.insert_one, {})
    span = ids(telemetry, f"insert {database}.coll")
    assert len(span) == 1
    found = exemplars(telemetry)
    for metric in (
        "db.client.operation.duration",
        "db.client.connection.wait_time",
        "db.client.connection.use_time",
        "pymongo_resilience.attempts",
        "pymongo_resilience.backoff",
        "pymongo_resilience.retries",
    ):
        assert found[metric] == span, metric


def test_measurements_of_a_monitor_lead_to_no_span(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    client = side.do(side.client, proxy.uri, heartbeatFrequencyMS=500)
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("application")

    # The monitors of an async client are started here, and keep this context for good.
    with tracer.start_as_current_span("request"):
        side.do(client[database].coll.find_one)
    led_to: set[tuple[int, int]] = set()

    def heartbeats() -> bool:
        led_to.update(exemplars(telemetry)["pymongo_resilience.heartbeat.duration"])
        points = telemetry.points("pymongo_resilience.heartbeat.duration")
        return sum(point.count for _, point in points) >= 2

    side.wait_until(heartbeats)
    assert led_to == set()


class InContext(logging.Handler):
    """Keeps what OpenTelemetry's handler would: the span that a record is written in."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.seen: list[tuple[int, int]] = []

    def emit(self, record: logging.LogRecord) -> None:
        context = trace.get_current_span().get_span_context()
        self.seen.append((context.trace_id, context.span_id))


def test_a_log_record_is_written_in_the_span_of_its_operation(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    telemetry, handler = instrument(timeout_ms=20_000), InContext()
    coll = side.do(side.client, proxy.uri)[database].coll
    proxy.inject(CutAfter("insert"))
    logger = logging.getLogger("pymongo_resilience.retry")
    caplog.set_level(logging.INFO, logger.name)
    logger.addHandler(handler)
    try:
        side.do(coll.insert_one, {})
    finally:
        logger.removeHandler(handler)
    assert set(handler.seen) == ids(telemetry, f"insert {database}.coll")
    assert trace.get_current_span() is trace.INVALID_SPAN
