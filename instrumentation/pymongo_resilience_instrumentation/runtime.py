"""What one ``instrument()`` set up: executors, spans and metrics, and how a call passes them."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from opentelemetry import context, trace
from pymongo.errors import OperationFailure

from pymongo_resilience import blocks
from pymongo_resilience.events import BreakerEvent, Broadcast, RetryScheduled
from pymongo_resilience.faults import logger
from pymongo_resilience.option_types import CURSOR_LIFETIME
from pymongo_resilience.policy import shorter
from pymongo_resilience.unfinished import closes_a_coroutine
from pymongo_resilience_instrumentation.calls import NO_DEADLINE, Call
from pymongo_resilience_instrumentation.clients.by_client import keep
from pymongo_resilience_instrumentation.deferred import defer, pending, run_deferred
from pymongo_resilience_instrumentation.failures.origins import state_origin
from pymongo_resilience_instrumentation.retries.attempts import Attempts
from pymongo_resilience_instrumentation.timeouts import errors as timeouts, wait_times
from pymongo_resilience_instrumentation.transactions.sessions import transaction_of
from pymongo_resilience_instrumentation.transactions.transaction_spans import parent_of

from . import calls, driver

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from pymongo_resilience.breaker import Snapshot
    from pymongo_resilience.config import Config
    from pymongo_resilience.enabled_flag import EnabledFlag
    from pymongo_resilience.events import Event
    from pymongo_resilience.executor import AsyncExecutor, Executor
    from pymongo_resilience.namespaces import NamespaceRules
    from pymongo_resilience.policy import Policy
    from pymongo_resilience_instrumentation.addresses import Address
    from pymongo_resilience_instrumentation.clients.budgets import Budgets
    from pymongo_resilience_instrumentation.clients.closings import Closings
    from pymongo_resilience_instrumentation.clients.coroutine_strategies import CoroutineStrategies
    from pymongo_resilience_instrumentation.clients.registry import Clients
    from pymongo_resilience_instrumentation.operations.public import Target
    from pymongo_resilience_instrumentation.selection.breakers import BreakerRegistry
    from pymongo_resilience_instrumentation.selection.load_shedding import SheddingRegistry
    from pymongo_resilience_instrumentation.selection.operation_counts import (
        AttemptCount,
        OperationCounts,
    )
    from pymongo_resilience_instrumentation.selection.selector import Selectors
    from pymongo_resilience_instrumentation.single_documents.collection_kinds import Collections
    from pymongo_resilience_instrumentation.telemetry.command_spans import CommandSpans
    from pymongo_resilience_instrumentation.telemetry.driver_metrics import DriverMetrics
    from pymongo_resilience_instrumentation.telemetry.metrics import OperationMetrics
    from pymongo_resilience_instrumentation.telemetry.operation_spans import OperationSpans
    from pymongo_resilience_instrumentation.telemetry.other_tracers import OtherTracers
    from pymongo_resilience_instrumentation.timeouts.deprecated_options import DeprecatedOptions
    from pymongo_resilience_instrumentation.transactions.transaction_spans import (
        TransactionSpan,
        TransactionSpans,
    )


class CallLog:
    """Listener: gathers the decisions on the call in progress."""

    def on_event(self, event: Event, /) -> None:
        call = calls.current()
        if call is None or isinstance(event, BreakerEvent):
            return
        if isinstance(event, RetryScheduled):
            call.reasons = (*call.reasons, event.reason)
            call.backoff += event.delay
        else:
            call.declined_by = event.rule


class Reported(Broadcast):
    """Tells the logs and the application's listeners, and nobody of what they send meanwhile."""

    def on_event(self, event: Event, /) -> None:
        calls.reported(super().on_event, event)


class Unreported:
    """Counts what others send while they are told something; logs the first. Thread-safe."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.count = 0
        """How many runs of the driver's loop there were."""

    def note(self) -> None:
        self.count = next(self._numbers)
        if self.count == 1:
            logger.warning(
                "a listener, hook, log handler or exporter uses MongoDB while it handles telemetry "
                "of an operation: what it sends is left to pymongo, neither repeated nor recorded; "
                "further cases are not logged"
            )


