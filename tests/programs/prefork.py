"""Forks workers as gunicorn does with ``preload_app``: instrumented before the fork, the SDK set up
in each worker, with threads that export. Arguments: URI, database.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from common import HANGS_AFTER, Child, client, say
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import pymongo_resilience

WORKERS = 3
SOON_MS = 20


class LastMetrics(MetricExporter):
    """Attributes and values of the newest export, by metric."""

    def __init__(self) -> None:
        super().__init__()
        self.points: dict[str, list[Any]] = {}

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 0, **kwargs: Any
    ) -> MetricExportResult:
        self.points = {
            metric.name: list(metric.data.data_points)
            for resource in metrics_data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 0) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 0, **kwargs: Any) -> None: ...

    def idle(self) -> list[int]:
        """Connections of each pool."""
        return [
            point.value
            for point in self.points.get("db.client.connection.count", [])
            if point.attributes["db.client.connection.state"] == "idle"
        ]

    def operations(self) -> dict[str, int]:
        points = self.points.get("db.client.operation.duration", [])
        return {point.attributes["db.operation.name"]: point.count for point in points}


def worker(preloaded: Any, uri: str, database: str) -> dict[str, Any]:
    """Serves with the parent's client and one of its own; its threads export what that was."""
    spans, exported = InMemorySpanExporter(), LastMetrics()
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(spans, schedule_delay_millis=SOON_MS))
    trace.set_tracer_provider(provider)
    reader = PeriodicExportingMetricReader(exported, export_interval_millis=SOON_MS)
    metrics.set_meter_provider(MeterProvider([reader]))
    preloaded[database].coll.insert_one({})
    with client(uri) as own:
        own[database].coll.find_one()
        ends = time.monotonic() + HANGS_AFTER / 2
        while True:
            answer = {
                "spans": sorted(span.name for span in spans.get_finished_spans()),
                "operations": exported.operations(),
                "idle": exported.idle(),
            }
            if (len(answer["spans"]) == 4 and answer["idle"] == [1, 1]) or time.monotonic() > ends:
                return answer
            time.sleep(SOON_MS / 1000)


def main(uri: str, database: str) -> None:
    pymongo_resilience.instrument()
    with client(uri) as preloaded:
        preloaded[database].coll.find_one()
        workers = [Child("fork", worker, preloaded, uri, database) for _ in range(WORKERS)]
        say([each.answer() for each in workers])


if __name__ == "__main__":
    main(*sys.argv[1:])
