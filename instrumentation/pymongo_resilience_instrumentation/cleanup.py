"""What ends cursors, sessions and transactions that are left. killCursors and endSessions, which
pymongo sends past its retry loop, are repeated for an overloaded server, and after no other error.

A client's background task must not wait, for it keeps the pools as well: it repeats the killCursors
of collected cursors with its next run. It also aborts transactions whose abort was not answered:
else they keep their locks until the server ends them, after a minute. If the router of one is gone,
it kills the session, through another router.

Source: Client Backpressure, "Driver mechanisms subject to the retry policy".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from pymongo.errors import InvalidOperation, OperationFailure, PyMongoError

from pymongo_resilience.closing import kept_variables
from pymongo_resilience.config import RecoveryStep
from pymongo_resilience.errors import Rule
from pymongo_resilience.internal_errors import contain_internal_errors
from pymongo_resilience.policies import blocks

from . import driver, in_progress
from .call import Call
from .clients.client_registry import ClientState, LostCursor
from .deferred import pending, run_deferred
from .driver.attempts import END_SESSIONS, KILL_CURSORS
from .driver.sessions import OpenTransaction
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
"""How often the background task kills one cursor again."""
MAX_SESSIONS = 10_000
"""How many of them one endSessions may name."""
ABORT_WITHIN = 5.0
"""Seconds that one run of the task has for a transaction."""


@contextmanager
def _aborting(client: ClientState) -> Iterator[OpenTransaction]:
    """Around the abort of the transaction that waits longest; what fails has the next run."""
    opened, until = client.open_transactions.popleft()
    with contain_internal_errors("in the background task"):
        try:
            with driver.csot.ActiveTimeout(ABORT_WITHIN):
                yield opened
        except PyMongoError as error:
            # An answer of the server's says that it has ended.
            if not isinstance(error, OperationFailure):
                _try_again(client, opened, until)


def _try_again(client: ClientState, opened: OpenTransaction, until: float) -> None:
    if driver.csot.now() < until:
        client.leave_open(opened, until)


class CleanupOperation(Operation):
    """A killCursors or endSessions: no operation of the public API, though it has a span."""

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
    """One run of the task."""

    def __init__(self, client: AnyClient) -> None:
        super().__init__(client, KILL_CURSORS)
        self.handed_over: dict[int, LostCursor] = {}
        """The lost cursors that this run has given to pymongo, by their ids."""


class BackgroundRun(Interceptor):
    """Around a run of the task: it begins with the aborts."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._clients = runtime.clients

    def _hand_over(self, run: BackgroundOperation) -> None:
        """Give pymongo the lost cursors whose server can be reached now. The others wait for a
        later run, since the task must not wait for a server."""
        client, state = run.client, self._clients.known(run.client)
        if state is None:
            return
        for _ in range(len(state.lost_cursors)):
            lost = state.lost_cursors.popleft()
            if driver.finds.is_known(client, tuple(lost.address)):
                run.handed_over[lost.cursor_id] = lost
                driver.clients.kill_later(client, lost.cursor_id, lost.address)
            elif driver.csot.now() < lost.until:
                state.lost_cursors.append(lost)

    def _aborts(self, client: AnyClient) -> Iterator[AbstractContextManager[OpenTransaction]]:
        state = self._clients.known(client)
        if state is not None:
            for _ in range(len(state.open_transactions)):
                if driver.sessions.can_be_ended(client, state.open_transactions[0][0]):
                    yield _aborting(state)
                else:
                    _try_again(state, *state.open_transactions.popleft())

    def send(self, run: BackgroundOperation, original: Function, client: AnyClient) -> Any:
        with contain_internal_errors("in the background task"):
            self._hand_over(run)
        for abort in self._aborts(client):
            with abort as opened:
                driver.sessions.abort(client, opened)
        return original(client)

    async def send_async(
        self, run: BackgroundOperation, original: Function, client: AnyClient
    ) -> Any:
        with contain_internal_errors("in the background task"):
            self._hand_over(run)
        for abort in self._aborts(client):
            with abort as opened:
                await driver.sessions.abort_async(client, opened)
        return await original(client)

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> BackgroundOperation:
        state = self._clients.known(args[0])
        closed = state is not None and state.closed
        if state is not None and not closed:
            state.coroutine_closed = False
        # Closing a client runs the task once more, perhaps in a coroutine that is closed itself.
        if not closed and (pending or kept_variables):
            run_deferred()
        operation = BackgroundOperation(args[0])
        operation.activate()
        if RecoveryStep.INTERRUPTIONS not in self._runtime.config.disabled_recovery:
            with contain_internal_errors("in the background task"):
                look_for_silent_servers(self._runtime, args[0])
        if not closed:
            # The task of an async client inherits the span of the client's first caller.
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
    """The killCursors of a cursor's ``close()``: where it fails, the background task has it, as in
    pymongo. One of the task is repeated by its next run."""

    runtime: Runtime

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CleanupOperation | None:
        _, address, session = driver.clients.kill_arguments(args, kwargs)
        client, outer = args[0], in_progress.current()
        if outer is not None and outer.client is not client:
            outer = None
        if self.runtime.clients.left_by_coroutine(client):
            return None
        if (
            address is None
            or isinstance(outer, BackgroundOperation)
            or in_progress.in_foreign_call()
        ):
            return None
        namespace = driver.clients.cursor_namespace(address)
        operation = CleanupOperation(client, KILL_CURSORS, namespace, session)
        operation.note_server(tuple(address))
        # CSOT, "Cursor close() methods refresh timeoutMS". What an operation or a stream of GridFS
        # closes by itself is within that one's own time, in with_transaction within what is left of
        # it.
        in_transaction = transaction_of(session) is not None
        refreshed = outer is None and not in_transaction and not driver.csot.is_ours()
        self.runtime.begin(operation, whole_timeout=refreshed)
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
            # An error of a closed client ends the task; any other would be a traceback on stderr.
            if not isinstance(outer, BackgroundOperation) or isinstance(error, InvalidOperation):
                return error
            if not isinstance(error, PyMongoError):
                return error
            with contain_internal_errors("after killCursors"):
                self._kill_again(outer, error, ids, address)
            return None
        if not isinstance(error, Exception):
            # The driver leaves the cursor to its background task after its own errors alone.
            for cursor_id in ids:
                driver.clients.kill_later(args[0], cursor_id, address)
        raised = super().failed(operation, error, args, kwargs)
        # The server's own timeout ends it then; the driver would go on in the background.
        return None if getattr(error, "retry_rule", None) is Rule.ATTEMPTS else raised

    def _kill_again(
        self, run: BackgroundOperation, error: Exception, ids: list[int], address: CursorAddress
    ) -> None:
        """Leave rejected cursors to the task's next run; once the client is closed there is
        none."""
        client = run.client
        facts = classify.failure_of(error, classify.Attempt(True, False, None, 0.0))
        again = facts.retryable_overload and client.options.retry_reads
        own = driver.clients.max_retries(client)
        most = min(MAX_RETRIES, self.runtime.executor.retry_rules.max_retries_of(own))
        state = self.runtime.clients.of(client)
        for cursor_id in ids if again and not state.closed else ():
            lost = run.handed_over.get(cursor_id) or LostCursor.new(cursor_id, address)
            if lost.rejections < most:
                state.lost_cursors.append(lost._replace(rejections=lost.rejections + 1))


class EndSessions(OperationInterceptor):
    """The endSessions of a client's ``close()``; the driver ignores its errors."""

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
        return None if isinstance(error, PyMongoError) else raised
