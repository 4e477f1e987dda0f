"""What runs in place of pymongo's killCursors, which its retry loop never sees."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from opentelemetry import context
from opentelemetry.context import Context
from pymongo.errors import PyMongoError

from pymongo_resilience.clock import Postponed
from pymongo_resilience.executor import AsyncExecutor, Executor
from pymongo_resilience.faults import logger
from pymongo_resilience.retry_rules import RetryRules
from pymongo_resilience.unfinished import closes_a_coroutine
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.calls import BEGINNING
from pymongo_resilience_instrumentation.deferred import pending, run_deferred
from pymongo_resilience_instrumentation.transactions import transaction_spans
from pymongo_resilience_instrumentation.transactions.sessions import transaction_of

from .background import BackgroundCall, CloseInBackground, Dropped, NeverWaits
from .work import KILL_CURSORS, CleanupCall, CloseNow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.interception.methods import Wrapper
    from pymongo_resilience_instrumentation.runtime import Runtime


def of_a_client(runtime: Runtime, asynchronous: bool) -> Iterator[tuple[str, Wrapper]]:
    """What to wrap of a client's class, and with what."""
    kill = (_async_kill if asynchronous else _kill)(_Kills(runtime, asynchronous))
    yield "_kill_cursors", kill
    yield "_kill_cursor_impl", kill
    yield "_process_kill_cursors", (_async_background if asynchronous else _background)(runtime)


class _Kills:
    """Makes the work of one killCursors, and knows which executor is to do it."""

    def __init__(self, runtime: Runtime, asynchronous: bool) -> None:
        self.runtime = runtime
        self.now: Any = runtime.async_executor if asynchronous else runtime.executor
        retries, interval = self.now.retry_rules.max_retries, driver.clients.kill_interval()
        # The same rules; only what they call a delay is the time until the next run.
        self.background: Any = (AsyncExecutor if asynchronous else Executor)(
            RetryRules(retries, interval, interval, random=lambda: 1.0),
            NeverWaits(self.now.clock),
            self.now.listener,
        )

    def begin(self, client: Any, args: tuple[Any, ...]) -> tuple[CloseNow, Any] | None:
        """The work and its executor; None where the driver is to go on by itself."""
        if not self.runtime.enabled_flag.acts():
            return None
        around = calls.found()
        try:
            return self._begin(client, *args[:4])
        except Exception:
            calls.unwind(around)
            logger.exception("internal error in pymongo-resilience before %s", KILL_CURSORS)
            return None

    def _begin(
        self,
        client: Any,
        cursor_ids: Any,
        cursor_address: Any,
        _topology: Any = None,
        session: Any = None,
    ) -> tuple[CloseNow, Any] | None:
        if calls.reporting():
            return None
        outer = calls.current()
        if outer is not None and outer.client is not client:
            outer = None
        # Below _kill_cursors the driver calls _kill_cursor_impl: that belongs to the attempt.
        if isinstance(outer, CleanupCall) or cursor_address is None:
            return None
        if isinstance(outer, BackgroundCall) and outer.is_last:
            return None
        runtime = self.runtime
        call = CleanupCall(client, KILL_CURSORS, *driver.clients.cursor_namespace(cursor_address))
        budget = runtime.budgets.of(client)
        facts = (call, runtime.rules, self.now.clock, budget)
        cursors = {"cursor_ids": cursor_ids, "cursor_address": cursor_address}
        work: CloseNow
        work, executor = CloseNow(*facts, **cursors), self.now
        if isinstance(outer, BackgroundCall):
            work, executor = CloseInBackground(*facts, **cursors), self.background
        work.configured = self.now.retry_rules.max_retries
        # CSOT, "Cursor close() methods refresh timeoutMS". What a call closes by itself, or a
        # stream of GridFS, is within that one's own time; with the session of with_transaction, in
        # what is left of that.
        call.transaction = transaction_of(session)
        refreshed = (
            outer is None and call.transaction is None and not driver.deadline.runs_already()
        )
        runtime.enter(call, anew=refreshed)
        if not refreshed and call.transaction is None:
            call.deadline = calls.NO_DEADLINE
        if executor is self.now:
            runtime.start_span(
                call, None if session is None else transaction_spans.parent_of(session)
            )
        return work, executor


