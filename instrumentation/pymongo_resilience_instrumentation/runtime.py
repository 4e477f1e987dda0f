"""What one ``instrument()`` sets up: executors, spans and metrics, and how an operation passes
them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any
from weakref import ref

from opentelemetry import context, metrics, trace
from pymongo.errors import OperationFailure

from pymongo_resilience._version import __version__
from pymongo_resilience.breakers import Snapshot
from pymongo_resilience.config import ALL, BY_DATABASE, OFF, TOKENS, Config
from pymongo_resilience.enabled_flag import EnabledFlag
from pymongo_resilience.events import Broadcast, EventLog, Listener
from pymongo_resilience.executor import AsyncExecutor, Executor
from pymongo_resilience.internal_errors import faults, is_closing, logger, shielded
from pymongo_resilience.policies.namespaces import NamespaceRules
from pymongo_resilience.policies.policy import NOTHING
from pymongo_resilience.rules.failure import Stage
from pymongo_resilience.rules.retry_rules import RetryRules
from pymongo_resilience.rules.strategy import NAMED, RetryStrategy
from pymongo_resilience_instrumentation.addresses import Address
from pymongo_resilience_instrumentation.clients.by_client import ByClient, ClientClock, Closings
from pymongo_resilience_instrumentation.clients.client_registry import Clients
from pymongo_resilience_instrumentation.deferred import defer, pending, run_deferred
from pymongo_resilience_instrumentation.failures.error_texts import Origin, state_origin
from pymongo_resilience_instrumentation.interceptor import Sender
from pymongo_resilience_instrumentation.operation import CURRENT, Operation
from pymongo_resilience_instrumentation.selection.client_limits import ClientLimits
from pymongo_resilience_instrumentation.self_check import State
from pymongo_resilience_instrumentation.settings import HOOKS, Settings
from pymongo_resilience_instrumentation.telemetry import decisions
from pymongo_resilience_instrumentation.telemetry.command_spans import CommandSpans
from pymongo_resilience_instrumentation.telemetry.decisions import OperationLog, Reported
from pymongo_resilience_instrumentation.telemetry.metrics import DriverMetrics, OperationMetrics
from pymongo_resilience_instrumentation.telemetry.operation_spans import OperationSpans
from pymongo_resilience_instrumentation.telemetry.transaction_spans import parent_of
from pymongo_resilience_instrumentation.timeouts import bounded_waits, timeout_errors
from pymongo_resilience_instrumentation.timeouts.precedence import TimeoutRules, transaction_of

from . import driver, in_progress

SCOPE = "pymongo_resilience"
API = ("opentelemetry.trace", "opentelemetry.metrics")
"""Where the providers are from that record nothing."""
LOOKS_EVERY = 0.05
"""Seconds between two looks for an SDK: each asks the environment."""
ANY_STRATEGY = NAMED["fast_fail"]
"""For ``"driver"``: the driver's own loop decides, and no strategy is ever asked."""


