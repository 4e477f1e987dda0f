"""The OpenTelemetry SDK of our side: keeps one trace, sends all of it if asked."""

from __future__ import annotations

from typing import Any, Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import StatusCode
from opentelemetry.util.types import Attributes

from pymongo_resilience_instrumentation.telemetry import semconv

from .result import Branch

# An operation's REASON and RULE are those of the last attempt, which the events below it show.
_LEFT_TO_EVENTS: Final = {semconv.REASON, semconv.RULE, semconv.DELAY}
_NANOSECONDS: Final = 1e9


class SpanRecorder(SpanProcessor):
    """Keeps the trace of the operation that was retried most. For one thread at a time."""

    def __init__(self) -> None:
        self.trace: tuple[Branch, ...] = ()
        self._children: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        """Take one span; an operation's span ends after the command spans below it."""
        if span.parent is not None:
            self._children.append(span)
            return
        children, self._children = self._children, []
        retries = sum(event.name == semconv.EVENT_SCHEDULED for event in span.events)
        trace = _branches(span, children) if retries else ()
        if span.status.status_code is not StatusCode.ERROR and len(trace) > len(self.trace):
            self.trace = trace


def _branches(operation: ReadableSpan, commands: list[ReadableSpan]) -> tuple[Branch, ...]:
    origin = operation.start_time or 0

    def spanned(span: ReadableSpan) -> Branch:
        start, end = span.start_time or 0, span.end_time or 0
        failed = span.status.status_code is StatusCode.ERROR
        shown = {k: v for k, v in _texts(span.attributes).items() if k not in _LEFT_TO_EVENTS}
        times = (start - origin) / _NANOSECONDS, (end - start) / _NANOSECONDS
        return Branch(span.name, *times, failed, shown)

    below = [spanned(span) for span in commands]
    for event in operation.events:
        start = (event.timestamp - origin) / _NANOSECONDS
        below.append(Branch(event.name, start, None, False, _texts(event.attributes)))
    return spanned(operation), *sorted(below, key=lambda branch: branch.start)


def _texts(attributes: Attributes) -> dict[str, str]:
    return {name: str(value) for name, value in (attributes or {}).items()}


def providers(recorder: SpanRecorder, endpoint: str | None) -> dict[str, Any]:
    """The arguments for ``instrument()``; what they record goes to an OTLP collector, if any."""
    resource = Resource.create({"service.name": "pymongo-resilience-demo"})
    tracers, readers = TracerProvider(resource=resource), []
    tracers.add_span_processor(recorder)
    if endpoint is not None:
        base = endpoint.rstrip("/")
        exporter = OTLPSpanExporter(endpoint=f"{base}/v1/traces")
        tracers.add_span_processor(BatchSpanProcessor(exporter))
        metrics = OTLPMetricExporter(endpoint=f"{base}/v1/metrics")
        readers.append(PeriodicExportingMetricReader(metrics))
    return {"tracer_provider": tracers, "meter_provider": MeterProvider(readers, resource=resource)}
