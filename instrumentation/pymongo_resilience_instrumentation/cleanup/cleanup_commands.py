"""A killCursors or endSessions is repeated for an overloaded server, and nothing else.

Source: Client Backpressure, "Driver mechanisms subject to the retry policy".
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pymongo.errors import PyMongoError, ServerSelectionTimeoutError

from pymongo_resilience.clock import SHORTEST, Deadline
from pymongo_resilience.internal_errors import is_closing
from pymongo_resilience.rules.retried_operation import Kind, Operation
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.addresses import address_text
from pymongo_resilience_instrumentation.calls import NO_DEADLINE, Call
from pymongo_resilience_instrumentation.failures import classify
from pymongo_resilience_instrumentation.interception.interceptor import Interceptor
from pymongo_resilience_instrumentation.operations.write_operations import END_SESSIONS
from pymongo_resilience_instrumentation.telemetry import transaction_spans
from pymongo_resilience_instrumentation.timeouts.transaction_timeouts import transaction_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pymongo_resilience.rules.failure import Failure
    from pymongo_resilience_instrumentation.addresses import Address
    from pymongo_resilience_instrumentation.interception.methods import Function
    from pymongo_resilience_instrumentation.runtime import Runtime

KILL_CURSORS = "killCursors"
WINDOW = 0.5
"""Seconds after its first failure in which endSessions is repeated: close() must not take long."""


class CleanupCall(Call):
    """One of them in progress: none of the public API, though it has a span."""

    has_operations = False

    def __init__(
        self, client: object, operation: str, database: str, collection: str | None
    ) -> None:
        super().__init__(client, operation, (database, collection))
        self.public = self.reads_inside = False
        self.unknown_concern = True


class Cleanup:
    """Work for both executors: one command, in one thread or task."""

    attempt: Callable[[], Any]
    window: Deadline | None = None
    """What repetitions of an endSessions have, once one has failed."""
    used_up = False
    """An overloaded server has rejected every attempt."""

    def __init__(self, call: CleanupCall, runtime: Runtime, address: Address | None = None) -> None:
        self.call = call
        self.budget = runtime.budgets.of(call.client)
        self._runtime = runtime
        self._address = address

    def note(self, address: Address) -> None:
        """The server's, once it is known."""
        self._address = address

    @property
    def deadline(self) -> AbstractContextManager[None]:
        return self.call.deadline

    def limit(self) -> AbstractContextManager[None]:
        left = None if self.window is None else max(SHORTEST, self.window.remaining())
        return NO_DEADLINE if left is None else driver.csot.timeout(left)

    def operation(self) -> Operation:
        call, rules, clock = self.call, self._runtime.rules, self._runtime.executor.clock
        options, policy = call.client.options, call.policy(rules)
        timeout, ends = driver.csot.timeout_in_force(), driver.csot.deadline_on(clock)
        deadline = None if not timeout or ends is None else Deadline(clock, ends, timeout)
        enabled = options.retry_reads
        if call.operation == END_SESSIONS:
            # Sessions serve reads and writes alike: both, as for a command runner.
            enabled = enabled and options.retry_writes
            left = WINDOW if deadline is None else min(WINDOW, deadline.remaining())
            self.window, deadline = Deadline.after(clock, left), None
        return Operation(
            name=call.operation,
            namespace=call.namespace,
            kind=Kind.CLEANUP,
            strategy=rules.strategy if policy.strategy is None else policy.strategy,
            retries_enabled=enabled,
            deadline=deadline,
            retry_window=self.window,
            max_retries=driver.clients.max_retries(call.client),
            budget=self.budget,
        )

    def classify(self, error: Exception, operation: Operation) -> Failure:  # noqa: ARG002 - the protocol's shape, as below
        # What else is known matters for errors that end it anyway.
        reached = not isinstance(error, ServerSelectionTimeoutError)
        return classify.failure_of(
            error,
            classify.Attempt(
                reached_connection=reached,
                carried_txn_number=False,
                server=None if self._address is None else address_text(self._address),
                min_rtt=0.0,
            ),
        )

    def release_attempt(self, failure: Failure) -> None:
        """Nothing is held between two attempts."""

    def prepare(self, failure: Failure, operation: Operation) -> None:
        """Nothing to do: a cursor has one server, and any will do for endSessions."""

    def final_error(self, failure: Failure, rule: Rule, operation: Operation) -> Exception:  # noqa: ARG002
        self.used_up = rule is Rule.ATTEMPTS
        return failure.error

    def undecided(self, error: Exception) -> None:
        """It is raised."""


