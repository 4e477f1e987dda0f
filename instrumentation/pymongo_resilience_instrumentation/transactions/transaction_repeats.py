"""One transaction that is repeated as a whole: what begins it, what ends it, and what follows."""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from pymongo.errors import ClientBulkWriteException, PyMongoError

from pymongo_resilience.clock import MonotonicClock
from pymongo_resilience.errors import OperationTimeoutError
from pymongo_resilience.rules import transaction_rules
from pymongo_resilience.rules.events import Broadcast, RetryDeclined, RetryScheduled, of_both_events
from pymongo_resilience.rules.failure import Stage
from pymongo_resilience.rules.operation_deadline import Deadline
from pymongo_resilience.rules.retried_operation import Kind, Operation
from pymongo_resilience.rules.retry_rules import Retry, RetryRules, Rule
from pymongo_resilience.rules.rule_texts import why_not_repeated
from pymongo_resilience.rules.strategy import NAMED
from pymongo_resilience.rules.transaction_rules import Repeat
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.failures import classify
from pymongo_resilience_instrumentation.failures.origins import state_origin
from pymongo_resilience_instrumentation.telemetry import transaction_spans
from pymongo_resilience_instrumentation.timeouts.timeout_errors import timed_out

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pymongo_resilience.clock import Clock
    from pymongo_resilience.rules.events import Listener
    from pymongo_resilience.rules.failure import Failure, RetryReason
    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.interception.steps import Steps
    from pymongo_resilience_instrumentation.runtime import Runtime

UNKNOWN = "whether the transaction was committed is unknown"


