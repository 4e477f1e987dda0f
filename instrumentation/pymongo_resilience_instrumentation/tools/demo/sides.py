"""The three sides: plain pymongo, a naive retry loop, pymongo-resilience; each in its own process.

Instrumenting patches pymongo in the whole process.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Final, NamedTuple, Self

import tenacity
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import StatusCode
from opentelemetry.util.types import Attributes
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from pymongo_resilience import Config, instrument
from pymongo_resilience.events import Event, RetryScheduled
from pymongo_resilience_instrumentation.telemetry import semconv
from pymongo_resilience_instrumentation.tools.testbed import TestbedError

from .fault_script import MAX_IDLE
from .result import Branch, Outcome, Side
from .workload import Step, perform

DEADLINE_MS: Final = 20_000
_TRIES: Final = 3
_PAUSE: Final = 0.05
_START_TIMEOUT: Final = 60.0
_STEP_TIMEOUT: Final = 90.0
_STOP_TIMEOUT: Final = 5.0


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


class Settings(NamedTuple):
    side: Side
    uri: str
    otlp: str | None


class Processes:
    """Starts one process per side, on entering; ends them all, on leaving. Not thread-safe."""

    def __init__(self, settings: list[Settings]) -> None:
        self._settings = settings
        self._processes: dict[Side, SpawnProcess] = {}
        self._connections: dict[Side, Connection[Any, Any]] = {}

    def ask(self, step: Step | None) -> dict[Side, Any]:
        """Have every side run the step, and wait for the slowest: an Outcome for each.

        Without a step they end, with the trace of each. Raises :class:`TestbedError`.
        """
        for side, connection in self._connections.items():
            try:
                connection.send(step)
            except OSError as exc:
                raise self._died(side) from exc
        return self._gather(_STEP_TIMEOUT)

    def _gather(self, timeout: float) -> dict[Side, Any]:
        answers: dict[Side, Any] = {}
        waiting = {connection: side for side, connection in self._connections.items()}
        deadline = time.monotonic() + timeout
        while waiting:
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                late = ", ".join(side.title for side in waiting.values())
                raise TestbedError(f"no answer within {timeout:g} s from: {late}")
            for connection in waiting.keys() & ready:
                side = waiting.pop(connection)
                try:
                    answers[side] = connection.recv()
                except (EOFError, OSError) as exc:
                    raise self._died(side) from exc
        return answers

    def _died(self, side: Side) -> TestbedError:
        process = self._processes[side]
        process.join(_STOP_TIMEOUT)
        return TestbedError(f"the process of {side.title} ended with status {process.exitcode}")

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        # Children start with the parent's signal dispositions: none prints a traceback on Ctrl-C.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for each in self._settings:
                ours, theirs = context.Pipe()
                process = context.Process(target=_main, args=(each, theirs), daemon=True)
                process.start()
                theirs.close()
                self._processes[each.side], self._connections[each.side] = process, ours
        finally:
            signal.signal(signal.SIGINT, before)
        try:
            self._gather(_START_TIMEOUT)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections.values():
            connection.close()
        for process in self._processes.values():
            # Its data is temporary: nothing needs an orderly end, least of all a hanging side.
            process.kill()
            process.join(_STOP_TIMEOUT)


def _main(settings: Settings, parent: Connection[Any, Any]) -> None:
    """A side's process: answers a Step by its Outcome, ``None`` by one trace."""
    # Ctrl-C reaches the whole group; the parent ends its children itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    recorder, retries = SpanRecorder(), ReportedRetries()
    telemetry = providers(recorder, settings.otlp)
    run = _connect(settings, retries, telemetry)
    try:
        parent.send(None)
        while (step := parent.recv()) is not None:
            parent.send(_outcome(run, retries, step))
        for each in telemetry.values():
            # It may take seconds where the collector does not answer.
            each.shutdown()
        parent.send(recorder.trace)
    except (EOFError, OSError):
        return


def _outcome(run: Callable[[Step], None], retries: ReportedRetries, step: Step) -> Outcome:
    error: str | None = None
    retries.reasons.clear()
    started = time.perf_counter()
    try:
        run(step)
    except PyMongoError as exc:
        error = type(exc).__name__
    return Outcome(time.perf_counter() - started, error, dict(retries.reasons))


def _connect(
    settings: Settings, retries: ReportedRetries, providers: dict[str, Any]
) -> Callable[[Step], None]:
    """Open the side's client; returns what runs one step. Patches pymongo on our side."""
    if settings.side is Side.OURS:
        instrument(config=Config(timeout_ms=DEADLINE_MS), listeners=[retries], **providers)
    client: MongoClient[dict[str, Any]] = MongoClient(
        settings.uri, maxIdleTimeMS=round(MAX_IDLE * 1000)
    )
    database = client[settings.side.database]
    if settings.side is not Side.NAIVE:
        return lambda step: perform(database, step)
    # What one writes in a hurry: again on any error, around the code that builds the document.
    again = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(_TRIES),
        wait=tenacity.wait_fixed(_PAUSE),
        retry=tenacity.retry_if_exception_type(PyMongoError),
        reraise=True,
    )
    return lambda step: again(perform, database, step)


class ReportedRetries:
    """Counts each retry, by the library's events. For one thread at a time."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()

    def on_event(self, event: Event, /) -> None:
        """Count what was scheduled; what was declined is an error the application sees."""
        if isinstance(event, RetryScheduled):
            self.reasons[event.reason.name] += 1
