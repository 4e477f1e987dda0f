"""What a client's background task does beside killing cursors: transactions whose abort was not
answered are aborted. Else they keep their locks until the server ends them, after a minute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import context
from opentelemetry.context import Context
from pymongo.errors import OperationFailure, PyMongoError

from pymongo_resilience.internal_errors import is_closing, shielded
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.deferred import pending, run_deferred
from pymongo_resilience_instrumentation.driver.retry_loop import KILL_CURSORS
from pymongo_resilience_instrumentation.driver.sessions import OpenTransaction
from pymongo_resilience_instrumentation.interceptor import Function, Interceptor
from pymongo_resilience_instrumentation.operation import CURRENT, Operation
from pymongo_resilience_instrumentation.public_operations import Target

from .client_registry import Clients, ClientState

WITHIN = 5.0
"""Seconds that one run of the task has for a transaction."""
LIFETIME = 60.0
"""Seconds after which the server has ended it (``transactionLifetimeLimitSeconds``)."""


def leave_open(client: ClientState, opened: OpenTransaction | None) -> None:
    """Have the task abort a transaction. Safe in a finalizer."""
    if opened is not None:
        client.open_transactions.append((opened, driver.csot.now() + LIFETIME))


@contextmanager
def _aborting(client: ClientState, opened: OpenTransaction, until: float) -> Iterator[None]:
    with shielded("in the background task"):
        try:
            with driver.csot.InForce(WITHIN):
                yield
        except PyMongoError as error:
            # An answer of the server's says that it has ended.
            if not isinstance(error, OperationFailure) and driver.csot.now() < until:
                client.open_transactions.append((opened, until))


def _taken(client: ClientState) -> Iterator[tuple[OpenTransaction, float]]:
    for _ in range(len(client.open_transactions)):  # what fails has the next run
        yield client.open_transactions.popleft()


class CleanupOperation(Operation):
    """A killCursors or endSessions: no operation of the public API, though it has a span."""

    has_operations = False

    def __init__(self, client: object, operation: str, target: Target = ("", None)) -> None:
        super().__init__(client, operation, target)
        self.public = self.reads_inside = False


class BackgroundOperation(CleanupOperation):
    """One run of the task."""


class BackgroundRun(Interceptor):
    """Around a run of the task: it begins with the aborts."""

    def __init__(self, clients: Clients, asynchronous: bool) -> None:
        self._clients = clients
        self.send = self._send_async if asynchronous else self._send

    def _send(self, _: BackgroundOperation, original: Function, client: Any) -> Any:
        state = self._clients.of(client)
        for opened, until in _taken(state):
            with _aborting(state, opened, until):
                driver.sessions.abort(client, opened)
        return original(client)

    async def _send_async(self, _: BackgroundOperation, original: Function, client: Any) -> Any:
        state = self._clients.of(client)
        for opened, until in _taken(state):
            with _aborting(state, opened, until):
                await driver.sessions.abort_async(client, opened)
        return await original(client)

    def enter(self, given: tuple[Any, ...], _kwargs: dict[str, Any]) -> BackgroundOperation:
        if pending:
            run_deferred()
        operation = BackgroundOperation(given[0], KILL_CURSORS)
        operation.token = CURRENT.set(operation)
        if not self._clients.of(given[0]).closed:
            # The task of an async client inherits the span of the client's first caller.
            operation.outer_context = context.get_current()
            context.attach(Context())
        return operation

    def succeeded(self, operation: BackgroundOperation, result: object) -> Any:
        operation.leave()
        return result

    def failed(
        self, operation: BackgroundOperation | None, error: BaseException, *_: Any
    ) -> BaseException:
        if operation is not None:
            leave = operation.leave_unfinished if is_closing(error) else operation.leave
            leave()
        return error
