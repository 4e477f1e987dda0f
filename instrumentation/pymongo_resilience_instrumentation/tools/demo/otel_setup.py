"""The OpenTelemetry SDK of our side: keeps one trace, sends all of it if asked."""

from __future__ import annotations

from typing import Any, Final

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
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


class Telemetry:
    """The providers of our side.

    :param endpoint: the base URL of an OTLP/HTTP collector, or ``None`` to keep all at home.
    """

    def __init__(self, recorder: SpanRecorder, endpoint: str | None) -> None:
        resource = Resource.create({"service.name": "pymongo-resilience-demo"})
        self._tracers = TracerProvider(resource=resource)
        self._tracers.add_span_processor(recorder)
        readers: list[MetricReader] = []
        if endpoint is not None:
            readers.append(self._send_to(endpoint.rstrip("/")))
        self._meters = MeterProvider(readers, resource=resource)

    def _send_to(self, base: str) -> MetricReader:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415 - only with --otlp
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - only with --otlp
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415 - only with --otlp
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - only with --otlp

        exporter = OTLPSpanExporter(endpoint=f"{base}/v1/traces")
        self._tracers.add_span_processor(BatchSpanProcessor(exporter))
        return PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=f"{base}/v1/metrics"))

    @property
    def providers(self) -> dict[str, Any]:
        """The keyword arguments for :func:`pymongo_resilience.instrument`."""
        return {"tracer_provider": self._tracers, "meter_provider": self._meters}

    def shutdown(self) -> None:
        """Send what is left; may take seconds when the collector does not answer."""
        self._tracers.shutdown()
        self._meters.shutdown()
