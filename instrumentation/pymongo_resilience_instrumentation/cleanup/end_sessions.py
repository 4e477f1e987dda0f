"""endSessions: of a client's ``close()``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo.errors import PyMongoError

from pymongo_resilience.closed_coroutines import closes_a_coroutine
from pymongo_resilience.rules.operation_deadline import SHORTEST, Deadline
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.calls import NO_DEADLINE
from pymongo_resilience_instrumentation.interception.interceptor import Entered, Interceptor
from pymongo_resilience_instrumentation.operations.write_operations import END_SESSIONS

from .cleanup_work import Cleanup, CleanupCall, CleanupInterceptor

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pymongo_resilience.rules.retried_operation import Operation
    from pymongo_resilience_instrumentation.interception.methods import Function

WINDOW = 0.5
"""Seconds after its first failure in which it is repeated: close() must not take long."""


class EndSessions(Cleanup):
    deadline = NO_DEADLINE
    _window: Deadline | None = None

    def operation(self) -> Operation:
        left = driver.csot.remaining()
        length = WINDOW if left is None else min(WINDOW, left)
        self._window = Deadline.after(self.executor.clock, length)
        options = self.call.client.options
        # Sessions serve reads and writes alike: both, as for a command runner.
        enabled = options.retry_reads and options.retry_writes
        return self._operation(enabled=enabled, retry_window=self._window)

    def limit(self) -> AbstractContextManager[None]:
        """The first has the time of any operation, where there is a limit to that: without one,
        a close() waits for servers that are gone until serverSelectionTimeoutMS. A repetition may
        not take longer than the window either."""
        if self._window is None:
            return driver.csot.timeout(self.call.timeout) if self.call.timeout else NO_DEADLINE
        return driver.csot.timeout(max(SHORTEST, self._window.remaining()))


class _Attempt(Interceptor):
    """Raises what the driver keeps to itself."""

    def __init__(self, work: EndSessions) -> None:
        self._work = work

    def enter(self, given: tuple[Any, ...], _kwargs: dict[str, Any]) -> Entered:
        self._work.call.ignored_error = None
        return Entered(given[0], self._work.limit())

    def succeeded(self, entered: Entered, result: object) -> Any:  # noqa: ARG002 - the protocol's shape
        if self._work.call.ignored_error is not None:
            raise self._work.call.ignored_error
        return result


class EndingSessions(CleanupInterceptor):
    def enter(self, given: tuple[Any, ...], _kwargs: dict[str, Any]) -> EndSessions | None:
        if calls.reporting():
            return None
        runtime = self.runtime
        call = CleanupCall(given[0], END_SESSIONS, "admin", None)
        budget = runtime.budgets.of(call.client)
        work = EndSessions(call, self.executor, runtime.rules, budget)
        runtime.enter(call)
        runtime.start_span(call)
        return work

    def send(self, work: Any, original: Function, *given: Any, **kwargs: Any) -> Any:
        attempt = _Attempt(work).method(self.runtime.enabled_flag, self.asynchronous)
        return super().send(work, attempt.around(original), *given, **kwargs)

    def succeeded(self, work: EndSessions, result: object) -> Any:
        self._finish(work, None)
        return result

    def failed(self, work: EndSessions | None, error: BaseException, *_: Any) -> Any:
        if work is None:
            return error
        self._finish(work, error if closes_a_coroutine(error) else work.call.ignored_error)
        # What the driver ignores is ignored.
        return None if isinstance(error, PyMongoError) else error

    def _finish(self, work: EndSessions, error: BaseException | None) -> None:
        self.runtime.end(work.call, error)
        # Nothing may keep the closed client alive: neither its arguments nor the error's frames.
        vars(work).pop("send", None)
        work.call.ignored_error = None


class ConnectionForSessions(Interceptor):
    """``_conn_for_reads``, which endSessions alone calls."""

    def enter(self, given: tuple[Any, ...], _kwargs: dict[str, Any]) -> _Connection | None:
        call = calls.current()
        if not isinstance(call, CleanupCall) or call.operation != END_SESSIONS:
            return None
        return _Connection(call) if call.client is given[0] else None

    def succeeded(self, connection: _Connection, result: object) -> _Connection:
        connection.manager = result
        return connection

    def failed(self, connection: _Connection | None, error: BaseException, *_: Any) -> Any:
        if connection is not None:
            connection.note(error)
        return error


class _Connection:
    """The driver's context manager, sync or async: notes the server's address and the error."""

    deadline = NO_DEADLINE
    manager: Any

    def __init__(self, call: CleanupCall) -> None:
        self._call = call

    def note(self, error: BaseException | None) -> None:
        if isinstance(error, Exception):
            self._call.ignored_error = error

    def _entered(self, result: Any) -> Any:
        self._call.address = result[0].address
        return result

    def __enter__(self) -> Any:
        try:
            return self._entered(self.manager.__enter__())
        except Exception as error:
            self.note(error)
            raise

    async def __aenter__(self) -> Any:
        try:
            return self._entered(await self.manager.__aenter__())
        except Exception as error:
            self.note(error)
            raise

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> Any:
        self.note(error)
        return self.manager.__exit__(kind, error, traceback)

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> Any:
        self.note(error)
        return await self.manager.__aexit__(kind, error, traceback)