def _kill(kills: _Kills) -> Wrapper:
    def wrapper(
        wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        begun, around = BEGINNING, calls.found()
        try:
            begun = kills.begin(client, args)
            if begun is None:
                return wrapped(*args, **kwargs)
            work, executor = begun
            work.send = functools.partial(wrapped, *args, **kwargs)
            try:
                with work.call.deadline:
                    executor.run(work)
                work.succeeded()
                kills.runtime.end(work.call, None)
            except (Postponed, Dropped):
                kills.runtime.end(work.call, None)
            except BaseException as error:
                if not _failed(kills.runtime, work, error):
                    raise
        except BaseException as error:
            calls.undo(begun[0].call if isinstance(begun, tuple) else begun, around, error)
            raise
        return None

    return wrapper


def _async_kill(kills: _Kills) -> Wrapper:
    async def wrapper(
        wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        begun, around = BEGINNING, calls.found()
        try:
            begun = kills.begin(client, args)
            if begun is None:
                return await wrapped(*args, **kwargs)
            work, executor = begun
            work.send = functools.partial(wrapped, *args, **kwargs)
            try:
                with work.call.deadline:
                    await executor.run(work)
                work.succeeded()
                kills.runtime.end(work.call, None)
            except (Postponed, Dropped):
                kills.runtime.end(work.call, None)
            except BaseException as error:
                if not _failed(kills.runtime, work, error):
                    raise
        except BaseException as error:
            calls.undo(begun[0].call if isinstance(begun, tuple) else begun, around, error)
            raise
        return None

    return wrapper


def _failed(runtime: Runtime, work: CloseNow, error: BaseException) -> bool:
    """Whether the background task has the cursors now, and the error is no more the driver's.

    The driver itself would queue them as if they had never been sent.
    """
    if work.call.client is None:
        # It had ended already: what struck is a signal handler's.
        return False
    ends_here = isinstance(error, PyMongoError) and not isinstance(work, CloseInBackground)
    try:
        if ends_here or not isinstance(error, Exception):
            work.leave_to_background()
    except Exception:
        logger.exception("internal error in pymongo-resilience after %s", KILL_CURSORS)
        ends_here = False
    runtime.end(work.call, error)
    return ends_here


def _background(runtime: Runtime) -> Wrapper:
    def wrapper(
        wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        call, around = BEGINNING, calls.found()
        try:
            try:
                call = _begin_background(runtime, client)
                return wrapped(*args, **kwargs)
            finally:
                _leave(call)
        except BaseException as error:
            calls.undo(call, around, error)
            raise

    return wrapper


def _async_background(runtime: Runtime) -> Wrapper:
    async def wrapper(
        wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        call, around = BEGINNING, calls.found()
        try:
            try:
                call = _begin_background(runtime, client)
                return await wrapped(*args, **kwargs)
            finally:
                _leave(call)
        except BaseException as error:
            calls.undo(call, around, error)
            raise

    return wrapper


def _leave(call: Any) -> None:
    if isinstance(call, BackgroundCall):
        unfinished = closes_a_coroutine(sys.exception())
        (calls.leave_unfinished if unfinished else calls.leave)(call)


def _begin_background(runtime: Runtime, client: Any) -> Call | None:
    if not runtime.enabled_flag.acts():
        return None
    around = calls.found()
    try:
        if pending:
            run_deferred()
        call = BackgroundCall(client)
        calls.enter(call)
        if not call.is_last:
            # The task of an async client inherits the span of whoever used the client first.
            call.outer_context = context.get_current()
            context.attach(Context())
    except Exception:
        calls.unwind(around)
        logger.exception("internal error in pymongo-resilience before %s", KILL_CURSORS)
        return None
    return call
