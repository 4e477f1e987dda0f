"""killCursors and endSessions, which pymongo sends past its retry loop: repeated for an overloaded
server, and after no other error.

A client's background task must not wait, for it keeps the pools as well: it repeats the killCursors
of collected cursors with its next run, and runs what else was left for it.

Source: Client Backpressure, "Driver mechanisms subject to the retry policy".
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from opentelemetry import context
from opentelemetry.context import Context
from pymongo.errors import InvalidOperation, PyMongoError, ServerSelectionTimeoutError

from pymongo_resilience.clock import SHORTEST, Deadline
from pymongo_resilience.internal_errors import is_closing, logger, shielded
from pymongo_resilience.rules.failure import Failure
from pymongo_resilience.rules.retried_operation import Kind, Operation
from pymongo_resilience.rules.retry_rules import Rule

from . import calls, driver
from .addresses import address_text
from .calls import NO_DEADLINE, Call
from .clients.background_work import taken
from .clients.by_client import keep
from .deferred import pending, run_deferred
from .failures import classify
from .interception.interceptor import CallInterceptor, Function, Interceptor
from .operations import END_SESSIONS, Target
from .runtime import Runtime
from .timeouts.precedence import transaction_of

KILL_CURSORS = "killCursors"
WINDOW = 0.5
"""Seconds after its first failure in which endSessions is repeated: close() must not take long."""
MOST_REPETITIONS = 5
"""How often the background task kills one cursor again."""


class CleanupCall(Call):
    """One of them in progress: no operation of the public API, though it has a span."""

    has_operations = False
    unknown_concern = True
    used_up = False
    """An overloaded server has rejected every attempt."""

    def __init__(self, client: object, operation: str, target: Target = ("", None)) -> None:
        super().__init__(client, operation, target)
        self.public = self.reads_inside = False

    def failure(self, error: Exception) -> Failure:
        """What a failed attempt means; what is not known of it matters for other errors alone."""
        server = None if self.server is None else address_text(self.server)
        reached = not isinstance(error, ServerSelectionTimeoutError)
        return classify.failure_of(error, classify.Attempt(reached, False, server, 0.0))


class BackgroundCall(CleanupCall):
    """One run of a client's background task."""


class Cleanup:
    """Work for both executors: one command, in one thread or task."""

    attempt: Callable[[], Any]
    window: Deadline | None = None
    """What repetitions of an endSessions have, once one has failed."""

    def __init__(self, call: CleanupCall, runtime: Runtime) -> None:
        self.call = call
        self.budget = runtime.budgets.of(call.client)
        self._runtime = runtime

    def limit(self) -> AbstractContextManager[None]:
        if self.window is None:
            return NO_DEADLINE
        return driver.csot.InForce(max(SHORTEST, self.window.remaining()))

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
        return self.call.failure(error)

    def release_attempt(self, failure: Failure) -> None:
        """Nothing is held between two attempts."""

    def prepare(self, failure: Failure, operation: Operation) -> None:
        """Nothing to do: a cursor has one server, and any will do for endSessions."""

    def final_error(self, failure: Failure, rule: Rule, operation: Operation) -> Exception:  # noqa: ARG002
        self.call.used_up = rule is Rule.ATTEMPTS
        return failure.error

    def undecided(self, error: Exception) -> None:
        """It is raised."""


class _CleanupCommand(CallInterceptor):
    """Around a method that sends one."""

    runtime: Runtime

    def __init__(self, runtime: Runtime, asynchronous: bool) -> None:
        super().__init__(runtime)
        self.asynchronous = asynchronous
        self._executor: Any = runtime.async_executor if asynchronous else runtime.executor


