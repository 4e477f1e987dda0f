"""OpenTelemetry's SDK in memory, for the child programs. Some import pymongo later: not here."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Telemetry:
    """OpenTelemetry's SDK for this process, set up now, in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        trace.set_tracer_provider(provider)
        metrics.set_meter_provider(MeterProvider([self.reader]))
        time.sleep(0.1)  # the library looks for one every 50 ms

    def described(self, name: str) -> list[dict[str, Any]]:
        """The operation spans of a name."""
        return [
            {
                "attempts": span.attributes["pymongo_resilience.attempts"],
                "outcome": span.attributes["pymongo_resilience.outcome"],
                "commands": len(self._commands_of(span)),
                "txn_numbers": len({*self._txn_numbers(span)}),
                "root": span.parent is None,
            }
            for span in self.exporter.get_finished_spans()
            if span.name == name
        ]

    def _commands_of(self, operation: ReadableSpan) -> list[ReadableSpan]:
        return [
            span
            for span in self.exporter.get_finished_spans()
            if span.parent is not None and span.parent.span_id == operation.context.span_id
        ]

    def _txn_numbers(self, operation: ReadableSpan) -> list[int]:
        name = "db.mongodb.txn_number"
        commands = self._commands_of(operation)
        return [span.attributes[name] for span in commands if name in span.attributes]

    def points(self, metric: str) -> list[tuple[dict[str, Any], Any]]:
        """Attributes and value of each point; of a histogram, how much it has counted."""
        data = self.reader.get_metrics_data()
        return [
            (dict(point.attributes), getattr(point, "value", getattr(point, "count", None)))
            for resource in (() if data is None else data.resource_metrics)
            for scope in resource.scope_metrics
            for each in scope.metrics
            if each.name == metric
            for point in each.data.data_points
        ]

    def by(self, attribute: str, metric: str) -> dict[str, Any]:
        """The sum of the values for each of an attribute's."""
        sums: Counter[str] = Counter()
        for attributes, value in self.points(metric):
            sums[str(attributes[attribute])] += value
        return dict(sums)

    def buckets(self, metric: str) -> list[float]:
        """The boundaries of a histogram; those of all its points are the same."""
        data: Any = self.reader.get_metrics_data()
        (boundaries,) = {
            tuple(point.explicit_bounds)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for each in scope.metrics
            if each.name == metric
            for point in each.data.data_points
        }
        return [*boundaries]
