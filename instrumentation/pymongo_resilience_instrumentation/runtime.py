"""What one ``instrument()`` sets up, and how an operation begins and ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from pymongo.errors import OperationFailure

from pymongo_resilience.breakers import Snapshot
from pymongo_resilience.closing import keep_variables
from pymongo_resilience.config import PYMONGO_DECIDES, BreakerMode, BudgetKind, Config, QueryText
from pymongo_resilience.enabled_flag import EnabledFlag
from pymongo_resilience.executor import AsyncExecutor, Executor
from pymongo_resilience.internal_errors import internal_error_types, logger
from pymongo_resilience.policies.namespaces import NamespaceRules
from pymongo_resilience.policies.policy import EMPTY_POLICY
from pymongo_resilience.rules.failure import Stage
from pymongo_resilience.rules.retry_rules import RetryRules
from pymongo_resilience.rules.strategy import NAMED, RetryStrategy
from pymongo_resilience_instrumentation.addresses import Address
from pymongo_resilience_instrumentation.clients.client_registry import (
    ByClient,
    ClientClock,
    Clients,
)
from pymongo_resilience_instrumentation.deferred import defer, pending, run_deferred
from pymongo_resilience_instrumentation.failures.error_texts import (
    MAY_BE_ITS_OWN,
    Origin,
    has_duplicate,
    state_origin,
)
from pymongo_resilience_instrumentation.interceptor import Sender
from pymongo_resilience_instrumentation.operation import CURRENT, Operation
from pymongo_resilience_instrumentation.selection.client_limits import ClientLimits
from pymongo_resilience_instrumentation.self_check import State
from pymongo_resilience_instrumentation.settings import Settings
from pymongo_resilience_instrumentation.telemetry.setup import Telemetry, end_spans
from pymongo_resilience_instrumentation.timeouts import bounded_waits, precedence, timeout_errors
from pymongo_resilience_instrumentation.timeouts.precedence import TimeoutRules

from . import driver, in_progress

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.call import AnyClient, Call
    from pymongo_resilience_instrumentation.driver.attempts import DriverAttempts
    from pymongo_resilience_instrumentation.driver.protocols import Client

FURTHER = "a sampler or span processor raised an error; further errors are not logged"
UNUSED_STRATEGY = NAMED["fast_fail"]
"""For ``strategy=driver``: pymongo's own loop decides, and no strategy is ever called."""


UNUSED_BY_PYMONGO = ("idempotent", "strategy", "attempt_timeout_ms", "hedge", "resumable")
"""Fields of a policy that only affect this library's retries."""
UNUSED = (
    "{} of override() or bind() has no effect with strategy=driver, because pymongo retries by "
    "itself. Choose another strategy, or remove the option. Further cases are not logged"
)