class KillCursors(_CleanupCommand):
    """The killCursors of a cursor's ``close()``: where it fails, the background task has it, as in
    pymongo. One of the task is repeated by its next run."""

    def __init__(self, runtime: Runtime, asynchronous: bool, session_at: int) -> None:
        super().__init__(runtime, asynchronous)
        self._session_at = session_at
        self._pinned = session_at != next(iter(driver.clients.KILLS.values()))
        """A cursor with a connection of its own, which the driver queues after an error."""
        self._rejected: dict[int, dict[int, int]] = {}
        """How often a server has rejected which cursor of the background task, by client."""

    def enter(self, given: tuple[Any, ...], kwargs: dict[str, Any]) -> CleanupCall | None:
        _, address, session = driver.clients.kill_arguments(given, kwargs, self._session_at)
        client, outer = given[0], calls.current()
        if outer is not None and outer.client is not client:
            outer = None
        # Of the two methods, the one inside of the other; or the background task's.
        if address is None or isinstance(outer, CleanupCall) or calls.reporting():
            return None
        call = CleanupCall(client, KILL_CURSORS, driver.clients.cursor_namespace(address))
        call.server = tuple(address)
        # CSOT, "Cursor close() methods refresh timeoutMS". What a call or a stream of GridFS closes
        # by itself is within that one's own time, in with_transaction within what is left of it.
        call.transaction = transaction_of(session)
        refreshed = outer is None is call.transaction and not driver.csot.runs_already()
        call.session = session
        self.runtime.begin(call, whole_timeout=refreshed)
        if not refreshed and call.transaction is None:
            call.deadline = NO_DEADLINE
        return call

    def send(self, call: CleanupCall, original: Function, *given: Any, **kwargs: Any) -> Any:
        work = Cleanup(call, self.runtime)
        work.attempt = partial(original, *given, **kwargs)
        return self._executor.run(work)

    def failed(
        self, call: Any, error: BaseException, given: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> BaseException | None:
        ids, address, _ = driver.clients.kill_arguments(given, kwargs, self._session_at)
        around = calls.current()
        if call is None:
            # An error of a closed client ends the task; any other would be a traceback on stderr.
            ours = isinstance(error, PyMongoError) and not isinstance(error, InvalidOperation)
            if not isinstance(around, BackgroundCall) or not ours or self._pinned:
                return error
            with shielded("after killCursors"):
                self._repeat(around, error, ids, address)
            return None
        if not isinstance(error, Exception):
            # The driver leaves the cursor to its background task after its own errors alone.
            for cursor_id in ids:
                driver.clients.kill_later(given[0], cursor_id, address)
        raised = super().failed(call, error, given, kwargs)
        # The server's own timeout ends it then; the driver would go on in the background.
        return None if call.used_up else raised

    def _repeat(self, call: BackgroundCall, error: Any, ids: Any, address: Any) -> None:
        client = call.client
        again = call.failure(error).retryable_overload and client.options.retry_reads
        own = driver.clients.max_retries(client)
        ours = self.runtime.executor.retry_rules.max_retries
        most = min(MOST_REPETITIONS, ours if own is None else own)
        rejected = keep(self._rejected, client, {})
        for cursor_id in ids:
            count = rejected.pop(cursor_id, 0) + 1
            # Once the client is closed no later run takes up what this one leaves.
            if again and count <= most and not self.runtime.closings.closed(client):
                rejected[cursor_id] = count
                driver.clients.kill_later(client, cursor_id, address)
            else:
                name = type(error).__name__
                logger.debug("killCursors of a collected cursor: dropped (%s)", name)


class EndSessions(_CleanupCommand):
    """The endSessions of a client's ``close()``; the driver ignores its errors."""

    def enter(self, given: tuple[Any, ...], _kwargs: dict[str, Any]) -> CleanupCall | None:
        if calls.reporting():
            return None
        call = CleanupCall(given[0], END_SESSIONS, ("admin", None))
        self.runtime.begin(call)
        return call

    def send(self, call: CleanupCall, _original: Function, client: Any, ids: Any) -> Any:
        """In place of the driver's own, which hides errors."""
        work, clients = Cleanup(call, self.runtime), driver.clients
        send = clients.end_sessions_async if self.asynchronous else clients.end_sessions
        work.attempt = lambda: send(client, ids, call, work.limit())
        return self._executor.run(work)

    def failed(self, call: Any, error: BaseException, *rest: Any) -> BaseException | None:
        raised = super().failed(call, error, *rest)
        return None if isinstance(error, PyMongoError) and not is_closing(error) else raised


class BackgroundRun(Interceptor):
    """One run of a client's background task."""

    def __init__(self, runtime: Runtime, asynchronous: bool) -> None:
        self._closed = runtime.closings.closed
        self.send = self._send_async if asynchronous else self._send

    def _send(self, call: BackgroundCall, original: Function, *given: Any) -> Any:
        for work in taken(call.client):
            with shielded("in the background task"):
                work()
        return original(*given)

    async def _send_async(self, call: BackgroundCall, original: Function, *given: Any) -> Any:
        for work in taken(call.client):
            with shielded("in the background task"):
                await work()
        return await original(*given)

    def enter(self, given: tuple[Any, ...], _kwargs: dict[str, Any]) -> BackgroundCall:
        if pending:
            run_deferred()
        call = BackgroundCall(given[0], KILL_CURSORS)
        call.token = calls.make_current(call)
        if not self._closed(given[0]):
            # The task of an async client inherits the span of the client's first caller.
            call.outer_context = context.get_current()
            context.attach(Context())
        return call

    def succeeded(self, call: BackgroundCall, result: object) -> Any:
        calls.leave(call)
        return result

    def failed(self, call: BackgroundCall | None, error: BaseException, *_: Any) -> BaseException:
        if call is not None:
            (calls.leave_unfinished if is_closing(error) else calls.leave)(call)
        return error
