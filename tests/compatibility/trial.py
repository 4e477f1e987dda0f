"""What the trials of other packages share: a real server behind a test bed, telemetry in memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import pymongo
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import pymongo_resilience
from pymongo_resilience import Config, OperationTimeoutError
from pymongo_resilience.testbed import EmbeddedServer, ReplicaSet

FAILURES = 3
"""More than the driver's one retry mends."""


class Trial:
    """Instrumented from the start; the application has a span of its own around everything."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._tracer = provider.get_tracer("application")
        pymongo_resilience.instrument(
            Config(timeout_ms=20_000),
            tracer_provider=provider,
            meter_provider=MeterProvider([self._reader]),
        )

    @contextmanager
    def deployment(self) -> Iterator[ReplicaSet]:
        with EmbeddedServer() as server, ReplicaSet(server.address, members=1) as proxy:
            with self._tracer.start_as_current_span("application") as span:
                self._application = span.get_span_context()
                yield proxy

    def check_operation(self, name: str, *, commands: int = 1) -> None:
        """Exactly one of that name, below the application's span, with so many command spans."""
        (operation,) = self.operations(name)
        assert operation.parent is not None, f"{name} has no parent"
        assert operation.parent.span_id == self._application.span_id, f"{name} has another parent"
        found = [each.name for each in self._spans() if _is_below(each, operation)]
        assert len(found) == commands, f"{name}: {found}"

    def operations(self, name: str) -> list[ReadableSpan]:
        return [each for each in self._spans() if each.name == name]

    def check_pools(self, pools: int) -> None:
        """The gauges show so many pools."""
        points = self._points("db.client.connection.count")
        names = {point.attributes["db.client.connection.pool.name"] for point in points}
        assert len(names) == pools, names

    def check_retried(self, operation: str) -> None:
        """As often as there were failures."""
        retries = self._points("pymongo_resilience.retries")
        counted = [
            point.value
            for point in retries
            if point.attributes["db.operation.name"] == operation
            and point.attributes["pymongo_resilience.decision"] == "scheduled"
        ]
        assert counted == [FAILURES], counted

    def _points(self, name: str) -> list[Any]:
        data: Any = self._reader.get_metrics_data()
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def _spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()


def _is_below(span: ReadableSpan, operation: ReadableSpan) -> bool:
    return span.parent is not None and span.parent.span_id == operation.context.span_id


def tried(package: str) -> None:
    sys.stdout.write(f"{package} {version(package)} on pymongo {pymongo.version}: ok\n")


@contextmanager
def deadline_missed() -> Iterator[None]:
    """Raises AssertionError if what is inside ends otherwise."""
    try:
        with pymongo_resilience.override(timeout_ms=200):
            yield
    except OperationTimeoutError:
        return
    raise AssertionError("the deadline had no effect")