class Runtime:
    """Thread- and task-safe: what changes is on the operation, but for ``records``."""

    tracer: trace.Tracer | None = None
    operation_spans: OperationSpans | None = None
    command_spans: CommandSpans | None = None
    operation_metrics: OperationMetrics | None = None
    driver_metrics: DriverMetrics | None = None
    hedges: Any = None
    """A registry of each client's hedges (hedged_reads/), where the feature is there."""
    before_batch: Callable[[Operation, Any, Any], None] | None = None
    """Called with the driver's operation, and what sends it, before each batch of a cursor; a
    feature's."""

    def __init__(self, settings: Settings, earlier: Runtime | None, state: State) -> None:
        """``earlier`` leaves it the clients that exist."""
        self.settings = settings
        self.config = config = settings.config
        self.state = state
        drivers = config.strategy == "driver" and settings.strategy is None
        self.owns_retries = state is State.ALL and not drivers
        """Whether retries are decided here, not in the driver's own loop."""
        self.enabled_flag = EnabledFlag()
        self._warned: set[str] = set()
        self._providers = settings.tracer_provider, settings.meter_provider
        self.records = False
        """Whether there was an SDK yet: one may be set up at any time."""
        self._looks_at = 0.0
        """When it is looked for next, on the clock of ``Operation.started``."""
        reported = Reported([EventLog(), *settings.listeners])
        listener = Broadcast([*self._telemetry(settings), reported], ours=True)
        self.closings: Closings = Closings() if earlier is None else earlier.closings
        self.clients: Clients = Clients() if earlier is None else earlier.clients
        clock = ClientClock(self.closings)
        retry_rules = RetryRules(
            max_retries=config.max_retries,
            base_backoff=config.base_backoff_ms / 1000,
            max_backoff=config.max_backoff_ms / 1000,
        )
        self.executor: Executor = Executor(retry_rules, clock, listener)
        self.async_executor: AsyncExecutor = AsyncExecutor(retry_rules, clock, listener)
        self.rules: NamespaceRules = _rules(config, settings.strategy)
        self.timeouts = TimeoutRules(self.rules, config, csot_available=state is State.ALL)
        limited = config if self.owns_retries else None
        self.limits = ByClient(partial(ClientLimits, limited, clock, listener))
        self.admits = self.owns_retries and config.circuit_breaker != OFF
        """Whether attempts may be refused, once their server is selected."""
        self.shows_operations = config.traces or bool(config.metrics)
        self.slow_seconds = None if config.slow_ms is None else config.slow_ms / 1000
        """Calls that take as long have their timeline logged; None is off."""
        self.senders: dict[str, list[Sender]] = {}
        """By the method of the public API, or ``_run_operation``: what features put around it."""
        self.in_flight: dict[int, ref[Any]] = {}
        """The runs of the retry loop that are making an attempt, each a RetryLoop (retries/).
        Weakly: a client whose event loop was given up must be collected with its operations."""

    def _telemetry(self, settings: Settings) -> Iterator[Listener]:
        """What the configuration asks for, and of that what listens to decisions."""
        config = settings.config
        yield OperationLog()
        if config.traces:
            self.tracer = trace.get_tracer(SCOPE, __version__, settings.tracer_provider)
            hooks = {name: hook for name in HOOKS if (hook := getattr(settings, name)) is not None}
            self.command_spans = CommandSpans(self.tracer, config.command_spans, hooks)
            self.operation_spans = OperationSpans(self.tracer)
            yield self.operation_spans
        if config.metrics:
            meter, everything = meter_of(settings.meter_provider), config.metrics == ALL
            self.driver_metrics = DriverMetrics(meter, everything=everything)
            self.operation_metrics = OperationMetrics(
                meter, by_collection=config.metrics != BY_DATABASE, everything=everything
            )
            yield self.operation_metrics

    def warn_once(self, text: str) -> None:
        """A log handler may use MongoDB, and have this called again."""
        if text not in self._warned:
            self._warned.add(text)
            logger.warning(text)

    def attempts_in_flight(self) -> list[Any]:
        """In whatever thread or task."""
        return [made for each in list(self.in_flight.values()) if (made := each()) is not None]

    def nested(self, client: object) -> bool:
        """Whether the caller is inside of an operation of the same client: the outermost wins. Or
        inside of what the library publishes of one."""
        operation = in_progress.found()
        if operation is None or operation.ended:
            return operation is not None and operation.reporting
        return operation.client is client and operation.has_operations

    def begin(
        self, operation: Operation, *, span: bool = True, whole_timeout: bool = False
    ) -> None:
        """Make it the operation in progress, with a deadline and a span.

        ``whole_timeout``: it has all of it, whatever has passed of it. Raises InvalidOperation
        (pymongo's) for a timeout of its own inside of with_transaction.
        """
        if pending:
            run_deferred()
        if in_progress.found() is not None:
            in_progress.clear_inherited()
        operation.started = time.perf_counter()
        session = operation.session
        if session is not None:
            operation.transaction = transaction_of(session)
        operation.plain = operation.within is NOTHING is operation.bound and not self.rules.any
        self.timeouts.set_timeout(operation)
        if operation.timeout is not None and whole_timeout:
            operation.limit_to(driver.csot.Timeout.from_now(operation.timeout))
        operation.token = CURRENT.set(operation)
        if self.shows_operations and not self.records and operation.started >= self._looks_at:
            self._looks_at = operation.started + LOOKS_EVERY
            self._find_sdk()
        if span and self.records and self.operation_spans is not None:
            around = operation.ends or (None if session is None else parent_of(session))
            self.operation_spans.start(operation, around)

    def _find_sdk(self) -> None:
        tracers, meters = self._providers
        tracers = type(tracers or trace.get_tracer_provider()).__module__
        meters = type(meters or metrics.get_meter_provider()).__module__
        # OpenTelemetry's API alone records nothing.
        self.records = not (tracers.startswith(API) and meters.startswith(API))

    def end(
        self, operation: Operation, result: Any = None, error: BaseException | None = None
    ) -> Any:
        """Leave it: the spans end, the duration is recorded, whatever happened.

        Returns the result, or the error that the application gets, see ``timeout_errors``.
        Raises what a signal handler has raised in a listener: the driver keeps that to itself.
        """
        if error is not None and is_closing(error):
            self._end_later(operation)
            return error
        raises = error is None
        error = error or operation.interruption
        try:
            operation.reporting = operation.ended = True
            if operation.history.waits:
                bounded_waits.over(operation, error)
            if error is not None:
                error = self._ends_with(operation, error)
            seconds = time.perf_counter() - operation.started
            if error is not None or self.slow_seconds is not None:
                with shielded(f"while logging the timeline of {operation.name}"):
                    decisions.show(operation, error, seconds, self.slow_seconds)
            if self.records:
                self._publish_end(operation, error, seconds)
        finally:
            operation.leave()
            # A task that was started inside, and goes on, is treated like any other.
            operation.reporting = False
        if error is None:
            return result
        if raises:
            raise error
        return error

    def _end_later(self, operation: Operation) -> None:
        """Its coroutine is closed unfinished; see ``deferred``."""
        seconds, ended_ns = operation.elapsed(), time.time_ns()
        try:
            operation.history.server, operation.history.loop = operation.history.address, None
        except faults():  # not even a log may be written here
            operation.public = False
        operation.leave_unfinished()
        if self.records:
            defer(partial(self._publish_unfinished, operation, seconds, ended_ns))

    def _publish_unfinished(self, operation: Operation, seconds: float, ended_ns: int) -> None:
        # Without the frames of the error that closed it: they hold all that the coroutine did.
        error = GeneratorExit()
        if operation.span is not None:
            # What is measured leads to its trace; the context is the deferred work's own.
            context.attach(trace.set_span_in_context(operation.span))
        if operation.history.waits:
            bounded_waits.over(operation, error)
        self._publish_end(operation, error, seconds, ended_ns)

    def _publish_end(
        self,
        operation: Operation,
        error: BaseException | None,
        seconds: float,
        ended_ns: int | None = None,
    ) -> None:
        """``ended_ns``: since the epoch; None is now."""
        try:
            if self.operation_metrics is not None:
                self.operation_metrics.record(operation, error, seconds)
        except faults():
            logger.exception("internal error in pymongo-resilience while recording %s", operation)
        try:
            if self.operation_spans is not None and operation.span is not None:
                self.operation_spans.end(operation, error, ended_ns)
            if operation.ends is not None:
                operation.ends.end(error, operation.name, ended_ns)
        except faults():
            logger.exception("internal error in pymongo-resilience while ending %s", operation)

    def _ends_with(self, operation: Operation, error: BaseException) -> BaseException | None:
        raised: BaseException | None = error
        with shielded(f"while preparing the error of {operation.name}"):
            if self.owns_retries:
                raised = timeout_errors.as_timeout(operation, error)
            past = operation.history
            if isinstance(raised, OperationFailure) and past.selected is not None:
                # Of a bulk write, say: raised once the driver's loop is over.
                origin = Origin(past.server_text(), Stage.ANSWERED, past.attempts, past.reasons)
                state_origin(raised, origin)
        return raised

    def breakers_of(self, client: object) -> Mapping[Address, Snapshot]:
        """By server, of those that an attempt was meant for; none where there are no breakers."""
        breakers = self.limits.of(client).breakers
        return {} if breakers is None else breakers.snapshots()


def meter_of(provider: Any) -> metrics.Meter:
    return metrics.get_meter(SCOPE, __version__, provider)


def _rules(config: Config, strategy: RetryStrategy | None) -> NamespaceRules:
    decides = NAMED.get(config.strategy) if strategy is None else strategy
    if decides is not None:
        return NamespaceRules(decides, config.policies)
    for chosen, what in (
        (config.policies, "the policies have"),
        (config.retry_budget == TOKENS, "adaptive retries have"),
        (config.circuit_breaker != "off", "circuit breakers have"),
    ):
        if chosen:
            logger.warning("strategy=driver: pymongo retries by itself, %s no effect", what)
    return NamespaceRules(ANY_STRATEGY, {})
