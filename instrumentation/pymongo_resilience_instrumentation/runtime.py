"""What one ``instrument()`` set up: executors, spans and metrics, and how a call passes them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from opentelemetry import context, trace
from pymongo.errors import OperationFailure

from pymongo_resilience import internal_errors
from pymongo_resilience.internal_errors import is_closing, logger, shielded
from pymongo_resilience_instrumentation.deferred import defer, pending, run_deferred
from pymongo_resilience_instrumentation.failures.error_texts import state_origin
from pymongo_resilience_instrumentation.telemetry import decisions
from pymongo_resilience_instrumentation.telemetry.transaction_spans import parent_of
from pymongo_resilience_instrumentation.timeouts import bounded_waits, timeout_errors
from pymongo_resilience_instrumentation.timeouts.precedence import transaction_of

from . import calls, driver

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from weakref import ref

    from pymongo_resilience.breakers import Snapshot
    from pymongo_resilience.config import Config
    from pymongo_resilience.enabled_flag import EnabledFlag
    from pymongo_resilience.policies.namespaces import NamespaceRules
    from pymongo_resilience.rules.executor import AsyncExecutor, Executor
    from pymongo_resilience_instrumentation.addresses import Address
    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.clients.by_client import Budgets, ByClient
    from pymongo_resilience_instrumentation.clients.client_registry import Clients
    from pymongo_resilience_instrumentation.clients.closings import Closings
    from pymongo_resilience_instrumentation.interception.interceptor import Sender
    from pymongo_resilience_instrumentation.selection.refusals import ClientBreakers, ClientShedders
    from pymongo_resilience_instrumentation.selection.selector import OperationCounts, Selectors
    from pymongo_resilience_instrumentation.self_check import State
    from pymongo_resilience_instrumentation.telemetry.client_tracing import Warnings
    from pymongo_resilience_instrumentation.telemetry.command_spans import CommandSpans
    from pymongo_resilience_instrumentation.telemetry.metrics import DriverMetrics, OperationMetrics
    from pymongo_resilience_instrumentation.telemetry.operation_spans import OperationSpans
    from pymongo_resilience_instrumentation.telemetry.transaction_spans import (
        TransactionSpan,
        TransactionSpans,
    )
    from pymongo_resilience_instrumentation.timeouts.command_limits import DeprecatedOptions
    from pymongo_resilience_instrumentation.timeouts.precedence import TimeoutRules


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class Runtime:
    """Nothing of it changes, so it is thread- and task-safe; what does is on the call."""

    config: Config
    rules: NamespaceRules
    timeouts: TimeoutRules
    deprecated: DeprecatedOptions
    executor: Executor
    async_executor: AsyncExecutor
    clients: Clients
    budgets: Budgets
    breakers: ByClient[ClientBreakers] | None
    """None while they are off."""
    shedding: ByClient[ClientShedders] | None
    """None while it is off."""
    selectors: Selectors | None
    """None where pymongo alone chooses its servers."""
    enabled_flag: EnabledFlag
    operation_spans: OperationSpans | None
    command_spans: CommandSpans | None
    transaction_spans: TransactionSpans | None
    warnings: Warnings
    operation_metrics: OperationMetrics | None
    driver_metrics: DriverMetrics | None
    closings: Closings
    state: State
    owns_retries: bool
    """Whether retries are decided here, not in the driver's own loop."""
    slow_seconds: float | None = None
    """Calls that take as long have their timeline logged; None is off."""
    hedges: Any = None
    """A registry of each client's hedges (hedged_reads/), where the feature is there."""
    senders: dict[str, list[Sender]] = field(default_factory=dict)
    """By the method of the public API, or ``_run_operation``: what features put around it."""
    before_batch: Callable[[Call, Any, Any], None] | None = None
    """Called with the driver's operation and cursor before each batch of a cursor; a feature's."""
    in_flight: dict[int, ref[Any]] = field(default_factory=dict)
    """The runs of the retry loop that are making an attempt, each an Attempts (retries/). Weakly: a
    client whose event loop was given up must be collected with its operations."""

    def attempts_in_flight(self) -> list[Any]:
        """In whatever thread or task."""
        return [made for each in list(self.in_flight.values()) if (made := each()) is not None]

    def nested(self, client: object) -> bool:
        """Whether the caller is inside of a call of the same client: the outermost wins. Or inside
        of what the library publishes of one."""
        call = calls.found()
        if call is None or call.ended:
            return call is not None and call.reporting
        return call.client is client and call.has_operations

    def begin(self, call: Call, session: object = None) -> None:
        """Enter a call of the public API.

        Raises InvalidOperation (pymongo's) for a timeout of its own inside of with_transaction.
        """
        if session is not None:
            call.transaction = transaction_of(session)
        self.enter(call)
        if self.operation_spans is not None:
            self.operation_spans.start(call, None if session is None else parent_of(session))

    def start_span(self, call: Call, transaction: TransactionSpan | None = None) -> None:
        """Start the operation span of a call that was entered."""
        if self.operation_spans is not None:
            self.operation_spans.start(call, transaction)

    def end(self, call: Call, error: BaseException | None = None) -> BaseException | None:
        """Leave it: the spans end, the duration is recorded, whatever happened.

        Answers with the error that the application is to get; see ``timeouts.of_call``.
        """
        if error is not None and is_closing(error):
            self._end_later(call)
            return error
        error = error or call.interruption
        try:
            call.reporting = call.ended = True
            if call.waits:
                self._see_waits(call, error)
            if error is not None:
                error = self._ends_with(call, error)
            seconds = time.perf_counter() - call.started
            if error is not None or self.slow_seconds is not None:
                with shielded(f"while logging the timeline of {call.operation}"):
                    decisions.show(call, error, seconds, self.slow_seconds)
            self._publish_end(call, error, seconds)
        finally:
            calls.leave(call)
            # A task that was started inside, and goes on, is treated like any other.
            call.reporting = False
        return error

    def _end_later(self, call: Call) -> None:
        """Its coroutine is closed unfinished; see ``deferred``."""
        seconds, ended_ns = call.elapsed(), time.time_ns()
        try:
            for each in call.waits or ():
                self.clients.waiting.pop(each, None)
            if call.selected is not None:
                call.server = driver.selection.address(call.selected)
            call.known_target = call.target  # while what the method was called with is there
        except internal_errors.faults:  # not even a log may be written here
            call.public = False
        calls.leave_unfinished(call)
        if self.shows_calls:
            defer(partial(self._publish_unfinished, call, seconds, ended_ns))

    def _publish_unfinished(self, call: Call, seconds: float, ended_ns: int) -> None:
        # Without the frames of the error that closed it: they hold all that the coroutine did.
        error = GeneratorExit()
        if call.span is not None:
            # What is measured leads to its trace; the context is the deferred work's own.
            context.attach(trace.set_span_in_context(call.span))
        if call.waits:
            self._see_waits(call, error)
        self._publish_end(call, error, seconds, ended_ns)

    def _publish_end(
        self,
        call: Call,
        error: BaseException | None,
        seconds: float,
        ended_ns: int | None = None,
    ) -> None:
        """``ended_ns``: since the epoch; None is now."""
        try:
            if self.operation_metrics is not None and call.public:
                self.operation_metrics.record(call, error, seconds)
        except internal_errors.faults:
            logger.exception("internal error in pymongo-resilience while recording %s", call)
        try:
            if self.operation_spans is not None:
                self.operation_spans.end(call, error, ended_ns)
            if call.ends is not None:
                call.ends.end(
                    error,
                    operation=call.operation,
                    withholds=call.withholds,
                    ended_ns=ended_ns,
                )
        except internal_errors.faults:
            logger.exception("internal error in pymongo-resilience while ending %s", call)

    @property
    def shows_calls(self) -> bool:
        return self.operation_spans is not None or self.operation_metrics is not None

    def _ends_with(self, call: Call, error: BaseException) -> BaseException | None:
        raised: BaseException | None = error
        with shielded(f"while preparing the error of {call.operation}"):
            if self.owns_retries:
                raised = timeout_errors.of_call(call, error)
            if isinstance(raised, OperationFailure) and call.selected is not None:
                # Of a bulk write, say: raised once the driver's loop is over.
                server = driver.retry_loop.address_of(call.selected)
                attempts = 1 + len(call.reasons)
                state_origin(
                    raised, server=server, attempts=attempts, reasons=call.reasons, answered=True
                )
        return raised

    def _see_waits(self, call: Call, error: BaseException | None) -> None:
        with shielded(f"while recording the waits of {call.operation}"):
            bounded_waits.over(call, error)
            for each in call.waits or ():
                # A Ctrl-C may have come before the wait itself could remove it.
                self.clients.waiting.pop(each, None)
            if self.operation_metrics is not None:
                self.operation_metrics.record_waits(call)
            if self.operation_spans is not None:
                self.operation_spans.add_waits(call)

    @property
    def admits(self) -> bool:
        """Whether attempts are counted, or may be refused, once their server is selected."""
        return self.selectors is not None or self.shedding is not None

    @property
    def counts_in_flight(self) -> bool:
        """Whether new clients' servers are chosen by load."""
        return self.selectors is not None and self.selectors.counting

    def counts_of(self, client: object) -> OperationCounts | None:
        """The attempts in progress; None where the driver chooses the client's servers."""
        return None if self.selectors is None else self.selectors.counts_of(client)

    def breakers_of(self, client: object) -> Mapping[Address, Snapshot]:
        """By server, of those that an attempt was meant for; none where there are no breakers."""
        return {} if self.breakers is None else self.breakers.of(client).snapshots()

    def enter(self, call: Call, *, whole_timeout: bool = False) -> None:
        """Make it the call in progress; a span is the caller's to start, if there is to be one.

        ``whole_timeout``: it has all of it, whatever has passed of it.
        """
        if pending:
            run_deferred()
        if calls.found() is not None:
            calls.clear_inherited()
        call.started = time.perf_counter()
        call.timeout, call.deadline = self.timeouts.of_call(call)
        if whole_timeout and self.timeouts.csot_available and call.timeout is not None:
            call.deadline = driver.csot.Timeout.from_now(call.timeout).resume()
        if call.timeout is not None:
            call.policy_seconds = time.perf_counter() - call.started
        call.token = calls.make_current(call)
