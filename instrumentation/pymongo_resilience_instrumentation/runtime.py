"""What one ``instrument()`` sets up: executors, spans and metrics, and how an operation passes
them."""

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
from pymongo_resilience.config import PYMONGO_DECIDES, BreakerMode, BudgetKind, Config
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
from pymongo_resilience_instrumentation.failures.error_texts import Origin, state_origin
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
    from pymongo_resilience_instrumentation.driver.protocols import Client
    from pymongo_resilience_instrumentation.retries.retry_loop import RetryLoop
    from pymongo_resilience_instrumentation.telemetry.observers import Observer

FURTHER = "a sampler or span processor raised; further errors are not logged"
UNUSED_STRATEGY = NAMED["fast_fail"]
"""For ``"driver"``: the driver's own loop decides, and no strategy is ever asked."""


UNUSED_BY_PYMONGO = ("idempotent", "strategy", "attempt_timeout_ms", "hedge", "resumable")
"""Fields of a policy that change how this library retries."""
UNUSED = (
    "strategy=driver: pymongo retries by itself, {} of override() or bind() has no effect; "
    "further cases are not logged"
)


class Runtime:
    """Thread- and task-safe: what changes is on the operation."""

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
        drivers = config.strategy == PYMONGO_DECIDES and settings.strategy is None
        self.owns_retries = state is State.ALL and not drivers
        """Whether retries are decided here, not in the driver's own loop."""
        self.enabled_flag = EnabledFlag()
        self._warned: set[str] = set()
        self._faulty: set[Observer] = set()
        """The observers whose first error at the begin of an operation was logged."""
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
        """Whether attempts may be refused, once their server is selected."""
        self.senders: dict[str, list[Sender]] = {}
        """By the method of the public API, or ``_run_operation``: what features put around it."""
        self._publishes_commands = False
        """Whether pymongo publishes the events of commands to our listeners."""
        self._names_slow_servers = not self.owns_retries and config.slow_ms is not None
        """Where pymongo's own loop decides, only a command's event shows which server a slow
        operation went to."""
        self.in_flight: dict[int, ref[RetryLoop]] = {}
        """The runs of the retry loop that are making an attempt, each a RetryLoop (retries/).
        Weakly: a client whose event loop was given up must be collected with its operations."""

    def warn_once(self, text: str) -> None:
        """A log handler may use MongoDB, and have this called again."""
        if text not in self._warned:
            self._warned.add(text)
            logger.warning(text)

    def look_for_sdk(self, now: float) -> None:
        """See ``Telemetry``. Once somebody reads the events of commands, clients publish them."""
        self.telemetry.look_for_sdk(now)
        if not self._publishes_commands and self._reads_commands():
            self._publishes_commands = True
            for client in self.clients.living():
                driver.clients.publish_commands(client)

    def _reads_commands(self) -> bool:
        telemetry = self.telemetry
        measures = telemetry.records and not self.owns_retries
        return telemetry.records_spans or measures or self._names_slow_servers

    def publish_commands(self, client: AnyClient) -> None:
        """Have a client, new or of an earlier runtime, publish events of commands if they are read.

        Called after the client is among ``clients``: if an SDK is found by another thread just
        then, either that thread or this one has the client publish them.
        """
        now = time.perf_counter()
        if now >= self.telemetry.looks_at:
            self.look_for_sdk(now)
        if self._publishes_commands:
            driver.clients.publish_commands(client)

    def attempts_in_flight(self) -> list[RetryLoop]:
        """In whatever thread or task."""
        return [made for each in list(self.in_flight.values()) if (made := each()) is not None]

    def nested(self, client: Client) -> bool:
        """Whether the caller is inside of an operation of the same client: the outermost wins. Or
        inside of what the library publishes of one."""
        operation = in_progress.current_or_ended()
        if operation is None or operation.ended:
            return operation is not None and operation.in_foreign_call
        return operation.client is client and operation.has_operations

    def begin(
        self,
        operation: Operation,
        *,
        span: bool = True,
        whole_timeout: bool = False,
        at_least: float | None = None,
    ) -> None:
        """Make it the operation in progress, with a deadline, and shown.

        ``whole_timeout``: it has all of it, whatever has passed of it; ``at_least``: it has what is
        left of it, or so many seconds if that is less. Raises InvalidOperation
        (pymongo's) for a timeout of its own inside of with_transaction.
        """
        if operation.call.is_cleanup:
            # pymongo also sends these while a coroutine is closed, perhaps by the collector.
            keep_variables()
        elif pending:
            run_deferred()
        if in_progress.current_or_ended() is not None:
            in_progress.clear_inherited()
        call, limits = operation.call, operation.limits
        is_bare = call.block_policy is EMPTY_POLICY is call.bound_policy
        has_policy = self.rules.any or not is_bare
        operation.has_policy = has_policy
        self.timeouts.set_timeout(call, limits)
        if has_policy and not self.owns_retries:
            self._warn_of_unused(call)
        if whole_timeout:
            precedence.refresh(limits)
        elif at_least is not None:
            precedence.leave_at_least(limits, at_least)
        operation.token = CURRENT.set(operation)
        telemetry = self.telemetry
        if operation.started >= telemetry.looks_at:
            self.look_for_sdk(operation.started)
        if span and telemetry.records:
            for recorder in telemetry.recorders:
                try:
                    recorder.begins(operation)
                except (
                    internal_error_types()
                ) as internal_error:  # a sampler's, too: see ``foreign``
                    self._log_once(recorder, internal_error)

    def _log_once(self, recorder: Observer, internal_error: Exception) -> None:
        """Log the first error of an observer at the begin of an operation, which is in progress."""
        if recorder not in self._faulty:
            self._faulty.add(recorder)
            logger.error("operations have no span or record: %s", FURTHER, exc_info=internal_error)

    def _warn_of_unused(self, call: Call) -> None:
        """Log what a block or a binding asks for that pymongo's own loop does not do."""
        policy = call.block_policy.over(call.bound_policy)
        unused = [name for name in UNUSED_BY_PYMONGO if getattr(policy, name)]
        if unused:
            self.warn_once(UNUSED.format(", ".join(unused)))

    def end(
        self, operation: Operation, result: Any = None, error: BaseException | None = None
    ) -> Any:
        """Leave it: the spans end, the duration is recorded, whatever happened.

        Returns the result, or the error that the application gets, see ``timeout_errors``.
        Raises what a signal handler has raised in a listener: the driver keeps that to itself.
        """
        if error is not None and operation.is_closed_by(error):
            self._end_later(operation)
            return error
        raises = error is None
        if error is None or isinstance(error, Exception):
            error = operation.interruption or error
        try:
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
            raise error
        return error

    def _end_later(self, operation: Operation) -> None:
        """Its coroutine is closed unfinished; see ``deferred``."""
        if (state := self.clients.known(operation.client)) is not None:
            state.coroutine_closed = True
        with suppress(*internal_error_types()):  # not even a log may be written here
            operation.note_server(operation.address)
        operation.leave_unfinished()
        if self.telemetry.shows_healthy:
            defer(partial(self._publish_unfinished, operation))

    def _publish_unfinished(self, operation: Operation) -> None:
        # Without the frames of the error that closed it: they hold all that the coroutine did.
        error = GeneratorExit()
        bounded_waits.end_waits(operation, error)
        self.telemetry.end(operation, error)

    def _ends_with(self, operation: Operation, error: BaseException) -> BaseException | None:
        raised: BaseException | None = error
        if self.owns_retries:
            raised = timeout_errors.as_timeout(operation, error)
        if isinstance(raised, OperationFailure) and operation.selected is not None:
            # A bulk write's error, for example, is raised once pymongo's loop is over.
            past, server = operation.outcome, operation.server_text()
            attempts, reasons = past.number_of_attempts, past.retry_reasons
            state_origin(raised, Origin(server, Stage.ANSWERED, attempts, reasons))
        return raised

    def breakers_of(self, client: Client) -> Mapping[Address, Snapshot]:
        """By server, of those that an attempt was meant for; none where there are no breakers."""
        breakers = self.limits.of(client).breakers
        return {} if breakers is None else breakers.snapshots()


def _rules(config: Config, strategy: RetryStrategy | None) -> NamespaceRules:
    decides = NAMED.get(config.strategy) if strategy is None else strategy
    if decides is not None:
        return NamespaceRules(decides, config.policies)
    for chosen, what in (
        (config.policies, "the policies have"),
        (config.retry_budget == BudgetKind.TOKENS, "adaptive retries have"),
        (config.circuit_breaker != BreakerMode.OFF, "circuit breakers have"),
        (config.attempt_timeout_ms, "attempt_timeout_ms has"),
    ):
        if chosen:
            logger.warning("strategy=driver: pymongo retries by itself, %s no effect", what)
    return NamespaceRules(UNUSED_STRATEGY, {})
