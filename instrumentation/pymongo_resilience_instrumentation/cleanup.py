"""Ends cursors, sessions and transactions that were left open.

pymongo sends killCursors and endSessions outside of its retry loop. Here they are retried if the
server is overloaded, and after no other error. A client's background task must not wait, because it
also maintains the pools, so it retries the killCursors of collected cursors in its next run.

Each run also takes the next step for each transaction that may still be open.
``pymongo_resilience.open_transactions`` decides which step that is.

Source: Client Backpressure, "Driver mechanisms subject to the retry policy".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pymongo.errors import InvalidOperation, PyMongoError

from pymongo_resilience.closing import kept_variables
from pymongo_resilience.config import RecoveryStep
from pymongo_resilience.errors import Rule
from pymongo_resilience.internal_errors import contain_internal_errors
from pymongo_resilience.open_transactions import (
    Event,
    OpenTransaction,
    OpenTransactions,
    Step,
    Waiting,
    event_of,
)
from pymongo_resilience.policies import blocks

from . import driver, in_progress
from .call import Call
from .clients.client_registry import LostCursor
from .deferred import pending, run_deferred
from .driver.attempts import END_SESSIONS, KILL_CURSORS
from .failures import classify
from .interceptor import Function, Interceptor, OperationInterceptor
from .operation import Operation
from .public_operations import Target
from .recovery.silent_servers import look_for_silent_servers
from .runtime import Runtime
from .timeouts.precedence import transaction_of

if TYPE_CHECKING:
    from .call import AnyClient, AnySession
    from .driver.protocols import CursorAddress, Document

T = TypeVar("T")

MAX_RETRIES = 5
"""How often the background task tries again to kill one cursor."""
MAX_SESSIONS = 10_000
"""Maximum number of sessions in one endSessions command (Driver Sessions, "endSessions")."""
ABORT_WITHIN = 5.0
"""Seconds that one run of the task spends on a transaction."""
IN_TASK = "in the background task"


@contextmanager
def _ending(
    transactions: OpenTransactions, client: AnyClient, waiting: Waiting, step: Step
) -> Iterator[OpenTransaction]:
    """A context for sending the command of a step, which records what happened.

    If the task is cancelled, the transaction keeps waiting.
    """
    opened, event = waiting.transaction, Event.DONE
    with contain_internal_errors(IN_TASK):
        try:
            with driver.csot.ActiveTimeout(ABORT_WITHIN):
                yield opened
        except PyMongoError as error:
            event = event_of(classify.failure_of(error, classify.SENT))
        is_lost = driver.sessions.router_is_lost(client, opened)
        transactions.note(waiting, step, event, router_is_lost=is_lost)
        return
    # After a bug of the library, do not try again.
    transactions.drop(waiting)


class CleanupOperation(Operation):
    """A killCursors or endSessions. Not an operation of the public API, although it has a span."""

    has_operations = False

    def __init__(
        self,
        client: AnyClient,
        name: str,
        target: Target = ("", None),
        session: AnySession | None = None,
    ) -> None:
        call = Call(
            client,
            name,
            target,
            session=session,
            block_policy=blocks.current(),
            is_public=False,
            is_cleanup=True,
        )
        super().__init__(call)
        self.reads_inside = False


class BackgroundOperation(CleanupOperation):
    """One run of the background task."""

    def __init__(self, client: AnyClient) -> None:
        super().__init__(client, KILL_CURSORS)
        self.handed_over: dict[int, LostCursor] = {}
        """The lost cursors that this run has passed to pymongo, by ID."""


class BackgroundRun(Interceptor):
    """Wraps a run of the background task. First ends what the library has left open."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._clients = runtime.clients

    def _hand_over(self, run: BackgroundOperation) -> None:
        """Pass to pymongo the lost cursors whose servers can be reached now.

        The others wait for a later run, because the task must not wait for a server.
        """
        client, state = run.client, self._clients.known(run.client)
        if state is None:
            return
        for _ in range(len(state.lost_cursors)):
            # Each cursor is looked at once per run, even if it is appended again.
            lost = state.lost_cursors.popleft()
            if driver.finds.is_known(client, tuple(lost.address)):
                run.handed_over[lost.cursor_id] = lost
                driver.clients.kill_later(client, lost.cursor_id, lost.address)
            elif driver.csot.now() < lost.until:
                state.lost_cursors.append(lost)

    def _steps(
        self, client: AnyClient
    ) -> Iterator[tuple[Step, AbstractContextManager[OpenTransaction]]]:
        """Yield the steps to take now for open transactions, each with its context."""
        state, sessions = self._clients.known(client), driver.sessions
        if state is None:
            return
        transactions = state.open_transactions
        due = transactions.due(
            partial(sessions.router_is_lost, client), sessions.is_in_use, driver.csot.now()
        )
        for waiting, step in due:
            yield step, _ending(transactions, client, waiting, step)

    def send(self, run: BackgroundOperation, original: Function, client: AnyClient) -> Any:
        with contain_internal_errors(IN_TASK):
            self._hand_over(run)
        for step, ending in self._steps(client):
            with ending as opened:
                driver.sessions.send(client, step, opened)
        return original(client)

    async def send_async(
        self, run: BackgroundOperation, original: Function, client: AnyClient
    ) -> Any:
        with contain_internal_errors(IN_TASK):
            self._hand_over(run)
        for step, ending in self._steps(client):
            with ending as opened:
                await driver.sessions.send_async(client, step, opened)
        return await original(client)

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> BackgroundOperation:
        state = self._clients.known(args[0])
        closed = state is not None and state.closed
        if state is not None and not closed:
            state.coroutine_closed = False
        # Closing a client runs the task once more, possibly in a coroutine that is being closed.
        if not closed and (pending or kept_variables):
            run_deferred()
        operation = BackgroundOperation(args[0])
        operation.activate()
        if RecoveryStep.INTERRUPTIONS not in self._runtime.config.disabled_recovery:
            with contain_internal_errors(IN_TASK):
                look_for_silent_servers(self._runtime, args[0])
        if not closed:
            # The task of an async client inherits the context, and so the span, of the client's
            # first caller.
            operation.leave_context()
        return operation

    def succeeded(self, operation: BackgroundOperation, result: T) -> T:
        operation.leave()
        return result

    def failed(
        self, operation: BackgroundOperation | None, error: BaseException, *_: Any
    ) -> BaseException:
        if operation is not None:
            if operation.is_closed_by(error):
                operation.leave_unfinished()
            else:
                operation.leave()
        return error