class Runtime:
    """The state of one ``instrument()``.

    Thread- and task-safe, because all changing state is on the operation.
    """

    hedges: Any = None
    """The registry of each client's hedged reads (hedged_reads/), if that feature is present."""
    before_batch: Callable[[Operation, Any, Any], None] | None = None
    """Called with the operation, the query, and the method that sends it, before each batch of a
    cursor. Set by a feature.
    """

    def __init__(self, settings: Settings, earlier: Runtime | None, state: State) -> None:
        """``earlier`` is the runtime that this one replaces; it passes on the state of existing
        clients.
        """
        self.settings = settings
        self.config = config = settings.config
        self.state = state
        drivers = config.strategy == PYMONGO_DECIDES and settings.strategy is None
        self.owns_retries = state is State.ALL and not drivers
        """True if the library decides about retries, not pymongo's own loop."""
        self.enabled_flag = EnabledFlag()
        self._warned: set[str] = set()
        self._has_logged_span_error = False
        self.telemetry = telemetry = Telemetry(settings)
        self.clients: Clients = Clients() if earlier is None else earlier.clients
        clock = ClientClock(self.clients)
        retry_rules = RetryRules(
            max_retries=config.max_retries,
            base_backoff=config.base_backoff_ms / 1000,
            max_backoff=config.max_backoff_ms / 1000,
        )
        self.executor: Executor = Executor(retry_rules, clock, telemetry)
        self.async_executor: AsyncExecutor = AsyncExecutor(retry_rules, clock, telemetry)
        self.rules: NamespaceRules = _rules(config, settings.strategy)
        self.timeouts = TimeoutRules(
            self.rules, config, csot_available=state is State.ALL, observes=not self.owns_retries
        )
        limited = config if self.owns_retries else None
        self.limits = ByClient(partial(ClientLimits, limited, clock, telemetry))
        self.admits = self.owns_retries and config.circuit_breaker != BreakerMode.OFF
        """True if attempts may be refused after their server was selected."""
        self.senders: dict[str, list[Sender]] = {}
        """The senders of features, by the method of the public API that they wrap, or by
        ``_run_operation``.
        """
        self.describes_slow_commands = config.slow_ms is not None and (
            config.query_text == QueryText.SANITIZED or not self.owns_retries
        )
        """True if the log of slow operations needs the events of commands: for the shape of the
        command, and with ``strategy=driver`` for its server.
        """
        self._publishes_commands = self.describes_slow_commands
        """Whether pymongo publishes the events of commands to our listeners."""
        self.in_flight: dict[int, ref[DriverAttempts]] = {}
        """The runs of pymongo's loop that are making an attempt. Weak references, because a client
        of an abandoned event loop must be collectable with its operations.
        """

    def warn_once(self, text: str) -> None:
        """Log a warning once."""
        if text not in self._warned:
            # Add it first: a log handler may use MongoDB and so cause another call.
            self._warned.add(text)
            logger.warning(text)

    def look_for_sdk(self, now: float) -> None:
        """Do what ``Telemetry.look_for_sdk`` does. If it finds an SDK that reads the events of
        commands, let all clients publish them.
        """
        self.telemetry.look_for_sdk(now)
        if not self._publishes_commands and self._reads_commands():
            self._publishes_commands = True
            for client in self.clients.living():
                driver.clients.publish_commands(client)

    def _reads_commands(self) -> bool:
        telemetry = self.telemetry
        measures = telemetry.records and not self.owns_retries
        return telemetry.spans is not None or measures

    def publish_commands(self, client: AnyClient) -> None:
        """Let a client publish the events of its commands, if anything reads them.

        Call it after the client was added to ``clients``. If another thread finds an SDK at the
        same time, at least one of the two threads then turns the events on.
        """
        now = time.perf_counter()
        if now >= self.telemetry.looks_at:
            self.look_for_sdk(now)
        if self._publishes_commands:
            driver.clients.publish_commands(client)

    def attempts_in_flight(self) -> list[DriverAttempts]:
        """Return the runs that are making an attempt, in any thread or task."""
        living = [reference() for reference in list(self.in_flight.values())]
        return [attempts for attempts in living if attempts is not None]

    def nested(self, client: Client) -> bool:
        """Return True if the caller is inside of an operation of the same client, or of foreign
        code.

        pymongo's public methods call each other (``find_one`` calls ``find``), and only the
        outermost one is an operation.
        """
        operation = in_progress.current_or_ended()
        if operation is None or operation.ended:
            return operation is not None and operation.in_foreign_call
        # An operation on another client is not nested, even if it runs inside of this one.
        return operation.client is client and operation.has_operations

    def begin(
        self,
        operation: Operation,
        *,
        span: bool = True,
        whole_timeout: bool = False,
        at_least: float | None = None,
    ) -> None:
        """Make ``operation`` the current one, with its deadline and its span.

        Args:
            operation: The operation.
            span: Whether it may get a span.
            whole_timeout: Give it its whole timeout, even if part of it has passed.
            at_least: Give it the rest of its timeout, but at least this many seconds.

        Raises:
            InvalidOperation: If it has its own timeout inside of with_transaction. pymongo's class.
        """
        if operation.call.is_cleanup:
            # pymongo also sends these while a coroutine is being closed, possibly by the garbage
            # collector.
            keep_variables()
        elif pending:
            run_deferred()
        if in_progress.current_or_ended() is not None:
            in_progress.clear_inherited()
        call, limits = operation.call, operation.limits
        is_bare = call.block_policy is EMPTY_POLICY is call.bound_policy
        has_policy = self.rules.any or not is_bare
        operation.has_policy = has_policy
        # Before the operation becomes the current one, because the rules check the operation around
        # it.
        self.timeouts.set_timeout(call, limits)
        if has_policy and not self.owns_retries:
            self._warn_of_unused(call)
        if whole_timeout:
            precedence.refresh(limits)
        elif at_least is not None:
            precedence.leave_at_least(limits, at_least)
        # Inlined instead of ``operation.activate()``, because this runs for every operation.
        operation.token = CURRENT.set(operation)
        if operation.started >= self.telemetry.looks_at:
            self.look_for_sdk(operation.started)
        if span and (spans := self.telemetry.spans) is not None:
            try:
                spans.begins(operation)
            except internal_error_types() as error:
                self._log_span_error(error)

    def begin_common(self, call: Call) -> Operation:
        """Begin an operation without a session, a policy, or an operation around it.

        Does the same as ``begin`` in fewer steps, because most operations begin here.
        """
        if pending:
            run_deferred()
        operation = Operation(call)
        operation.has_policy = False
        self.timeouts.set_common_timeout(call, operation.limits)
        operation.token = CURRENT.set(operation)
        if operation.started >= self.telemetry.looks_at:
            self.look_for_sdk(operation.started)
        if (spans := self.telemetry.spans) is not None:
            try:
                spans.begins(operation)
            except internal_error_types() as error:
                self._log_span_error(error)
        return operation

    def _log_span_error(self, error: Exception) -> None:
        """Log the first error that prevented an operation's span from beginning.

        It may be the error of a sampler: see ``ForeignError``.
        """
        if not self._has_logged_span_error:
            self._has_logged_span_error = True
            text = "an operation is missing from the spans or metrics: %s"
            logger.error(text, FURTHER, exc_info=error)

    def _warn_of_unused(self, call: Call) -> None:
        """Log which fields of a block or binding have no effect with pymongo's own loop."""
        policy = call.block_policy.over(call.bound_policy)
        unused = [name for name in UNUSED_BY_PYMONGO if getattr(policy, name)]
        if unused:
            self.warn_once(UNUSED.format(", ".join(unused)))

    def end(
        self, operation: Operation, result: Any = None, error: BaseException | None = None
    ) -> Any:
        """End ``operation``: its spans end and its duration is recorded, even if something raises.

        Returns:
            The result, or the error that the application gets (see ``timeout_errors``).

        Raises:
            Exception: One that a signal handler raised while a listener ran, which pymongo would
                drop.
        """
        if error is not None and operation.is_closed_by(error):
            self._end_later(operation)
            return error
        raises = error is None
        if error is None or isinstance(error, Exception):
            # pymongo has dropped the exception of a signal handler. It takes precedence.
            error = operation.interruption or error
        try:
            # From here on, only telemetry runs. Commands that a listener or an exporter sends are
            # not part of the operation, and are left to pymongo.
            operation.in_foreign_call = operation.ended = True
            if operation.limits.waits:
                bounded_waits.end_waits(operation, error)
            if error is not None:
                error = self._ends_with(operation, error)
            operation.seconds = time.perf_counter() - operation.started
            if error is not None or self.telemetry.shows_healthy:
                self.telemetry.end(operation, error)
        except internal_error_types():
            end_spans(operation)
            raise
        finally:
            operation.leave()
        if error is None:
            return result
        if raises:
            # pymongo has raised nothing, so the caller of this method has no error to raise.
            raise error
        return error

    def _end_later(self, operation: Operation) -> None:
        """End an operation whose coroutine is being closed. Telemetry is deferred: see
        ``deferred``.
        """
        if (state := self.clients.known(operation.client)) is not None:
            state.coroutine_closed = True
        # Nothing may be logged here, because the thread may hold any lock.
        with suppress(*internal_error_types()):
            # Remember the server's address now, because the attempts are dropped below.
            operation.note_server(operation.address)
        operation.leave_unfinished()
        if self.telemetry.shows_healthy:
            defer(partial(self._publish_unfinished, operation))

    def _publish_unfinished(self, operation: Operation) -> None:
        # Use a new error: the frames of the original one keep everything alive that the coroutine
        # used.
        error = GeneratorExit()
        bounded_waits.end_waits(operation, error)
        self.telemetry.end(operation, error)

    def _ends_with(self, operation: Operation, error: BaseException) -> BaseException | None:
        raised: BaseException | None = error
        if self.owns_retries:
            raised = timeout_errors.as_timeout(operation, error)
        if isinstance(raised, OperationFailure) and operation.selected is not None:
            # pymongo raises the error of a bulk write, for example, after its loop has ended.
            past, server = operation.outcome, operation.server_text()
            number, reasons, attempts = (
                past.number_of_attempts,
                past.retry_reasons,
                operation.attempts,
            )
            is_uncertain = attempts is not None and attempts.may_be_applied
            why = MAY_BE_ITS_OWN if is_uncertain and has_duplicate(raised) else ""
            state_origin(raised, Origin(server, Stage.ANSWERED, number, reasons), why=why)
        return raised

    def breakers_of(self, client: Client) -> Mapping[Address, Snapshot]:
        """Return the circuit breakers of a client by server; empty if there are none."""
        breakers = self.limits.of(client).breakers
        return {} if breakers is None else breakers.snapshots()


def _rules(config: Config, strategy: RetryStrategy | None) -> NamespaceRules:
    decides = NAMED.get(config.strategy) if strategy is None else strategy
    if decides is not None:
        return NamespaceRules(decides, config.policies)
    for chosen, what in (
        (config.policies, "policies have"),
        (config.retry_budget == BudgetKind.TOKENS, "retry_budget=tokens has"),
        (config.circuit_breaker != BreakerMode.OFF, "circuit_breaker has"),
        (config.attempt_timeout_ms, "attempt_timeout_ms has"),
    ):
        if chosen:
            logger.warning(
                "%s no effect with strategy=driver, because pymongo retries by itself. Choose "
                "another strategy, or remove the option",
                what,
            )
    return NamespaceRules(UNUSED_STRATEGY, {})