class CleanupCommand(Interceptor):
    """Around a method that sends one; ``enter`` returns the Cleanup."""

    def __init__(self, runtime: Runtime, asynchronous: bool) -> None:
        self.runtime = runtime
        self.asynchronous = asynchronous
        self._executor: Any = runtime.async_executor if asynchronous else runtime.executor

    def send(self, work: Cleanup, original: Function, *given: Any, **kwargs: Any) -> Any:
        work.attempt = partial(original, *given, **kwargs)
        return self._executor.run(work)

    def succeeded(self, work: Cleanup, result: Any) -> Any:
        self.runtime.end(work.call)
        return result

    def failed(self, work: Cleanup | None, error: BaseException, *_: Any) -> BaseException | None:
        if work is None or work.call.client is None:
            return error
        return self.runtime.end(work.call, error)


class KillCursors(CleanupCommand):
    """The killCursors of a cursor's ``close()``. Where it fails, the background task has it, as in
    pymongo."""

    def __init__(self, runtime: Runtime, asynchronous: bool, session_at: int) -> None:
        super().__init__(runtime, asynchronous)
        self._session_at = session_at

    def enter(self, given: tuple[Any, ...], kwargs: dict[str, Any]) -> Cleanup | None:
        _, address, session = driver.clients.kill_arguments(given, kwargs, self._session_at)
        client, outer = given[0], calls.current()
        if outer is not None and outer.client is not client:
            outer = None
        # Of the two methods, the one inside of the other; or the background task's.
        if address is None or isinstance(outer, CleanupCall) or calls.reporting():
            return None
        call = CleanupCall(client, KILL_CURSORS, *driver.clients.cursor_namespace(address))
        # CSOT, "Cursor close() methods refresh timeoutMS". What a call closes by itself, or a
        # stream of GridFS, is within that one's own time; with the session of with_transaction, in
        # what is left of that.
        call.transaction = transaction_of(session)
        refreshed = outer is None is call.transaction and not driver.csot.runs_already()
        self.runtime.enter(call, whole_timeout=refreshed)
        if not refreshed and call.transaction is None:
            call.deadline = NO_DEADLINE
        self.runtime.start_span(
            call, None if session is None else transaction_spans.parent_of(session)
        )
        return Cleanup(call, self.runtime, tuple(address))

    def failed(
        self,
        work: Cleanup | None,
        error: BaseException,
        given: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> BaseException | None:
        if work is not None and not isinstance(error, Exception):
            # The driver leaves the cursor to its background task after its own errors alone.
            ids, address, _ = driver.clients.kill_arguments(given, kwargs, self._session_at)
            for cursor_id in ids:
                driver.clients.kill_later(given[0], cursor_id, address)
        raised = super().failed(work, error)
        # The server's own timeout ends it then; the driver would go on in the background.
        return None if work is not None and work.used_up else raised


class EndSessions(CleanupCommand):
    """The endSessions of a client's ``close()``; the driver ignores its errors."""

    def enter(self, given: tuple[Any, ...], _kwargs: dict[str, Any]) -> Cleanup | None:
        if calls.reporting():
            return None
        call = CleanupCall(given[0], END_SESSIONS, "admin", None)
        self.runtime.enter(call)
        self.runtime.start_span(call)
        return Cleanup(call, self.runtime)

    def send(self, work: Cleanup, original: Function, *given: Any, **kwargs: Any) -> Any:  # noqa: ARG002 - it hides errors
        client, ids = given

        def attempt() -> None:
            with work.limit():
                driver.clients.end_sessions(client, ids, work.note)

        async def async_attempt() -> None:
            with work.limit():
                await driver.clients.end_sessions_async(client, ids, work.note)

        work.attempt = async_attempt if self.asynchronous else attempt
        return self._executor.run(work)

    def failed(
        self, work: Cleanup | None, error: BaseException, *rest: Any
    ) -> BaseException | None:
        raised = super().failed(work, error, *rest)
        return None if isinstance(error, PyMongoError) and not is_closing(error) else raised
