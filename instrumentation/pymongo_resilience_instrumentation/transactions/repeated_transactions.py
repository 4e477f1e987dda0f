"""Transactions that are repeated as a whole: ``retry_transaction()``, and the atomic writes.

All attempts have one session: a new transaction ends one that could not be aborted. However they
end, so does the session; an open transaction is aborted then.
"""

from __future__ import annotations

import functools
import inspect
import math
from functools import partial
from typing import TYPE_CHECKING, Any

from pymongo import AsyncMongoClient
from pymongo.client_session import TransactionOptions  # type: ignore[attr-defined]  # in its __all__

from pymongo_resilience.internal_errors import is_closing
from pymongo_resilience.policies import blocks
from pymongo_resilience.policies.policy import NOTHING
from pymongo_resilience.rules.retry_rules import Repeat
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.clients.background_work import leave_open
from pymongo_resilience_instrumentation.deferred import defer
from pymongo_resilience_instrumentation.driver.csot import Timeout
from pymongo_resilience_instrumentation.timeouts.precedence import (
    TransactionDeadline,
    enter_transaction,
)

from .repetition import Repetition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pymongo_resilience_instrumentation.runtime import Runtime

NO_TIMEOUT = Timeout(None, math.inf)
_restored = driver.sessions.restored_if_interrupted


def repeat(repetition: Repetition, session: Any, body: Callable[[Any], Any]) -> Any:
    """Run ``body`` with the session, in a transaction, until one is committed: its result."""
    try:
        while True:
            try:
                if repetition.follows is Repeat.TRANSACTION:
                    session.start_transaction(**repetition.options)
                    repetition.begun(session)
                    result = body(session)
                if session.in_transaction or repetition.follows is Repeat.COMMIT:
                    repetition.follows = Repeat.COMMIT
                    with _restored(session):
                        session.commit_transaction()
                break
            except BaseException as error:  # noqa: BLE001 - whatever ends it, it is aborted
                repetition.decide(error)
                if session.in_transaction:
                    with repetition.around_abort(), _restored(session):
                        session.abort_transaction()
                if repetition.follows is Repeat.NOTHING:
                    raise repetition.final(error)  # noqa: B904 - mostly the error itself
            if repetition.delay > 0:
                repetition.clock.sleep(repetition.delay)
        return result
    finally:
        opened = driver.sessions.open_transaction(session)
        try:
            session.end_session()
        except BaseException:
            leave_open(repetition.client, opened)
            raise


async def repeat_async(
    repetition: Repetition, session: Any, body: Callable[[Any], Awaitable[Any]]
) -> Any:
    """As ``repeat``. Where the coroutine is closed, nothing can be awaited any more."""
    try:
        while True:
            try:
                if repetition.follows is Repeat.TRANSACTION:
                    await session.start_transaction(**repetition.options)
                    repetition.begun(session)
                    result = await body(session)
                if session.in_transaction or repetition.follows is Repeat.COMMIT:
                    repetition.follows = Repeat.COMMIT
                    with _restored(session):
                        await session.commit_transaction()
                break
            except BaseException as error:
                if is_closing(error):
                    raise
                repetition.decide(error)
                if session.in_transaction:
                    with repetition.around_abort(), _restored(session):
                        await session.abort_transaction()
                if repetition.follows is Repeat.NOTHING:
                    raise repetition.final(error)  # noqa: B904 - as above
            if repetition.delay > 0:
                await repetition.clock.sleep_async(repetition.delay)
        await _end(session)
        return result  # noqa: TRY300 - the end of the session may be interrupted as well
    except BaseException as error:
        if is_closing(error):
            opened = driver.sessions.open_transaction(session)
            defer(partial(leave_open, repetition.client, opened))
        else:
            await _end(session)
        raise


async def _end(session: Any) -> None:
    opened = driver.sessions.open_transaction(session)
    try:
        await session.end_session()
    except BaseException:
        leave_open(session.client, opened)
        raise


class RetryTransaction:
    """Makes functions transactions. Thread- and task-safe: nothing changes."""

    def __init__(
        self, client: Any, options: dict[str, Any], runtime: Callable[[], Runtime | None]
    ) -> None:
        """``runtime``: looked up when a transaction begins; None while the library is off.

        Raises pymongo's error for wrong ``options``, which the first attempt would else raise.
        """
        TransactionOptions(**options)
        self._client = client
        self._options = options
        self._runtime = runtime
        self._asynchronous = isinstance(client, AsyncMongoClient)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        is_coroutine = inspect.iscoroutinefunction(function)
        generates = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        if generates or is_coroutine is not self._asynchronous:
            expected = "a coroutine function" if self._asynchronous else "an ordinary function"
            raise TypeError(f"retry_transaction() of this client takes {expected}")
        run: Any = repeat_async if is_coroutine else repeat

        @functools.wraps(function)
        def transaction(*args: Any, **kwargs: Any) -> Any:
            with Timeout.in_force().resume():
                return run(*self._begin(), lambda session: function(session, *args, **kwargs))

        @functools.wraps(function)
        async def async_transaction(*args: Any, **kwargs: Any) -> Any:
            with Timeout.in_force().resume():
                return await run(*self._begin(), lambda session: function(session, *args, **kwargs))

        return async_transaction if is_coroutine else transaction

    def _begin(self) -> tuple[Repetition, Any]:
        runtime, timeout, session = self._runtime(), NO_TIMEOUT, self._client.start_session()
        if runtime is not None:
            seconds, _ = runtime.timeouts.of_several(self._client, ("", None), NOTHING)
            if seconds is not None:
                timeout = Timeout.begin(seconds)
                deadline = TransactionDeadline(timeout, blocks.timed(), driver.csot.now())
                enter_transaction(session, deadline)
        return Repetition(self._client, self._options, runtime, timeout), session
