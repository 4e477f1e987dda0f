"""Transactions that are repeated as a whole: ``retry_transaction()``, and the atomic writes.

All attempts have one session: a new transaction ends one that could not be aborted. However they
end, so does the session; an open transaction is aborted then.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.client_session import TransactionOptions  # type: ignore[attr-defined]  # in its __all__
from pymongo.errors import ClientBulkWriteException, PyMongoError, WriteConcernError

from pymongo_resilience.clock import Deadline
from pymongo_resilience.errors import OperationTimeoutError
from pymongo_resilience.events import RetryDeclined, RetryScheduled, of_both_events
from pymongo_resilience.internal_errors import is_closing
from pymongo_resilience.policies import blocks
from pymongo_resilience.policies.blocks import override
from pymongo_resilience.policies.policy import NOTHING
from pymongo_resilience.rules import retry_rules
from pymongo_resilience.rules.explanations import COMMITTED, UNKNOWN_COMMIT, why_not_repeated
from pymongo_resilience.rules.failure import Failure, RetryReason, Stage
from pymongo_resilience.rules.retried_operation import Kind, Operation
from pymongo_resilience.rules.retry_rules import GiveUp, Repeat, Retry, Rule
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.calls import Call
from pymongo_resilience_instrumentation.clients.background_work import leave_open
from pymongo_resilience_instrumentation.deferred import defer
from pymongo_resilience_instrumentation.driver.csot import Timeout
from pymongo_resilience_instrumentation.failures import classify
from pymongo_resilience_instrumentation.failures.error_texts import Origin, state_origin
from pymongo_resilience_instrumentation.runtime import Runtime
from pymongo_resilience_instrumentation.telemetry import operation_spans, transaction_spans
from pymongo_resilience_instrumentation.timeouts import precedence
from pymongo_resilience_instrumentation.timeouts.timeout_errors import timed_out

NO_TIMEOUT = Timeout(None, math.inf)
_restored = driver.sessions.restored_if_interrupted


class Once:
    """A strategy that repeats nothing."""

    def retry_after(self, operation: Operation, failure: Failure) -> None: ...


class Repetition:
    """The decisions on one transaction, for one thread or task."""

    def __init__(
        self,
        client: Any,
        options: dict[str, Any],
        runtime: Runtime,
        timeout: Timeout,
        call: Call | None = None,
    ) -> None:
        """``options``: of ``start_transaction``. ``call``: the operation that is a transaction as a
        whole; None for several operations."""
        self.client = client
        self.options = options
        self.timeout = timeout
        self._call = call
        self._method = "retry_transaction" if call is None else call.method
        self._executor = runtime.executor
        self.clock = self._executor.clock
        self._client_limits = runtime.limits.of(client)
        self._operation = Operation(
            "transaction" if call is None else call.operation,
            "admin" if call is None else call.namespace,
            Kind.TRANSACTION,
            runtime.rules.strategy,
            method=self._method,
            budget=self._client_limits.budget,
            max_retries=driver.clients.max_retries(client),
        )
        if timeout.ends == math.inf:
            window = Deadline.after(self.clock, retry_rules.TRANSACTION_TIME_LIMIT)
            self._operation.retry_window = window
        self._began = driver.csot.now()
        self._scheduled: RetryScheduled | None = None
        self._declined: tuple[Failure, Rule, str] | None = None
        self.part: Failure | None = None
        """What its last failed command left to this decision."""
        self.follows, self.delay = Repeat.TRANSACTION, 0.0
        """What is to be done next, or again; and after how many seconds."""

    def begun(self, session: Any) -> None:
        span = transaction_spans.span_of(session)
        if span is not None and self._scheduled is not None:
            operation_spans.add_decision(span.span, self._scheduled)

    def around_abort(self) -> AbstractContextManager[object]:
        """An abort that another attempt follows is sent once: that one's number ends what it could
        not. The last abort has the whole timeout again: not sent, it leaves the transaction open.
        """
        if self.follows is Repeat.TRANSACTION:
            return override(strategy=Once())
        seconds = self.timeout.seconds
        if self.follows is not Repeat.NOTHING or not seconds:
            return nullcontext()
        return Timeout.from_now(seconds).resume()

    def decide(self, error: BaseException) -> None:
        """Set what ``follows`` after an error of the body, or of the commit."""
        committing = self.follows is Repeat.COMMIT
        self.follows = Repeat.NOTHING
        if not isinstance(error, PyMongoError):
            return
        part, self.part = self.part, None
        cause = error.error if isinstance(error, ClientBulkWriteException) else None
        if not isinstance(cause, PyMongoError):
            cause = error
        if part is not None and part.error not in (error, cause):
            part = None
        failure = self._described(error) if part is None else part
        # A reply with a writeConcernError shows that the commit ran.
        applied = committing and isinstance(cause, WriteConcernError)
        what = retry_rules.what_to_repeat(
            cause.has_error_label, failure.code, committing=committing, applied=applied
        )
        operation = self._operation
        if self.timeout.ends != math.inf:
            now = self.clock.now()  # read first, as in deadline_on()
            left = self.timeout.ends - driver.csot.now()
            operation.deadline = Deadline(self.clock, now + left, self.timeout.seconds or 0.0)
        verdict = retry_rules.transaction_verdict(
            self._executor.retry_rules, operation, failure, what
        )
        facts = of_both_events(operation, failure)
        if isinstance(verdict, Retry) and not self._client_limits.budget.spend(failure):
            verdict = GiveUp(Rule.BUDGET)
        if isinstance(verdict, Retry):
            self.follows, self.delay = what, verdict.delay
            self._scheduled = RetryScheduled(
                *facts, verdict.delay, failure.error_name, verdict.held_back
            )
            self._executor.listener.on_event(self._scheduled)
            return
        rule, why = verdict.rule, why_not_repeated(verdict.rule, operation, failure)
        if part is not None or what is not Repeat.NOTHING:
            self._executor.listener.on_event(RetryDeclined(*facts, rule, why, failure.error_name))
        if applied:
            why = COMMITTED
        elif committing and error.has_error_label(retry_rules.UNKNOWN_COMMIT):
            why = UNKNOWN_COMMIT
        self._declined = failure, rule, why

    def _described(self, error: PyMongoError) -> Failure:
        """The facts of an error raised outside of the driver's loop, or in a call of its own."""
        server = classify.attribute(error, "server")
        if self._call is not None:
            server = self._call.history.server_text()
        attempt = classify.Attempt(
            reached_connection=classify.stage_of(error) is not Stage.NOT_SENT,
            carried_txn_number=False,
            server=server,
            min_rtt=driver.csot.min_rtt(),
        )
        return classify.failure_of(error, attempt)

    def final(self, error: BaseException) -> BaseException:
        """The error to raise, after a decision that nothing follows."""
        declined, self._declined = self._declined, None
        if declined is None or not isinstance(error, PyMongoError):
            return error
        failure, rule, why = declined
        deadline, attempts = self._operation.deadline, self._operation.attempts
        reasons: Sequence[RetryReason] = self._operation.reasons[:-1]
        if self._call is not None:
            # Those of its commands as well, such as a commit's.
            attempts, reasons = self._call.history.attempts, self._call.history.reasons
        origin = Origin(failure.server, failure.stage, attempts, reasons)
        if rule is Rule.DEADLINE and deadline is not None:
            if isinstance(error, OperationTimeoutError):
                return error
            elapsed = driver.csot.now() - self._began
            return timed_out(
                error,
                origin,
                timeout_s=deadline.timeout,
                elapsed_s=max(elapsed, deadline.timeout - deadline.remaining()),
                name=self._method,
                advice=f", and {why}," if why in (UNKNOWN_COMMIT, COMMITTED) else "",
            )
        if self._call is not None:
            state_origin(error, origin, rule, why)
            self._call.history.final_error = error
        return error


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
    """The same in a task. Where the coroutine is closed, nothing can be awaited any more."""
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
        self, client: Any, options: dict[str, Any], in_force: Callable[[], Runtime | None]
    ) -> None:
        """``in_force``: called when a transaction begins. While it returns None, the library is
        off, and pymongo's with_transaction does the same."""
        TransactionOptions(**options)  # raises for wrong ones
        self._client = client
        self._options = options
        self._in_force = in_force
        self._asynchronous = isinstance(client, AsyncMongoClient)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        is_coroutine = inspect.iscoroutinefunction(function)
        generates = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        if generates or is_coroutine is not self._asynchronous:
            expected = "a coroutine function" if self._asynchronous else "an ordinary function"
            raise TypeError(f"retry_transaction() of this client takes {expected}")

        @functools.wraps(function)
        def transaction(*args: Any, **kwargs: Any) -> Any:
            def body(session: Any) -> Any:
                return function(session, *args, **kwargs)

            runtime, session = self._in_force(), self._client.start_session()
            if runtime is None:
                with session:
                    return session.with_transaction(body, **self._options)
            with Timeout.in_force().resume():
                return repeat(self._begin(runtime, session), session, body)

        @functools.wraps(function)
        async def async_transaction(*args: Any, **kwargs: Any) -> Any:
            async def body(session: Any) -> Any:
                return await function(session, *args, **kwargs)

            runtime, session = self._in_force(), self._client.start_session()
            if runtime is None:
                async with session:
                    return await session.with_transaction(body, **self._options)
            with Timeout.in_force().resume():
                return await repeat_async(self._begin(runtime, session), session, body)

        return async_transaction if is_coroutine else transaction

    def _begin(self, runtime: Runtime, session: Any) -> Repetition:
        timeout = NO_TIMEOUT
        seconds, _ = runtime.timeouts.of_several(self._client, ("", None), NOTHING)
        if seconds is not None:
            timeout = Timeout.begin(seconds)
            deadline = precedence.TransactionDeadline(timeout, blocks.timed(), driver.csot.now())
            precedence.enter_transaction(session, deadline)
        return Repetition(self._client, self._options, runtime, timeout)