@dataclass(slots=True, eq=False, repr=False)
class Runtime:
    """Nothing of it changes, so it is thread- and task-safe; what does is on the call."""

    config: Config
    rules: NamespaceRules
    coroutines: CoroutineStrategies
    deprecated: DeprecatedOptions
    executor: Executor
    async_executor: AsyncExecutor
    clients: Clients
    budgets: Budgets
    breakers: BreakerRegistry | None
    """None while they are off."""
    shedding: SheddingRegistry | None
    """None while it is off."""
    selectors: Selectors | None
    """None where pymongo alone chooses its servers."""
    client_timeouts: dict[int, float | None]
    """The timeoutMS of registered clients, in seconds, by identity."""
    enabled_flag: EnabledFlag
    operation_spans: OperationSpans | None
    command_spans: CommandSpans | None
    transaction_spans: TransactionSpans | None
    tracers: OtherTracers
    operation_metrics: OperationMetrics | None
    driver_metrics: DriverMetrics | None
    csot_available: bool
    """Whether the driver's timeout in force can be read (CSOT); without it we set none."""
    light: bool
    """No check before an attempt: no breakers, no counts in flight and no load shedding."""
    no_configured_timeout: bool
    """No configured timeout; a block or a binding may still set one."""
    closings: Closings
    unreported: Unreported
    owns_retries: bool
    """Whether retries are decided here, not in the driver's own loop."""
    collections: dict[int, Collections] = field(default_factory=dict)
    """What is known of them, by the identity of their client."""

    def nested(self, client: Any) -> bool:
        """Whether the caller is inside of a call of the same client: the outermost wins. Or inside
        of what the library tells of one."""
        call = calls.found()
        if call is None or call.ended:
            return call is not None and call.reporting
        return call.client is client and call.has_operations

    def begin(self, call: Call, session: Any = None) -> None:
        """Enter a call of the public API.

        Raises InvalidOperation (pymongo's) for a timeout of its own inside of with_transaction.
        """
        if id(call.client) not in self.client_timeouts:
            keep(self.client_timeouts, call.client, call.client.options.timeout)
        if session is not None:
            call.transaction = transaction_of(session)
        self.enter(call)
        if self.operation_spans is not None:
            self.start_span(call, None if session is None else parent_of(session))

    def start_span(self, call: Call, transaction: TransactionSpan | None = None) -> None:
        """Start the operation span of a call that was entered."""
        if self.operation_spans is not None:
            calls.publish(
                call,
                self.operation_spans.start,
                call,
                None if transaction is None else transaction.span,
            )

    def end(self, call: Call, error: BaseException | None = None) -> BaseException | None:
        """Leave it: the spans end, the duration is recorded, whatever happened.

        Answers with the error that the application is to get; see ``timeouts.of_call``.
        """
        if error is not None and closes_a_coroutine(error):
            self._end_later(call)
            return error
        try:
            call.reporting = call.ended = True
            if call.struck is not None:
                error, call.struck = call.struck, None
            if call.waits:
                self._see_waits(call, error)
            if error is not None:
                error = self._ends_with(call, error)
            self._publish_end(call, error, call.elapsed())
        finally:
            # A Ctrl-C may come while somebody is told.
            calls.leave(call)
            # A task that was started inside, and goes on, is judged like any other.
            call.reporting = False
        return error

    def _end_later(self, call: Call) -> None:
        """Of a coroutine that is closed unfinished; see ``deferred``."""
        seconds, ended_ns = call.elapsed(), time.time_ns()
        try:
            for each in call.waits or ():
                self.clients.waiting.pop(each, None)
            if call.selected is not None:
                call.server = driver.selection.address(call.selected)
            call.note_target()
        except Exception:  # noqa: BLE001 - not even a log may be written here
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
        except Exception:
            logger.exception(
                "internal error in pymongo-resilience while recording %s", call.operation
            )
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
        except Exception:
            logger.exception("internal error in pymongo-resilience while ending %s", call.operation)

    @property
    def shows_calls(self) -> bool:
        return self.operation_spans is not None or self.operation_metrics is not None

    @property
    def end_well(self) -> Callable[[Call], Any]:
        """As ``end``, of a call without an error."""
        return self.end if self.shows_calls else calls.leave

    def _ends_with(self, call: Call, error: BaseException) -> BaseException | None:
        judged: BaseException | None = error
        try:
            if self.owns_retries:
                judged = timeouts.of_call(call, error)
            if isinstance(judged, OperationFailure) and call.selected is not None:
                # Of a bulk write, say: raised once the driver's loop is over.
                server = driver.retry_loop.address_of(call.selected)
                attempts = 1 + len(call.reasons)
                state_origin(judged, server=server, attempts=attempts, reasons=call.reasons)
        except Exception:
            logger.exception(
                "internal error in pymongo-resilience with the error of %s", call.operation
            )
        return judged

    def _see_waits(self, call: Call, error: BaseException | None) -> None:
        """Of a call that had to wait, or of a commit that had to."""
        try:
            wait_times.over(call, error)
            for each in call.waits or ():
                # A Ctrl-C may have come before the wait itself could see to that.
                self.clients.waiting.pop(each, None)
            if self.operation_metrics is not None:
                self.operation_metrics.record_waits(call)
            if self.operation_spans is not None:
                self.operation_spans.add_waits(call)
        except Exception:
            logger.exception(
                "internal error in pymongo-resilience with the waits of %s", call.operation
            )

    def enter_loop(self, loop: Any) -> Attempts:
        """One run of the driver's loop, inside of the call it belongs to.

        Where it was entered without a wrapper of ours around it (a commit, a method bound before
        ``instrument()``), it gets a call of its own that keeps its deadline and ends its spans.
        """
        client = driver.retry_loop.client(loop)
        call = calls.current()
        owns_call = call is None or call.client is not client
        if call is None or owns_call:
            call = self._loop_call(loop, client)
        work = Attempts(loop, call, owns_call, self)
        try:
            work.begin()
            if self.budgets.incomplete:
                work.budget = self.budgets.of(client)
            if self.breakers is not None:
                work.breakers = self.breakers.of(client)
            if self.shedding is not None:
                work.shedders = self.shedding.of(client)
            if self.selectors is not None:
                work.count = self._count_of_attempt(client)
            return work  # noqa: TRY300 - an exception of a signal handler may strike here, too
        except BaseException as error:
            work.release(error)
            raise

    def after_failure(self, loop: Any, reached_connection: bool) -> Attempts:
        """Of a loop whose first attempt failed, and that ran as it is until then."""
        call = calls.current()
        if call is None:
            raise RuntimeError("the call is over, and its loop is not")
        # What its listeners and hooks do from now on is prepared, or it would avoid what this does.
        call.light = False
        work = Attempts(loop, call, owns_call=False, runtime=self)
        work.reached_connection = reached_connection
        work.begin()
        return work

    @property
    def counts_in_flight(self) -> bool:
        """Whether new clients' servers are chosen by load."""
        return self.selectors is not None and self.selectors.counting

    def counts_of(self, client: Any) -> OperationCounts | None:
        """The attempts in progress; None where the driver chooses the client's servers."""
        return None if self.selectors is None else self.selectors.counts_of(client)

    def breakers_of(self, client: Any) -> Mapping[Address, Snapshot]:
        """By server, of those that an attempt was meant for; none where there are no breakers."""
        return {} if self.breakers is None else self.breakers.of(client).snapshots()

    def _count_of_attempt(self, client: Any) -> AttemptCount | None:
        counts = self.counts_of(client)
        return None if counts is None else counts.of_attempt()

    def leave_loop(self, work: Attempts, error: BaseException | None) -> BaseException | None:
        """As ``end``, for the call that the loop got for itself."""
        work.release(error)
        return self.end(work.call, error) if work.owns_call else error

    def _loop_call(self, loop: Any, client: Any) -> Call:
        database, collection = driver.retry_loop.namespace(loop)
        name = driver.retry_loop.operation_name(loop)
        call = Call(client, name, (database, collection))
        call.public, call.unknown_concern = False, True
        call.transaction = transaction_of(driver.retry_loop.session(loop))
        self.enter(call)
        return call

    def timeout_of(self, client: Any, target: Target, bound: Policy) -> tuple[float | None, bool]:
        """Seconds that what is no call itself has for its calls together; None is no deadline.

        And whether they are by iteration: the library's configuration gives them, and does not ask
        for a life.
        """
        if calls.reporting():
            return None, False
        self.clear_inherited()
        call = Call(client, "", target)
        call.public = False
        call.bound = bound
        seconds = self.deadline(call)[0] if self.csot_available else None
        said = self.rules.policy_of(call.database, call.collection).timeout_mode
        life = (said or self.config.timeout_mode) == CURSOR_LIFETIME
        return seconds, call.configured and not life

    def enter(self, call: Call, *, anew: bool = False) -> None:
        """Make it the call in progress; a span is the caller's to start, if there is to be one.

        ``anew``: it has the whole timeout, whatever has passed of it.
        """
        if pending:
            run_deferred()
        if calls.found() is not None:
            self.clear_inherited()
        call.started = time.perf_counter()
        call.timeout, call.deadline = self.deadline(call)
        if anew and self.csot_available and call.timeout is not None:
            call.deadline = driver.deadline.RunningTimeout.anew(call.timeout).resume()
        call.light = self.light and call.public and call.timeout is None and not call.only_reads
        calls.enter(call)

    def deadline(self, call: Call) -> tuple[float | None, AbstractContextManager[None]]:
        """The seconds a call has, and what puts them in force where that is ours to do.

        ``override`` and ``pymongo.timeout`` around the call win, the shorter of the two; then what
        its object is bound to, a rule for its namespace, the client's own timeoutMS, the configured
        default. Inside of with_transaction, what remains of that is all there is.
        """
        if call.transaction is not None:
            if call.public:
                call.transaction.refuse_others()
            return call.transaction.timeout.seconds, call.transaction.timeout.resume()
        own: float | None = call.client.options.timeout
        if not self.csot_available:
            return own, NO_DEADLINE
        in_force, said = driver.deadline.timeout_in_force(), blocks.current().timeout_ms
        hidden = None if in_force else driver.deadline.hidden_timeout()
        if hidden is not None and not said:
            return hidden.seconds, hidden.resume()
        if in_force is not None:
            if not said:
                return in_force, NO_DEADLINE
            if shorter(in_force, said / 1000) == in_force:
                return in_force, NO_DEADLINE
            # pymongo keeps the earlier of both ends.
            return said / 1000, driver.deadline.Timeout(said / 1000)
        seconds, call.configured = self.timeout_without_blocks(call)
        # Also where it is the client's own: pymongo's loop over several batches has none.
        return seconds, NO_DEADLINE if seconds is None else driver.deadline.Timeout(seconds)

    def timeout_without_blocks(self, call: Call) -> tuple[float | None, bool]:
        """The seconds that ``deadline`` would give, were there no ``pymongo.timeout`` around it.

        And whether the library's configuration gives them, a rule or the default, and not the
        application.
        """
        said = blocks.current().timeout_ms
        if said is None:
            said = call.bound.timeout_ms
        if said is not None:
            return said / 1000, False
        said = self.rules.timeout_of(call.database, call.collection)
        if said is not None:
            return said / 1000, True
        own: float | None = call.client.options.timeout
        default = self.config.timeout_ms
        if own is not None or default is None:
            return own, False
        return default / 1000, True

    def clear_inherited(self) -> None:
        """Detach a task or forked child that was started inside of a call from the call's span and
        deadline, which end with the call."""
        call = calls.inherited()
        if call is None:
            return
        if call.outer_context is not None:
            context.attach(call.outer_context)
        ours = self.csot_available and call.deadline is not NO_DEADLINE
        if ours and driver.deadline.timeout_in_force() == call.timeout:
            driver.deadline.forget_timeout()
        calls.forget()
