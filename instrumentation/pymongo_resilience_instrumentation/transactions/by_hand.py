"""``retry_transaction(client)``: what with_transaction does, for code that is no callback."""

from __future__ import annotations

import random
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from pymongo_resilience import blocks, transactions
from pymongo_resilience.clock import MonotonicClock
from pymongo_resilience.errors import OperationTimeoutError
from pymongo_resilience.transactions import Repeat
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.failures import classify
from pymongo_resilience_instrumentation.timeouts import transaction_timeouts
from pymongo_resilience_instrumentation.timeouts.errors import timed_out
from pymongo_resilience_instrumentation.timeouts.transaction_timeouts import TransactionDeadline

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import TracebackType

    from pymongo_resilience.clock import Clock


class Transactions:
    """The attempts at one transaction. For one thread or task."""

    def __init__(
        self,
        client: Any,
        options: dict[str, Any],
        seconds: Callable[[], float | None],
        clock: Clock | None = None,
    ) -> None:
        """``seconds``: the timeout of all attempts; it is looked up when the first one begins."""
        self._client = client
        self._options = options
        self._seconds = seconds
        self._clock = clock or MonotonicClock()
        self._asynchronous = isinstance(client, AsyncMongoClient)
        self._deadline: TransactionDeadline | None = None
        self._ends = 0.0
        self._attempts = 0
        self._over = False
        self._last: BaseException | None = None

    def __iter__(self) -> Self:
        if self._asynchronous:
            raise TypeError("an AsyncMongoClient's transaction needs `async for` and `async with`")
        return self

    def __aiter__(self) -> Self:
        if not self._asynchronous:
            raise TypeError("a MongoClient's transaction needs `for` and `with`")
        return self

    def __next__(self) -> Attempt:
        if self._over:
            raise StopIteration
        if pause := self._pause():
            self._clock.sleep(pause)
        return self._next()

    async def __anext__(self) -> Attempt:
        if self._over:
            raise StopAsyncIteration
        if pause := self._pause():
            await self._clock.sleep_async(pause)
        return self._next()

    def _next(self) -> Attempt:
        self._attempts += 1
        # Until its block has been left with an error that allows another one.
        self._over = True
        return Attempt(self, self._client.start_session())

    def _pause(self) -> float:
        if self._attempts == 0:
            self._ends = self._clock.now() + transactions.TIME_LIMIT
            seconds = self._seconds()
            if seconds is not None:
                timeout = driver.deadline.Timeout.begin(seconds)
                self._deadline = TransactionDeadline(timeout, blocks.timed(), driver.deadline.now())
            return 0.0
        pause, last = transactions.pause(self._attempts, random.random), self._last
        self._last = None
        if last is not None and not self._lasts(pause):
            self._over = True
            raise self._timed_out(last)
        return pause

    def _lasts(self, pause: float = 0.0) -> bool:
        if self._deadline is not None:
            return self._deadline.timeout.ends - driver.deadline.now() > pause
        return self._ends - self._clock.now() > pause

    def _timed_out(self, error: BaseException) -> BaseException:
        deadline = self._deadline
        if deadline is None or not isinstance(error, PyMongoError):
            return error
        if not deadline.timeout.seconds or isinstance(error, OperationTimeoutError):
            return error
        return timed_out(
            error,
            timeout_s=deadline.timeout.seconds,
            elapsed_s=driver.deadline.now() - deadline.began,
            attempts=self._attempts,
            name="retry_transaction",
            reasons=getattr(error, "retry_reasons", ()),
            server=getattr(error, "server", None),
            stage=classify.stage_of(error),
        )

    def begin(self, session: Any) -> Generator[Callable[[], Any], Any, bool]:
        """Its steps are called, and in the async API awaited; as those of ``end``."""
        yield partial(session.start_transaction, **self._options)
        if self._deadline is not None:
            transaction_timeouts.enter_transaction(session, self._deadline)
        return True

    def end(
        self, session: Any, error: BaseException | None
    ) -> Generator[Callable[[], Any], Any, bool]:
        """Whether ``error`` is dealt with: the transaction is repeated."""
        transaction_timeouts.leave_transaction(session)
        if error is not None:
            if session.in_transaction:
                yield session.abort_transaction
            return self._repeats(error) is Repeat.TRANSACTION
        while session.in_transaction or error is not None:
            try:
                yield session.commit_transaction
            except PyMongoError as failed:
                error = failed
                what = self._repeats(error, committing=True)
                if what is Repeat.NOTHING:
                    raise
                if what is Repeat.TRANSACTION:
                    return True
            else:
                break
        return False

    def _repeats(self, error: BaseException, *, committing: bool = False) -> Repeat:
        """Raises what the transaction ends with, where it is out of time."""
        if not isinstance(error, PyMongoError):
            return Repeat.NOTHING
        code = getattr(error, "code", None)
        what = transactions.repeat(error.has_error_label, code, committing=committing)
        if what is Repeat.NOTHING:
            return what
        if not self._lasts():
            ended = self._timed_out(error)
            if ended is error:
                return Repeat.NOTHING
            raise ended
        if what is Repeat.TRANSACTION:
            self._last, self._over = error, False
        return what

    def in_force(self) -> Any:
        """The deadline, for the commit and the abort."""
        return nullcontext() if self._deadline is None else self._deadline.timeout.resume()


class Attempt:
    """``with attempt as session``: the transaction begins, and is committed or aborted."""

    def __init__(self, transactions: Transactions, session: Any) -> None:
        self._transactions = transactions
        self._session = session

    def __enter__(self) -> Any:
        _run(self._transactions.begin(self._session))
        return self._session

    def __exit__(
        self,
        _type: type[BaseException] | None,
        error: BaseException | None,
        _: TracebackType | None,
    ) -> bool:
        try:
            with self._transactions.in_force():
                return _run(self._transactions.end(self._session, error))
        finally:
            self._session.end_session()

    async def __aenter__(self) -> Any:
        await _run_async(self._transactions.begin(self._session))
        return self._session

    async def __aexit__(
        self,
        _type: type[BaseException] | None,
        error: BaseException | None,
        _: TracebackType | None,
    ) -> bool:
        try:
            with self._transactions.in_force():
                return await _run_async(self._transactions.end(self._session, error))
        finally:
            await self._session.end_session()


def _run(steps: Generator[Callable[[], Any], Any, bool]) -> bool:
    try:
        step = next(steps)
        while True:
            try:
                step()
            except BaseException as error:  # noqa: BLE001 - the steps decide
                step = steps.throw(error)
            else:
                step = next(steps)
    except StopIteration as over:
        return bool(over.value)


async def _run_async(steps: Generator[Callable[[], Any], Any, bool]) -> bool:
    try:
        step = next(steps)
        while True:
            try:
                await step()
            except BaseException as error:  # noqa: BLE001 - the steps decide
                step = steps.throw(error)
            else:
                step = next(steps)
    except StopIteration as over:
        return bool(over.value)
