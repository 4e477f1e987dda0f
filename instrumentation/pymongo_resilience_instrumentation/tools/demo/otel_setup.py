"""The OpenTelemetry SDK of our side: counts spans, keeps one trace, sends all of it if asked."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.trace import StatusCode

from pymongo_resilience_instrumentation.telemetry import semconv

from .tally import Branch

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader

_NAMES_KEPT: Final = 100
_OTHER: Final = "other"
_SHOWN: Final = (
    semconv.TXN_NUMBER,
    semconv.EXCEPTION_TYPE,
    semconv.ATTEMPTS,
    semconv.OUTCOME,
    semconv.DEADLINE,
)
_NANOSECONDS: Final = 1e9


class SpanRecorder(SpanProcessor):
    """Counts the spans by name and keeps the trace of the operation that was retried most.

    ``phase`` is set by the workload; operations of ``preferred`` win over all others.
    For one thread at a time.
    """

    def __init__(self, preferred: str) -> None:
        self.names: Counter[str] = Counter()
        self.trace: Branch | None = None
        self.trace_phase = ""
        self.phase = ""
        self._preferred = preferred
        self._best = (False, 0)
        self._children: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        """Take one span; an operation's span ends after the command spans below it."""
        known = span.name in self.names or len(self.names) < _NAMES_KEPT
        self.names[span.name if known else _OTHER] += 1
        if span.parent is not None:
            self._children.append(span)
            return
        children, self._children = self._children, []
        retries = sum(event.name == semconv.EVENT_SCHEDULED for event in span.events)
        rank = (self.phase == self._preferred, len(children))
        if retries and span.status.status_code is not StatusCode.ERROR and rank > self._best:
            self._best = rank
            self.trace = _tree(span, children)
            self.trace_phase = self.phase


def _tree(operation: ReadableSpan, commands: list[ReadableSpan]) -> Branch:
    origin = operation.start_time or 0
    below = [_branch(span, origin) for span in commands]
    for event in operation.events:
        attributes = {key: str(value) for key, value in (event.attributes or {}).items()}
        start = (event.timestamp - origin) / _NANOSECONDS
        below.append(Branch(event.name, start, None, attributes=attributes))
    below.sort(key=lambda branch: branch.start)
    return _branch(operation, origin, tuple(below))


def _branch(span: ReadableSpan, origin: int, below: tuple[Branch, ...] = ()) -> Branch:
    start, end = span.start_time or 0, span.end_time or 0
    attributes = span.attributes or {}
    shown = {name: str(value) for name, value in attributes.items() if name in _SHOWN}
    return Branch(
        name=span.name,
        start=(start - origin) / _NANOSECONDS,
        seconds=(end - start) / _NANOSECONDS,
        failed=span.status.status_code is StatusCode.ERROR,
        attributes=shown,
        below=below,
    )


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