class Repetition:
    """Its generators yield what is to be called, in the async API awaited. For one thread or task,
    under the deadline that is in force there."""

    def __init__(
        self, client: Any, options: Mapping[str, Any], runtime: Runtime | None, call: Call | None
    ) -> None:
        """``options``: of ``start_transaction``. ``runtime`` is None while the library is off.
        ``call``: the operation that is a transaction as a whole; None for several operations."""
        self._options = options
        self._call = call
        name = "transaction" if call is None else call.operation
        self._method = "retry_transaction" if call is None else call.method
        parts = None if runtime is None else runtime.executor
        self.clock: Clock = MonotonicClock() if parts is None else parts.clock
        self._rules = RetryRules() if parts is None else parts.retry_rules
        self._listener: Listener = Broadcast(()) if parts is None else parts.listener
        self._operation = Operation(
            name,
            "admin" if call is None else call.namespace,
            Kind.TRANSACTION,
            NAMED["fast_fail"] if runtime is None else runtime.rules.strategy,
            method=self._method,
            budget=None if runtime is None else runtime.budgets.of(client),
            max_retries=None if runtime is None else driver.clients.max_retries(client),
        )
        self._window = Deadline.after(self.clock, transaction_rules.TIME_LIMIT)
        self._began = driver.csot.now()
        self._scheduled: RetryScheduled | None = None
        self._final: BaseException | None = None
        self.part: Failure | None = None
        """Of its command that failed last, where that left the decision to this."""
        self.delay = 0.0
        """Seconds before the next attempt."""

    def begin(self, session: Any) -> Steps:
        yield partial(session.start_transaction, **self._options)
        span = transaction_spans.span_of(session)
        if span is not None and self._scheduled is not None:
            span.repeats(self._scheduled)

    def end(self, session: Any, error: BaseException | None, sleep: Callable[..., Any]) -> Steps:
        """Commits it, or after ``error`` aborts it. Whether another attempt follows; raises what it
        ends with, where that is another error. ``sleep``: of the clock."""
        open_state = driver.sessions.state_of_transaction(session)
        if error is not None:
            what = self._decide(error, committing=False)
            if session.in_transaction:
                with self._for_the_abort(what):
                    yield from _finish(session.abort_transaction, session, open_state)
            return self._follows(what, error)
        while session.in_transaction or error is not None:
            try:
                yield from _finish(session.commit_transaction, session, open_state)
            except PyMongoError as failed:
                error = failed
            else:
                break
            what = self._decide(error, committing=True)
            if what is not Repeat.COMMIT:
                if self._follows(what, error):
                    return True
                raise error
            yield partial(sleep, self.delay)
        return False

    def _follows(self, what: Repeat, error: BaseException) -> bool:
        final, self._final = self._final, None
        if final is not None and final is not error:
            raise final
        return what is Repeat.TRANSACTION

    def _for_the_abort(self, what: Repeat) -> AbstractContextManager[None]:
        """The last one has the whole timeout again: not sent, it leaves the transaction open."""
        seconds = driver.csot.Timeout.in_force().seconds
        if what is Repeat.TRANSACTION or not seconds:
            return nullcontext()
        return driver.csot.Timeout.from_now(seconds).resume()

    def _decide(self, error: BaseException, *, committing: bool) -> Repeat:
        """What is repeated, after ``delay`` seconds."""
        if not isinstance(error, PyMongoError):
            return Repeat.NOTHING
        part, self.part = self.part, None
        cause = error.error if isinstance(error, ClientBulkWriteException) else None
        if not isinstance(cause, PyMongoError):
            cause = error
        if part is not None and part.error is not error and part.error is not cause:
            part = None
        failure = self._described(error) if part is None else part
        what = transaction_rules.repeat(cause.has_error_label, failure.code, committing=committing)
        operation = self._operation
        operation.deadline, operation.retry_window = self._limits()
        verdict = transaction_rules.verdict(self._rules, operation, failure, what)
        facts = of_both_events(operation, failure)
        if isinstance(verdict, Retry):
            self.delay = verdict.delay
            self._scheduled = RetryScheduled(
                *facts, verdict.delay, failure.error_name, verdict.held_back
            )
            self._listener.on_event(self._scheduled)
            return what
        rule, why = verdict.rule, why_not_repeated(verdict.rule, operation, failure)
        if part is not None or what is not Repeat.NOTHING:
            self._listener.on_event(RetryDeclined(*facts, rule, why, failure.error_name))
        unknown = committing and error.has_error_label(transaction_rules.UNKNOWN_COMMIT)
        self._final = self._ends_with(error, failure, rule, UNKNOWN if unknown else why)
        return Repeat.NOTHING

    def _described(self, error: PyMongoError) -> Failure:
        """Of an error that was raised outside of the driver's loop, or in a call of its own."""
        server = classify.attribute(error, "server")
        if self._call is not None:
            server = driver.retry_loop.address_of(self._call.selected)
        attempt = classify.Attempt(
            reached_connection=classify.stage_of(error) is not Stage.NOT_SENT,
            carried_txn_number=False,
            server=server,
            min_rtt=driver.csot.min_rtt(),
        )
        return classify.failure_of(error, attempt)

    def _limits(self) -> tuple[Deadline | None, Deadline | None]:
        timeout = driver.csot.Timeout.in_force()
        if timeout.ends == math.inf:
            return None, self._window
        now = self.clock.now()  # read first, as in deadline_on()
        left = timeout.ends - driver.csot.now()
        return Deadline(self.clock, now + left, timeout.seconds or 0.0), None

    def _ends_with(
        self, error: PyMongoError, failure: Failure, rule: Rule, why: str
    ) -> PyMongoError:
        deadline, attempts = self._operation.deadline, self._operation.attempts
        reasons: Sequence[RetryReason] = self._operation.reasons[:-1]
        if self._call is not None:
            # Those of its commands as well, such as a commit's.
            attempts, reasons = 1 + len(self._call.reasons), self._call.reasons
        if rule is Rule.DEADLINE and deadline is not None:
            if isinstance(error, OperationTimeoutError):
                return error
            return timed_out(
                error,
                timeout_s=deadline.timeout,
                elapsed_s=max(
                    driver.csot.now() - self._began, deadline.timeout - deadline.remaining()
                ),
                attempts=attempts,
                name=self._method,
                reasons=reasons,
                server=failure.server,
                stage=failure.stage,
                advice=f", and {UNKNOWN}," if why is UNKNOWN else "",
            )
        if self._call is not None:
            server = failure.server
            state_origin(
                error, server=server, attempts=attempts, reasons=reasons, rule=rule, why=why
            )
            self._call.final_error = error if isinstance(error, Exception) else None
        return error


def _finish(send: Callable[[], Any], session: Any, open_state: Any) -> Steps:
    """A commit or an abort. Interrupted, it may not even have been sent, and the driver takes it
    for done: the transaction is open again, and aborted as its session ends."""
    try:
        yield send
    except PyMongoError:
        raise
    except BaseException:
        driver.sessions.set_state_of_transaction(session, open_state)
        raise
