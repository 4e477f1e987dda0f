"""Creates the observers that one ``instrument()`` needs for its configuration, and calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opentelemetry import context, metrics, trace

from pymongo_resilience._version import __version__
from pymongo_resilience.config import MetricDetail
from pymongo_resilience.errors import OperationTimeoutError
from pymongo_resilience.events import Broadcast, Event, EventLog
from pymongo_resilience.internal_errors import internal_error_types, logger
from pymongo_resilience_instrumentation import in_progress
from pymongo_resilience_instrumentation.limits import NEVER
from pymongo_resilience_instrumentation.operation import Operation
from pymongo_resilience_instrumentation.settings import HOOKS, Settings

from .command_spans import CommandSpans
from .metrics import DriverMetrics, OperationMetrics
from .observers import Observer, Timelines
from .operation_spans import OperationSpans
from .server_gauges import ServerGauges, server_gauges

SCOPE = "pymongo_resilience"
API = ("opentelemetry.trace", "opentelemetry.metrics")
"""Modules of the providers that record nothing."""
LOOKS_EVERY = 0.05
"""Seconds between two checks for an SDK, because each reads the environment."""


class Telemetry:
    """Calls the observers of operations, and holds the settings of spans and metrics. Thread- and
    task-safe.
    """

    command_spans: CommandSpans | None = None
    driver_metrics: DriverMetrics | None = None
    gauges: ServerGauges | None = None

    def __init__(self, settings: Settings) -> None:
        config = settings.config
        self._listeners = Broadcast([EventLog(), *settings.listeners])
        self._timelines = Timelines()
        self._slow_s = NEVER if config.slow_ms is None else config.slow_ms / 1000
        """Operations that take at least this many seconds are shown, however they end."""
        self.recorders: tuple[Observer, ...] = ()
        """The observers for which there is an SDK."""
        self.records = False
        """True if there are ``recorders``."""
        self.spans: OperationSpans | None = None
        """The observer of spans, if there is an SDK for it. It also observes the beginning of
        operations.
        """
        self._without_sdk: dict[Observer, Callable[[], object]] = {}
        """The observers without an SDK so far, each with a function that returns its provider."""
        if config.metrics:
            meter = metrics.get_meter(SCOPE, __version__, settings.meter_provider)
            everything = config.metrics == MetricDetail.ALL
            by_collection = config.metrics != MetricDetail.BY_DATABASE
            self.driver_metrics = DriverMetrics(meter, everything=everything)
            self.gauges = server_gauges(meter, settings.meter_provider)
            measured = OperationMetrics(meter, by_collection=by_collection, everything=everything)
            meters = settings.meter_provider
            self._without_sdk[measured] = lambda: meters or metrics.get_meter_provider()
        if config.traces:
            tracer = trace.get_tracer(SCOPE, __version__, settings.tracer_provider)
            hooks = {name: hook for name in HOOKS if (hook := getattr(settings, name)) is not None}
            self.command_spans = CommandSpans(tracer, config.command_spans, hooks)
            spans, tracers = OperationSpans(tracer), settings.tracer_provider
            self._without_sdk[spans] = lambda: tracers or trace.get_tracer_provider()
        self._observers = tuple(self._without_sdk)
        self.looks_at = 0.0 if self._observers else NEVER
        """When to check for an SDK next, on the clock of ``Operation.started``. It may be set up at
        any time.
        """
        self.shows_healthy = config.slow_ms is not None
        """True if operations that end without an error are observed."""

    def look_for_sdk(self, now: float) -> None:
        """Start to record spans, metrics, or both, if an SDK for them was set up."""
        self.looks_at = now + LOOKS_EVERY
        try:
            modules = {
                observer: type(provider()).__module__
                for observer, provider in list(self._without_sdk.items())
            }
        except Exception:  # a provider that the environment names and that cannot be loaded
            self.looks_at = NEVER
            logger.exception(
                "OpenTelemetry could not load a provider, so no spans and metrics are recorded. "
                "Check OTEL_PYTHON_TRACER_PROVIDER and OTEL_PYTHON_METER_PROVIDER"
            )
            return
        for observer, module in modules.items():
            # OpenTelemetry's API alone records nothing.
            if not module.startswith(API):
                self._without_sdk.pop(observer, None)
        if not self._without_sdk:
            self.looks_at = NEVER
        self.recorders = tuple(each for each in self._observers if each not in self._without_sdk)
        spans = (each for each in self.recorders if isinstance(each, OperationSpans))
        self.spans = next(spans, None)
        self.records = bool(self.recorders)
        self.shows_healthy = self.shows_healthy or self.records

    def on_event(self, event: Event, /) -> None:
        """Pass an event to the observers, then to the application's listeners.

        Operations of those listeners are not reported.
        """
        for observer in self._observers:
            try:
                observer.on_event(event)
            except internal_error_types():
                logger.exception("internal error in pymongo-resilience while showing a decision")
        in_progress.call_foreign(self._listeners.on_event, event)

    def end(self, operation: Operation, error: BaseException | None) -> None:
        """End an operation for all observers, even if one of them has an internal error."""
        if operation.ended_ns is not None and operation.span is not None:
            # Exemplars of the measurements link to the operation's trace. Deferred work runs in its
            # own context, so this need not be undone.
            context.attach(trace.set_span_in_context(operation.span))
        observers: Iterable[Observer] = self.recorders
        if isinstance(error, OperationTimeoutError) or operation.seconds >= self._slow_s:
            # First, because the operation's span shows the timeline.
            observers = (self._timelines, *observers)
        if operation.transaction_span is not None:
            observers = (*observers, operation.transaction_span)
        for observer in observers:
            try:
                observer.ends(operation, error)
            except internal_error_types():
                logger.exception("internal error in pymongo-resilience while ending %s", operation)
                end_spans(operation)


def end_spans(operation: Operation) -> None:
    """End the spans that an internal error has left open."""
    commands = () if operation.shown is None else operation.shown.commands.values()
    for span in (*(each.span for each in commands), operation.span):
        if span is not None and span.is_recording():
            in_progress.call_foreign_wrapped(span.end, operation.ended_ns)