class KillCursors(OperationInterceptor):
    """Wraps the killCursors of a cursor's ``close()``.

    If it fails, the background task takes over, as in pymongo. A killCursors of the task itself is
    retried in its next run.
    """

    runtime: Runtime

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CleanupOperation | None:
        _, address, session = driver.clients.kill_arguments(args, kwargs)
        client, outer = args[0], in_progress.current()
        if outer is not None and outer.client is not client:
            outer = None
        # A coroutine was just closed, so pymongo's cleanup cannot be awaited; leave it to pymongo.
        if self.runtime.clients.left_by_coroutine(client):
            return None
        # The background task must not wait, so pymongo sends its killCursors without retries.
        if (
            address is None
            or isinstance(outer, BackgroundOperation)
            or in_progress.in_foreign_call()
        ):
            return None
        namespace = driver.clients.cursor_namespace(address)
        operation = CleanupOperation(client, KILL_CURSORS, namespace, session)
        operation.note_server(tuple(address))
        # Source: Client Side Operations Timeout, "Cursor close() methods refresh timeoutMS". If an
        # operation or a GridFS stream closes the cursor, it uses that one's time, and in
        # with_transaction what is left of the transaction's.
        in_transaction = transaction_of(session) is not None
        is_refreshed = outer is None and not in_transaction and not driver.csot.is_ours()
        self.runtime.begin(operation, whole_timeout=is_refreshed)
        return operation

    def send(
        self, operation: CleanupOperation, _original: Function, *args: Any, **kwargs: Any
    ) -> Any:
        ids, address, session = driver.clients.kill_arguments(args, kwargs)
        return driver.clients.kill_cursors(operation.client, ids, address, session)

    def failed(
        self,
        operation: Operation | None,
        error: BaseException,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> BaseException | None:
        ids, address, _ = driver.clients.kill_arguments(args, kwargs)
        outer = in_progress.current()
        if operation is None:
            # An error of a closed client ends the task. Any other error would be printed to stderr
            # as a traceback.
            if not isinstance(outer, BackgroundOperation) or isinstance(error, InvalidOperation):
                return error
            if not isinstance(error, PyMongoError):
                return error
            with contain_internal_errors("after killCursors"):
                self._kill_again(outer, error, ids, address)
            return None
        if not isinstance(error, Exception):
            # pymongo leaves the cursor to its background task only after pymongo's own errors.
            for cursor_id in ids:
                driver.clients.kill_later(args[0], cursor_id, address)
        raised = super().failed(operation, error, args, kwargs)
        # After the last retry, let the server's own timeout end the cursor. If the error were
        # raised, pymongo would continue in the background.
        return None if getattr(error, "retry_rule", None) is Rule.ATTEMPTS else raised

    def _kill_again(
        self, run: BackgroundOperation, error: Exception, ids: list[int], address: CursorAddress
    ) -> None:
        """Leave rejected cursors to the task's next run. If the client is closed, there is none."""
        client = run.client
        failure = classify.failure_of(error, classify.SENT)
        # killCursors is sent on the read path, so retryReads applies to it.
        is_retryable = failure.retryable_overload and client.options.retry_reads
        client_limit = driver.clients.max_retries(client)
        max_rejections = min(
            MAX_RETRIES, self.runtime.executor.retry_rules.max_retries_of(client_limit)
        )
        state = self.runtime.clients.of(client)
        for cursor_id in ids if is_retryable and not state.closed else ():
            lost = run.handed_over.get(cursor_id) or LostCursor.new(cursor_id, address)
            if lost.rejections < max_rejections:
                state.lost_cursors.append(lost._replace(rejections=lost.rejections + 1))


class EndSessions(OperationInterceptor):
    """Wraps the endSessions of a client's ``close()``, whose errors pymongo ignores."""

    runtime: Runtime

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> CleanupOperation | None:
        if in_progress.in_foreign_call() or self.runtime.clients.left_by_coroutine(args[0]):
            return None
        operation = CleanupOperation(args[0], END_SESSIONS, ("admin", None))
        self.runtime.begin(operation)
        return operation

    def send(
        self,
        _operation: CleanupOperation,
        _original: Function,
        client: AnyClient,
        ids: Sequence[Document],
    ) -> None:
        # As in pymongo, one command ends at most 10,000 sessions.
        for at in range(0, len(ids), MAX_SESSIONS):
            driver.clients.end_sessions(client, ids[at : at + MAX_SESSIONS])

    async def send_async(
        self,
        _operation: CleanupOperation,
        _original: Function,
        client: AnyClient,
        ids: Sequence[Document],
    ) -> None:
        for at in range(0, len(ids), MAX_SESSIONS):
            await driver.clients.end_sessions(client, ids[at : at + MAX_SESSIONS])

    def failed(
        self, operation: Operation | None, error: BaseException, *rest: Any
    ) -> BaseException | None:
        raised = super().failed(operation, error, *rest)
        # pymongo's own method ignores its errors as well: the server ends idle sessions by itself.
        return None if isinstance(error, PyMongoError) else raised
