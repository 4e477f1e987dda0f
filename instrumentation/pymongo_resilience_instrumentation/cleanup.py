"""killCursors and endSessions, which pymongo sends past its retry loop: repeated for an overloaded
server, and after no other error.

A client's background task must not wait, for it keeps the pools as well: it repeats the killCursors
of collected cursors with its next run.

Source: Client Backpressure, "Driver mechanisms subject to the retry policy".
"""

from __future__ import annotations

from typing import Any

from pymongo.errors import InvalidOperation, PyMongoError

from pymongo_resilience.errors import Rule
from pymongo_resilience.internal_errors import is_closing, shielded

from . import calls, driver
from .calls import NO_DEADLINE
from .clients.background_work import BackgroundCall, CleanupCall
from .clients.by_client import keep
from .driver.retry_loop import END_SESSIONS, KILL_CURSORS
from .failures import classify
from .interceptor import CallInterceptor, Function
from .runtime import Runtime
from .timeouts.precedence import transaction_of

MOST_REPETITIONS = 5
"""How often the background task kills one cursor again."""
MOST_SESSIONS = 10_000
"""How many of them one endSessions may name."""


class KillCursors(CallInterceptor):
    """The killCursors of a cursor's ``close()``: where it fails, the background task has it, as in
    pymongo. One of the task is repeated by its next run."""

    runtime: Runtime

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._rejected: dict[int, dict[int, int]] = {}
        """How often a server has rejected which cursor of the background task, by client."""

    def enter(self, given: tuple[Any, ...], kwargs: dict[str, Any]) -> CleanupCall | None:
        _, address, session = driver.clients.kill_arguments(given, kwargs)
        client, outer = given[0], calls.current()
        if outer is not None and outer.client is not client:
            outer = None
        if address is None or isinstance(outer, BackgroundCall) or calls.reporting():
            return None
        call = CleanupCall(client, KILL_CURSORS, driver.clients.cursor_namespace(address))
        call.history.server = tuple(address)
        # CSOT, "Cursor close() methods refresh timeoutMS". What a call or a stream of GridFS closes
        # by itself is within that one's own time, in with_transaction within what is left of it.
        call.session, call.transaction = session, transaction_of(session)
        refreshed = outer is None is call.transaction and not driver.csot.runs_already()
        self.runtime.begin(call, whole_timeout=refreshed)
        if not refreshed and call.transaction is None:
            call.deadline = NO_DEADLINE
        return call

    def send(self, call: CleanupCall, _original: Function, *given: Any, **kwargs: Any) -> Any:
        ids, address, session = driver.clients.kill_arguments(given, kwargs)
        return driver.clients.kill_cursors(call.client, ids, address, session)

    def failed(
        self, call: Any, error: BaseException, given: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> BaseException | None:
        ids, address, _ = driver.clients.kill_arguments(given, kwargs)
        around = calls.current()
        if call is None:
            # An error of a closed client ends the task; any other would be a traceback on stderr.
            ours = isinstance(error, PyMongoError) and not isinstance(error, InvalidOperation)
            if not isinstance(around, BackgroundCall) or not ours:
                return error
            with shielded("after killCursors"):
                self._repeat(around.client, error, ids, address)
            return None
        if not isinstance(error, Exception):
            # The driver leaves the cursor to its background task after its own errors alone.
            for cursor_id in ids:
                driver.clients.kill_later(given[0], cursor_id, address)
        raised = super().failed(call, error, given, kwargs)
        # The server's own timeout ends it then; the driver would go on in the background.
        return None if getattr(error, "retry_rule", None) is Rule.ATTEMPTS else raised

    def _repeat(self, client: Any, error: Any, ids: Any, address: Any) -> None:
        """With the task's next run; once the client is closed there is none."""
        facts = classify.failure_of(error, classify.Attempt(True, False, None, 0.0))
        again = facts.retryable_overload and client.options.retry_reads
        own = driver.clients.max_retries(client)
        ours = self.runtime.executor.retry_rules.max_retries
        most = min(MOST_REPETITIONS, ours if own is None else own)
        rejected = keep(self._rejected, client, {})
        for cursor_id in ids:
            count = rejected.pop(cursor_id, 0) + 1
            if again and count <= most and not self.runtime.closings.closed(client):
                rejected[cursor_id] = count
                driver.clients.kill_later(client, cursor_id, address)


class EndSessions(CallInterceptor):
    """The endSessions of a client's ``close()``; the driver ignores its errors."""

    runtime: Runtime

    def __init__(self, runtime: Runtime, asynchronous: bool) -> None:
        super().__init__(runtime)
        self.send = self._send_async if asynchronous else self._send

    def enter(self, given: tuple[Any, ...], _kwargs: dict[str, Any]) -> CleanupCall | None:
        if calls.reporting():
            return None
        call = CleanupCall(given[0], END_SESSIONS, ("admin", None))
        self.runtime.begin(call)
        return call

    def _send(self, _call: CleanupCall, _original: Function, client: Any, ids: Any) -> None:
        for at in range(0, len(ids), MOST_SESSIONS):
            driver.clients.end_sessions(client, ids[at : at + MOST_SESSIONS])

    async def _send_async(
        self, _call: CleanupCall, _original: Function, client: Any, ids: Any
    ) -> None:
        for at in range(0, len(ids), MOST_SESSIONS):
            await driver.clients.end_sessions(client, ids[at : at + MOST_SESSIONS])

    def failed(self, call: Any, error: BaseException, *rest: Any) -> BaseException | None:
        raised = super().failed(call, error, *rest)
        return None if isinstance(error, PyMongoError) and not is_closing(error) else raised
