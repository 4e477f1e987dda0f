"""The four sides, each in its own process, because instrumenting patches pymongo process-wide.

Plain pymongo, pymongo with its own timeoutMS, a naive retry loop, and pymongo-resilience.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import tenacity
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from pymongo import MongoClient
from pymongo.errors import PyMongoError
from pymongo.monitoring import CommandFailedEvent, CommandListener, ConnectionPoolListener

from pymongo_resilience import Config, instrument
from pymongo_resilience_instrumentation.tools.testbed import TestbedError

from .fault_script import MAX_IDLE
from .result import DEADLINE_MS, Outcome, Side
from .workload import Step, perform

_TRIES: Final = 3
_PAUSE: Final = 0.05
_TIMEOUT: Final = 90.0


class Settings(NamedTuple):
    side: Side
    uri: str
    otlp: str | None


Ask = Callable[[Step | None], dict[Side, Any]]


@contextlib.contextmanager
def processes(settings: list[Settings]) -> Iterator[Ask]:
    """Start one process for each side, and return a function that runs a step on all of them.

    The function waits for the slowest side and returns each side's Outcome. Without a step, the
    sides export their telemetry.

    Raises:
        TestbedError: A side does not answer in time.
    """
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        # Children inherit ignored signals from their parent, so none prints a traceback on Ctrl-C.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            pools = {
                each.side: stack.enter_context(context.Pool(1, _begin, (each,)))
                for each in settings
            }
        finally:
            signal.signal(signal.SIGINT, before)

        turns = deque(pools.items())

        def ask(step: Step | None) -> dict[Side, Any]:
            # The side that starts last finds the server busy, so let the sides take turns.
            turns.rotate()
            begun = {side: pool.apply_async(_run, (step,)) for side, pool in turns}
            answers = {}
            for side, result in begun.items():
                try:
                    answers[side] = result.get(_TIMEOUT)
                except multiprocessing.TimeoutError:
                    raise TestbedError(f"{side.title}: no answer in {_TIMEOUT:g} s") from None
            return answers

        ask(None)
        yield ask


class _Failures(CommandListener, ConnectionPoolListener):
    """Collects the errors of one operation's failed attempts from pymongo's events."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def failed(self, event: CommandFailedEvent) -> None:
        failure = event.failure
        self.names.append(str(failure.get("codeName") or failure.get("errtype")))

    def connection_check_out_failed(self, event: Any) -> None:
        self.names.append("no connection")

    def _ignore(self, event: Any) -> None:
        """Ignore the event."""

    started = succeeded = _ignore
    pool_created = pool_ready = pool_cleared = pool_closed = _ignore
    connection_created = connection_ready = connection_closed = _ignore
    connection_check_out_started = connection_checked_out = connection_checked_in = _ignore


class _Process:
    """One side, in its own process."""

    def __init__(self, settings: Settings) -> None:
        self._failures = _Failures()
        self._providers = _providers(settings.otlp) if settings.otlp else {}
        if settings.side is Side.OURS:
            instrument(config=Config(timeout_ms=DEADLINE_MS), **self._providers)
        client: MongoClient[dict[str, Any]] = MongoClient(
            settings.uri,
            maxIdleTimeMS=round(MAX_IDLE * 1000),
            event_listeners=[self._failures],
            timeoutMS=DEADLINE_MS if settings.side is Side.TIMEOUT else None,
        )
        self._database = client[settings.side.database]
        # A retry loop as it is often written: it retries after any error, and creates the document
        # again each time.
        in_a_loop = tenacity.retry(
            stop=tenacity.stop_after_attempt(_TRIES),
            wait=tenacity.wait_fixed(_PAUSE),
            retry=tenacity.retry_if_exception_type(PyMongoError),
            reraise=True,
        )
        self._perform = in_a_loop(perform) if settings.side is Side.NAIVE else perform

    def run(self, step: Step | None) -> Outcome | None:
        if step is None:
            for each in self._providers.values():
                # Takes seconds if the collector does not answer.
                each.force_flush()
            return None
        error, failed = None, self._failures.names
        failed.clear()
        started = time.perf_counter()
        try:
            self._perform(self._database, step)
        except PyMongoError as exc:
            error = type(exc).__name__
            # The last failed attempt was not retried.
            del failed[-1:]
        return Outcome(time.perf_counter() - started, error, Counter(failed))


_process: _Process
"""This process's side."""


def _begin(settings: Settings) -> None:
    global _process  # noqa: PLW0603 - an initializer of a pool's process has no other place
    # Ctrl-C reaches all processes of the group, but the parent ends its children itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _process = _Process(settings)


def _run(step: Step | None) -> Outcome | None:
    return _process.run(step)


def _providers(endpoint: str) -> dict[str, Any]:
    """Return the providers for ``instrument()``, which export to an OTLP collector."""
    base = endpoint.rstrip("/")
    resource = Resource.create({"service.name": "pymongo-resilience-demo"})
    tracers = TracerProvider(resource=resource)
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{base}/v1/traces")))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=f"{base}/v1/metrics"))
    meters = MeterProvider([reader], resource=resource)
    return {"tracer_provider": tracers, "meter_provider": meters}
