"""OpenTelemetry's SDK for one process. It has a thread: call this after the last fork."""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor


def export_telemetry() -> Callable[[], None]:
    """Send spans and metrics to OTEL_EXPORTER_OTLP_ENDPOINT; returns what sends the rest now.

    Where the SDK is set up, by an earlier call or by opentelemetry-instrument, it stays as it is:
    OpenTelemetry would refuse a second one.
    """
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        tracers = TracerProvider()
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(tracers)
        reader = PeriodicExportingMetricReader(OTLPMetricExporter())
        metrics.set_meter_provider(MeterProvider([reader]))

    def flush() -> None:
        for provider in (trace.get_tracer_provider(), metrics.get_meter_provider()):
            if isinstance(provider, TracerProvider | MeterProvider):
                provider.force_flush()

    return flush
