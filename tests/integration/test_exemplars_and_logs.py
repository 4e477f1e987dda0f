"""From a measurement and from a log line to the trace, by OpenTelemetry's filter and handler."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
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

    def use() -> Any:
        # The monitors of an async client are started here, and keep this context for good.
        with tracer.start_as_current_span("request"):
            return client[database].coll.find_one()

    async def use_in_a_task() -> None:
        with tracer.start_as_current_span("request"):
            await client[database].coll.find_one()

    side.do(use if side.runner is None else use_in_a_task)

    led_to: set[tuple[int, int]] = set()

    def heartbeats() -> bool:
        led_to.update(exemplars(telemetry)["pymongo_resilience.heartbeat.duration"])
        points = telemetry.points("pymongo_resilience.heartbeat.duration")
        return sum(point.count for _, point in points) >= 2

    side.wait_until(heartbeats)
    assert led_to == set()


@pytest.fixture
def exporter() -> Iterator[InMemoryLogRecordExporter]:
    """What OpenTelemetry's handler makes of the records of the library's retries."""
    exported = InMemoryLogRecordExporter()
    provider = LoggerProvider(shutdown_on_exit=False)
    provider.add_log_record_processor(SimpleLogRecordProcessor(exported))
    # Deprecated in favour of the same handler in opentelemetry-instrumentation-logging, which
    # would take over the logging of every program that opentelemetry-instrument starts.
    with pytest.warns(DeprecationWarning, match="LoggingHandler"):
        handler = LoggingHandler(logger_provider=provider)
    logger = logging.getLogger("pymongo_resilience.retry")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield exported
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_a_log_record_carries_trace_and_span(
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
    exporter: InMemoryLogRecordExporter,
) -> None:
    telemetry = instrument(timeout_ms=20_000, metrics="all")
    coll = side.do(side.client, proxy.uri)[database].coll
    proxy.inject(CutAfter("insert"))
    side.do(coll.insert_one, {})
    (record,) = [each.log_record for each in exporter.get_finished_logs()]
    assert {(record.trace_id, record.span_id)} == ids(telemetry, f"insert {database}.coll")
    assert record.attributes["pymongo_resilience"]["event"] == "retry.scheduled"
    assert trace.get_current_span() is trace.INVALID_SPAN
