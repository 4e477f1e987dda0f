"""What the child programs of the tests share; each prints one JSON line, its answer to a test."""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pymongo
import pymongo.common
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

HANGS_AFTER = 10
"""Seconds. A child that has not answered by then prints where it stands, and ends."""
FAILURES = 3
"""More than the driver's one retry mends."""

# As in the tests' own process: after a network error the driver would wait half a second.
pymongo.common.MIN_HEARTBEAT_INTERVAL = 0.02


def say(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def client(uri: str, kind: Any = pymongo.MongoClient, **options: Any) -> Any:
    return kind(uri, serverMonitoringMode="poll", heartbeatFrequencyMS=500, **options)


def fail(client: Any, command: str, times: int = FAILURES) -> Any:
    """The next so many of a command end with a cut connection; awaited in async clients."""
    return client.admin.command(
        {
            "configureFailPoint": "failCommand",
            "mode": {"times": times},
            "data": {"failCommands": [command], "closeConnection": True},
        }
    )


class Child:
    """Another process that runs ``work(*args)``, made here and now by ``multiprocessing``."""

    def __init__(self, method: str, work: Callable[..., Any], *args: Any) -> None:
        context: Any = multiprocessing.get_context(method)
        self._receiver, sender = context.Pipe(duplex=False)
        self._process = context.Process(target=_send, args=(sender, work, args))
        self._process.start()
        sender.close()

    def answer(self) -> Any:
        """What the work returned; None where it raised or hung: standard error says more."""
        try:
            return self._receiver.recv()
        except EOFError:
            return None
        finally:
            self._process.join()


def _send(sender: Any, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    # Not in the parent: a watch that is armed there cannot be armed anew in a forked child.
    faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
    sender.send(work(*args))


class Telemetry:
    """OpenTelemetry's SDK for this process, set up now, in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        trace.set_tracer_provider(provider)
        metrics.set_meter_provider(MeterProvider([self.reader]))

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
