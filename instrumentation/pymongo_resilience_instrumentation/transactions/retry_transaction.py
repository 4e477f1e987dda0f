"""``retry_transaction(client)``: what with_transaction does, for code that is no callback."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pymongo import AsyncMongoClient
from pymongo.client_session import TransactionOptions  # type: ignore[attr-defined]  # in its __all__
from pymongo.errors import InvalidOperation

from pymongo_resilience.closed_coroutines import closes_a_coroutine
from pymongo_resilience.policies import blocks
from pymongo_resilience.policies.policy import NOTHING
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.interception.steps import run, run_async
from pymongo_resilience_instrumentation.timeouts import transaction_timeouts
from pymongo_resilience_instrumentation.timeouts.transaction_timeouts import TransactionDeadline

from .transaction_repeats import Repetition
from .unfinished_sessions import end_unfinished

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from pymongo_resilience_instrumentation.interception.steps import Steps
    from pymongo_resilience_instrumentation.runtime import Runtime

T = TypeVar("T")


class Transactions:
    """The attempts at one transaction, for one thread or task; or a decorator, for any."""

    def __init__(
        self, client: Any, options: dict[str, Any], runtime: Callable[[], Runtime | None]
    ) -> None:
        """``runtime``: looked up when the first attempt begins; None while the library is off.

        Raises pymongo's error for wrong ``options``, which the first attempt would else raise.
        """
        TransactionOptions(**options)
        self._client = client
        self._options = options
        self._runtime = runtime
        self._asynchronous = isinstance(client, AsyncMongoClient)
        self._repetition: Repetition | None = None
        self._deadline: TransactionDeadline | None = None
        self._over = False
        self._entered = False
        """The last attempt was."""

    def __call__(self, function: Callable[..., T]) -> Callable[..., T]:
        is_coroutine = inspect.iscoroutinefunction(function)
        generates = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        if generates or is_coroutine is not self._asynchronous:
            expected = "a coroutine function" if self._asynchronous else "an ordinary function"
            raise TypeError(f"retry_transaction() of this client decorates {expected}")
        around: Any = self._around_coroutine if is_coroutine else self._around_function
        made: Callable[..., T] = functools.wraps(function)(around(function))
        return made

    def _around_function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*args: Any, **kwargs: Any) -> Any:
            for attempt in Transactions(self._client, self._options, self._runtime):
                with attempt as session:
                    result = function(*args, **kwargs, session=session)
            return result

        return inner

    def _around_coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def inner(*args: Any, **kwargs: Any) -> Any:
            async for attempt in Transactions(self._client, self._options, self._runtime):
                async with attempt as session:
                    result = await function(*args, **kwargs, session=session)
            return result

        return inner

    def __iter__(self) -> Self:
        self.refuse_other_api(asynchronous=False)
        return self

    def __aiter__(self) -> Self:
        self.refuse_other_api(asynchronous=True)
        return self

    def refuse_other_api(self, *, asynchronous: bool) -> None:
        """Raises TypeError where the client's API is not the caller's."""
        if self._asynchronous is asynchronous:
            return
        if self._asynchronous:
            raise TypeError("an AsyncMongoClient's transaction needs `async for` and `async with`")
        raise TypeError("a MongoClient's transaction needs `for` and `with`")

    def __next__(self) -> Attempt:
        if self._over:
            self._refuse_unused()
            raise StopIteration
        repetition = self._begun()
        if repetition.delay > 0:
            repetition.clock.sleep(repetition.delay)
        return self._next(repetition)

    async def __anext__(self) -> Attempt:
        if self._over:
            self._refuse_unused()
            raise StopAsyncIteration
        repetition = self._begun()
        if repetition.delay > 0:
            await repetition.clock.sleep_async(repetition.delay)
        return self._next(repetition)

    def _begun(self) -> Repetition:
        if self._repetition is not None:
            return self._repetition
        runtime = self._runtime()
        if runtime is not None:
            seconds, _ = runtime.timeouts.of_several(self._client, ("", None), NOTHING)
            if seconds is not None:
                timeout = driver.csot.Timeout.begin(seconds)
                self._deadline = TransactionDeadline(timeout, blocks.timed(), driver.csot.now())
        self._repetition = Repetition(self._client, self._options, runtime, None)
        return self._repetition

    def _next(self, repetition: Repetition) -> Attempt:
        # Until its block has been left with an error that allows another one.
        self._over, self._entered = True, False
        return Attempt(self, repetition, self._client.start_session())

    def _refuse_unused(self) -> None:
        """What ran in place of the block was no transaction."""
        if not self._entered:
            raise InvalidOperation("no transaction was made: it needs `with attempt as session`")

    def begin(self, repetition: Repetition, session: Any) -> Steps:
        self._entered = True
        yield from repetition.begin(session)
        if self._deadline is not None:
            transaction_timeouts.enter_transaction(session, self._deadline)

    def end(
        self,
        repetition: Repetition,
        session: Any,
        error: BaseException | None,
        sleep: Callable[..., Any],
    ) -> Steps:
        """Whether ``error`` is dealt with: the transaction is repeated."""
        transaction_timeouts.leave_transaction(session)
        deadline = self._deadline
        as_it_is = driver.csot.within(math.inf)
        in_force = as_it_is if deadline is None else deadline.timeout.resume()
        try:
            with in_force:
                again = yield from repetition.end(session, error, sleep)
        except BaseException as raised:
            # An exception of a signal handler may have struck as it was left.
            in_force.__exit__(None, raised, None)
            raise
        self._over = not again
        return again


class Attempt:
    """``with attempt as session``: the transaction begins, and is committed or aborted."""

    def __init__(self, transactions: Transactions, repetition: Repetition, session: Any) -> None:
        self._transactions = transactions
        self._repetition = repetition
        self._session = session
        self._loop: asyncio.AbstractEventLoop | None = None

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no {name}: the session is in `with attempt as session`")

    def __enter__(self) -> Any:
        self._transactions.refuse_other_api(asynchronous=False)
        try:
            run(self._transactions.begin(self._repetition, self._session))
        except BaseException:
            self._session.end_session()
            raise
        return self._session

    def __exit__(
        self,
        _type: type[BaseException] | None,
        error: BaseException | None,
        _: TracebackType | None,
    ) -> bool:
        try:
            try:
                return bool(run(self._end(error, self._repetition.clock.sleep)))
            finally:
                self._session.end_session()
        finally:
            end_unfinished(self._session, None)

    async def __aenter__(self) -> Any:
        self._transactions.refuse_other_api(asynchronous=True)
        self._loop = asyncio.get_running_loop()
        try:
            await run_async(self._transactions.begin(self._repetition, self._session))
        except BaseException:
            end_unfinished(self._session, self._loop)
            raise
        return self._session

    async def __aexit__(
        self,
        _type: type[BaseException] | None,
        error: BaseException | None,
        _: TracebackType | None,
    ) -> bool:
        try:
            try:
                if closes_a_coroutine(error):
                    return False  # nothing may be awaited any more
                steps = self._end(error, self._repetition.clock.sleep_async)
                again = bool(await run_async(steps))
            except BaseException as raised:
                if not closes_a_coroutine(raised):
                    await self._session.end_session()
                raise
            await self._session.end_session()
            return again
        finally:
            end_unfinished(self._session, self._loop)

    def _end(self, error: BaseException | None, sleep: Callable[..., Any]) -> Steps:
        return self._transactions.end(self._repetition, self._session, error, sleep)
