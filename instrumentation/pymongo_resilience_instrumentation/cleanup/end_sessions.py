"""What runs in place of pymongo's endSessions, which its retry loop never sees."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from pymongo.errors import PyMongoError

from pymongo_resilience.faults import logger
from pymongo_resilience.unfinished import closes_a_coroutine
from pymongo_resilience_instrumentation import calls
from pymongo_resilience_instrumentation.calls import BEGINNING

from .work import END_SESSIONS, CleanupCall, EndSessions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from pymongo_resilience_instrumentation.interception.methods import Wrapper
    from pymongo_resilience_instrumentation.runtime import Runtime


def of_a_client(runtime: Runtime, asynchronous: bool) -> Iterator[tuple[str, Wrapper]]:
    """What to wrap of a client's class, and with what."""
    yield "_end_sessions", (_async_end_sessions if asynchronous else _end_sessions)(runtime)
    yield "_conn_for_reads", _async_conn_for_reads if asynchronous else _conn_for_reads


def _end_sessions(runtime: Runtime) -> Wrapper:
    def wrapper(
        wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        work, around = BEGINNING, calls.found()
        try:
            work = _begin_end_sessions(runtime, client)
            if work is None:
                return wrapped(*args, **kwargs)

            def send() -> None:
                work.call.swallowed = None
                with work.limit():
                    wrapped(*args, **kwargs)
                if work.call.swallowed is not None:
                    raise work.call.swallowed

            work.send = send
            try:
                # What the driver ignores is ignored.
                with suppress(PyMongoError):
                    runtime.executor.run(work)
            finally:
                _finish_end_sessions(runtime, work)
        except BaseException as error:
            calls.undo(work.call if isinstance(work, EndSessions) else work, around, error)
            raise
        return None

    return wrapper


def _async_end_sessions(runtime: Runtime) -> Wrapper:
    async def wrapper(
        wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        work, around = BEGINNING, calls.found()
        try:
            work = _begin_end_sessions(runtime, client)
            if work is None:
                return await wrapped(*args, **kwargs)

            async def send() -> None:
                work.call.swallowed = None
                with work.limit():
                    await wrapped(*args, **kwargs)
                if work.call.swallowed is not None:
                    raise work.call.swallowed

            work.send = send
            try:
                # What the driver ignores is ignored.
                with suppress(PyMongoError):
                    await runtime.async_executor.run(work)
            finally:
                _finish_end_sessions(runtime, work)
        except BaseException as error:
            calls.undo(work.call if isinstance(work, EndSessions) else work, around, error)
            raise
        return None

    return wrapper


def _begin_end_sessions(runtime: Runtime, client: Any) -> EndSessions | None:
    if not runtime.enabled_flag.acts():
        return None
    around = calls.found()
    if calls.reporting():
        return None
    try:
        call = CleanupCall(client, END_SESSIONS, "admin", None)
        work = EndSessions(
            call, runtime.rules, runtime.executor.clock, runtime.budgets.of(call.client)
        )
        runtime.enter(call)
        runtime.start_span(call)
        return work  # noqa: TRY300 - a signal handler's exception may strike here, too
    except Exception:
        calls.unwind(around)
        logger.exception("internal error in pymongo-resilience before %s", END_SESSIONS)
        return None


def _finish_end_sessions(runtime: Runtime, work: EndSessions) -> None:
    raised = sys.exception()
    runtime.end(work.call, raised if closes_a_coroutine(raised) else work.call.swallowed)
    # Nothing may keep the closed client alive: neither the closure nor the error's frames.
    del work.send
    work.call.swallowed = None


def _conn_for_reads(
    wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    call = _ending_sessions(client)
    if call is None:
        return wrapped(*args, **kwargs)

    @contextmanager
    def noticing() -> Iterator[Any]:
        try:
            with wrapped(*args, **kwargs) as (connection, preference):
                call.address = connection.address
                yield connection, preference
        except Exception as error:
            call.swallowed = error
            raise

    return noticing()


async def _async_conn_for_reads(
    wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    call = _ending_sessions(client)
    if call is None:
        return await wrapped(*args, **kwargs)

    @asynccontextmanager
    async def noticing() -> AsyncIterator[Any]:
        try:
            async with await wrapped(*args, **kwargs) as (connection, preference):
                call.address = connection.address
                yield connection, preference
        except Exception as error:
            call.swallowed = error
            raise

    return noticing()


def _ending_sessions(client: Any) -> CleanupCall | None:
    call = calls.current()
    if not isinstance(call, CleanupCall) or call.operation != END_SESSIONS:
        return None
    return call if call.client is client else None
