"""What the library showed in a test, kept in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pymongo_resilience.testing import RecordingListener


@dataclass
class Telemetry:
    """What the library showed: spans, metrics, decisions."""

    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader
    decisions: RecordingListener

    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def operations(self, name: str | None = None) -> list[ReadableSpan]:
        found = [span for span in self.spans() if "db.operation.name" in span.attributes]
        return [span for span in found if name is None or span.name == name]

    def commands_of(self, operation: ReadableSpan) -> list[ReadableSpan]:
        return [
            span
            for span in self.spans()
            if span.parent is not None and span.parent.span_id == operation.context.span_id
        ]

    def points(self, metric: str) -> list[tuple[dict[str, Any], Any]]:
        data = self.reader.get_metrics_data()
        if data is None:
            return []
        return [
            (dict(point.attributes), point)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for each in scope.metrics
            if each.name == metric
            for point in each.data.data_points
        ]

    def shows_reason(self, reason: str) -> bool:
        """In the span of an operation, as an event and as an attribute, and in the metric that the
        dashboard draws by reason."""
        name = "pymongo_resilience.reason"
        events = {event.attributes.get(name) for span in self.operations() for event in span.events}
        listed = {
            each
            for span in self.operations()
            for each in span.attributes.get("pymongo_resilience.retry.reasons", ())
        }
        counted = {each.get(name) for each, _ in self.points("pymongo_resilience.retries")}
        return reason in events & listed & counted

    def clear(self) -> None:
        self.exporter.clear()
        self.decisions.events.clear()


Instrument = Callable[..., Telemetry]
