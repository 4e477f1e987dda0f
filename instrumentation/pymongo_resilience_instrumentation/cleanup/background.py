"""A client's background task, which must not wait: it keeps the pools as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry import context
from opentelemetry.context import Context
from pymongo.errors import InvalidOperation, PyMongoError

from pymongo_resilience.internal_errors import is_closing, logger, shielded
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.clients.background_work import taken
from pymongo_resilience_instrumentation.clients.by_client import keep
from pymongo_resilience_instrumentation.deferred import pending, run_deferred
from pymongo_resilience_instrumentation.failures import classify
from pymongo_resilience_instrumentation.interception.interceptor import Entered, Interceptor

from .cleanup_commands import KILL_CURSORS, CleanupCall

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.interception.methods import Function
    from pymongo_resilience_instrumentation.runtime import Runtime

MOST_REPETITIONS = 5
"""How often one cursor is killed again, a run of the task later."""


class BackgroundCall(CleanupCall):
    """One run of a client's background task."""

    def __init__(self, client: object) -> None:
        super().__init__(client, KILL_CURSORS, "", None)
        self.is_last = driver.clients.kills_no_more(client)
        """The client is being closed: no later run takes up what this one leaves."""


class BackgroundRun(Interceptor):
    """One run of the background task; ``enter`` returns its BackgroundCall."""

    def __init__(self, asynchronous: bool) -> None:
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
        call = BackgroundCall(given[0])
        calls.enter(call)
        if not call.is_last:
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


class KillsInBackground(Interceptor):
    """A killCursors of the background task: one that an overloaded server rejects is sent again by
    the next run. Any error ends the others, without a traceback on stderr."""

    def __init__(self, runtime: Runtime) -> None:
        self._max_retries = runtime.executor.retry_rules.max_retries
        self._rejected: dict[int, dict[int, int]] = {}
        """Of each client, how often a server has rejected which cursors."""

    def enter(self, given: tuple[Any, ...], _kwargs: dict[str, Any]) -> Entered | None:
        return Entered(given[0]) if isinstance(calls.current(), BackgroundCall) else None

    def failed(
        self,
        entered: Entered | None,
        error: BaseException,
        given: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> BaseException | None:
        if entered is None or not isinstance(error, PyMongoError):
            return error
        if isinstance(error, InvalidOperation):
            return error  # of a closed client: the driver's task ends
        with shielded("after killCursors"):
            self._repeat(error, *driver.clients.kill_arguments(given, kwargs, 4)[:2], given[0])
        return None

    def _repeat(self, error: Exception, ids: Any, address: Any, client: Any) -> None:
        call: Any = calls.current()
        made = classify.Attempt(
            reached_connection=True, carried_txn_number=False, server=None, min_rtt=0.0
        )
        again = classify.failure_of(error, made).retryable_overload and client.options.retry_reads
        own = driver.clients.max_retries(client)
        most = min(MOST_REPETITIONS, self._max_retries if own is None else own)
        rejected = keep(self._rejected, client, {})
        for cursor_id in ids:
            count = rejected.pop(cursor_id, 0) + 1
            if again and not call.is_last and count <= most:
                rejected[cursor_id] = count
                driver.clients.kill_later(client, cursor_id, address)
            else:
                logger.debug(
                    "killCursors of a collected cursor: dropped (%s)", type(error).__name__
                )
