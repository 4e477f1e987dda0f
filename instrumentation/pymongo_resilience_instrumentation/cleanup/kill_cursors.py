"""killCursors: of a cursor's ``close()``, and of a client's background task.

That task also keeps the pools and must not sleep: a repetition is one more place in its own queue,
for its next run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from bson.int64 import Int64
from opentelemetry import context
from opentelemetry.context import Context
from pymongo.errors import PyMongoError

from pymongo_resilience import blocks
from pymongo_resilience.clock import Postponed
from pymongo_resilience.deadline import Deadline
from pymongo_resilience.executor import AsyncExecutor, Executor
from pymongo_resilience.faults import logger
from pymongo_resilience.retry_rules import RetryRules, Rule
from pymongo_resilience.unfinished import closes_a_coroutine
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.calls import NO_DEADLINE
from pymongo_resilience_instrumentation.deferred import pending, run_deferred
from pymongo_resilience_instrumentation.interception.interceptor import Interceptor
from pymongo_resilience_instrumentation.interception.shield import shielded
from pymongo_resilience_instrumentation.telemetry import transaction_spans
from pymongo_resilience_instrumentation.timeouts.transaction_timeouts import transaction_of

from .commands import Cleanup, CleanupCall, CleanupInterceptor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from pymongo_resilience.budget import RetryBudget
    from pymongo_resilience.clock import Clock
    from pymongo_resilience.failure import Failure
    from pymongo_resilience.namespaces import NamespaceRules
    from pymongo_resilience.operation import Operation
    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.runtime import Runtime

KILL_CURSORS = "killCursors"
MOST_REQUEUES = 5
"""How often the background task takes up a cursor again."""


class RequeuedId(Int64):
    """A cursor's id in the background task's queue that knows how often it was sent in vain.

    So the count lives as long as the entry does, and nothing else has to be kept or cleaned up.
    """

    requeues: int

    def __new__(cls, cursor_id: int, requeues: int) -> RequeuedId:
        made = super().__new__(cls, cursor_id)
        made.requeues = requeues
        return made


class CloseNow(Cleanup):
    """The killCursors of a cursor's ``close()``."""

    def __init__(
        self,
        call: CleanupCall,
        executor: Any,
        rules: NamespaceRules,
        budget: RetryBudget | None,
        *,
        ids: Sequence[int],
        address: Any,
    ) -> None:
        super().__init__(call, executor, rules, budget)
        call.address = tuple(address)
        self._client = call.client
        self._ids = ids
        self._cursor_address = address
        self._attempts = 0
        self._out_of_attempts = False
        self._judged: Operation | None = None
        own = driver.clients.max_retries(call.client)
        self._most = min(MOST_REQUEUES, executor.retry_rules.max_retries if own is None else own)

    @property
    def deadline(self) -> AbstractContextManager[None]:
        return self.call.deadline

    def attempt(self) -> Any:
        self._attempts += 1
        return self.send()

    def operation(self) -> Operation:
        clock, deadline = self.executor.clock, None
        timeout, left = driver.deadline.timeout_in_force(), driver.deadline.remaining()
        if timeout is not None and left is not None:
            deadline = Deadline(clock, clock.now() + left, timeout)
        self._judged = self._operation(
            enabled=self._client.options.retry_reads, block=blocks.current(), deadline=deadline
        )
        return self._judged

    def final_error(self, failure: Failure, rule: Rule, operation: Operation) -> Exception:
        self._out_of_attempts = rule is Rule.ATTEMPTS
        return super().final_error(failure, rule, operation)

    def succeeded(self) -> None:
        """The cursors are gone."""

    def failed(self, error: BaseException) -> bool:
        """Whether the background task has the cursors now, and the error is no more the driver's,
        which would queue them as if they had never been sent.

        It has what is left of the attempts: of an overloaded command there are so many in all,
        wherever it is sent from. Where none was rejected, one at least.
        """
        if isinstance(error, Exception) and not isinstance(error, PyMongoError):
            return False
        with shielded("after killCursors"):
            rejected = self._judged is not None and self._judged.overloaded
            if self._out_of_attempts or (rejected and self._attempts > self._most):
                self._log_dropped(len(self._ids))
            else:
                self._queue(self._ids, min(self._attempts, self._most))
            return isinstance(error, Exception)
        return False

    def _queue(self, ids: Sequence[int], requeues: int) -> None:
        for cursor_id in ids:
            again = RequeuedId(cursor_id, requeues)
            driver.clients.kill_later(self._client, again, self._cursor_address)

    def _log_dropped(self, count: int) -> None:
        logger.debug("%s %s: %d dropped", self.call.operation, self.call.namespace, count)


class CloseInBackground(CloseNow):
    """The killCursors of the background task: the rules judge the cursor that was put back least
    often; each one has a count of its own."""

    def operation(self) -> Operation:
        # The task of an async client inherits the policy of whoever used the client first.
        return self._operation(
            enabled=self._client.options.retry_reads,
            attempts=self._fewest_requeues(),
            max_retries=self._most,
        )

    def succeeded(self) -> None:
        """Gives back what the repetition cost; the executor took it for a first attempt."""
        if self.budget is not None and self._fewest_requeues():
            self.budget.never_repeated(overloaded=True)

    def failed(self, error: BaseException) -> bool:
        if not isinstance(error, Exception):
            super().failed(error)
        return isinstance(error, Dropped)

    def describe(self, error: Exception, operation: Operation) -> Failure:
        # The next run comes when it comes, whatever the server would like.
        return replace(super().describe(error, operation), base_backoff=None)

    def prepare(self, failure: Failure, operation: Operation) -> None:  # noqa: ARG002 - the protocol's shape
        for cursor_id in self._ids:
            requeues = _requeues(cursor_id) + 1
            if requeues <= self._most:
                self._queue([cursor_id], requeues)
            else:
                self._log_dropped(1)

    def final_error(self, failure: Failure, rule: Rule, operation: Operation) -> Exception:  # noqa: ARG002
        if rule is not Rule.ATTEMPTS:
            return failure.error
        self._log_dropped(len(self._ids))
        return Dropped()

    def _fewest_requeues(self) -> int:
        return min(map(_requeues, self._ids))


def _requeues(cursor_id: int) -> int:
    return cursor_id.requeues if isinstance(cursor_id, RequeuedId) else 0


class Dropped(Exception):  # noqa: N818 - a signal
    """The background task gives the cursors up: the server ends them when they time out."""


class NeverWaits:
    """The background task's clock."""

    def __init__(self, clock: Clock) -> None:
        self.now = clock.now

    def sleep(self, seconds: float, /) -> NoReturn:  # noqa: ARG002 - the protocol's shape, as below
        raise Postponed

    async def sleep_async(self, seconds: float, /) -> NoReturn:  # noqa: ARG002
        raise Postponed


class BackgroundCall(CleanupCall):
    """One run of a client's background task over the cursors that wait to be killed."""

    def __init__(self, client: Any) -> None:
        super().__init__(client, KILL_CURSORS, "", None)
        self.is_last = driver.clients.kills_no_more(client)
        """The client is being closed: no later run takes up what this one leaves."""


class KillCursors(CleanupInterceptor):
    """Of each method that sends one; where one calls the other, the outer one has the attempts."""

    def __init__(self, runtime: Runtime, asynchronous: bool, session_at: int) -> None:
        super().__init__(runtime, asynchronous)
        self._session_at = session_at
        now, interval = self.executor, driver.clients.kill_interval()
        # The same rules; only what they call a delay is the time until the next run.
        self._in_background: Any = (AsyncExecutor if asynchronous else Executor)(
            RetryRules(now.retry_rules.max_retries, interval, interval, random=lambda: 1.0),
            NeverWaits(now.clock),
            now.listener,
        )

    def enter(self, given: tuple[Any, ...], kwargs: dict[str, Any]) -> CloseNow | None:
        ids, address, session = driver.clients.kill_arguments(given, kwargs, self._session_at)
        client, outer = given[0], calls.current()
        if outer is not None and outer.client is not client:
            outer = None
        background = isinstance(outer, BackgroundCall)
        if calls.reporting() or address is None:
            return None
        if isinstance(outer, BackgroundCall) and outer.is_last:
            return None
        if isinstance(outer, CleanupCall) and not background:
            return None
        runtime = self.runtime
        call = CleanupCall(client, KILL_CURSORS, *driver.clients.cursor_namespace(address))
        kind, executor = CloseNow, self.executor
        if background:
            kind, executor = CloseInBackground, self._in_background
        budget = runtime.budgets.of(client)
        work = kind(call, executor, runtime.rules, budget, ids=ids, address=address)
        # CSOT, "Cursor close() methods refresh timeoutMS". What a call closes by itself, or a
        # stream of GridFS, is within that one's own time; with the session of with_transaction, in
        # what is left of that.
        call.transaction = transaction_of(session)
        alone = outer is None and call.transaction is None
        refreshed = alone and not driver.deadline.runs_already()
        runtime.enter(call, anew=refreshed)
        if not refreshed and call.transaction is None:
            call.deadline = NO_DEADLINE
        if not background:
            parent = None if session is None else transaction_spans.parent_of(session)
            runtime.start_span(call, parent)
        return work

    def succeeded(self, work: CloseNow, result: Any) -> None:  # noqa: ARG002 - it has none
        work.succeeded()
        self.runtime.end(work.call)

    def failed(self, work: CloseNow | None, error: BaseException, *_: Any) -> BaseException | None:
        # Where the call is over, what struck is a signal handler's.
        if work is None or work.call.client is None:
            return error
        over = isinstance(error, Postponed) or work.failed(error)
        self.runtime.end(work.call, None if isinstance(error, (Postponed, Dropped)) else error)
        return None if over else error


class BackgroundRun(Interceptor):
    """One run of the background task; ``enter`` returns its BackgroundCall."""

    def enter(self, given: tuple[Any, ...], _kwargs: dict[str, Any]) -> BackgroundCall:
        if pending:
            run_deferred()
        call = BackgroundCall(given[0])
        calls.enter(call)
        if not call.is_last:
            # The task of an async client inherits the span of whoever used the client first.
            call.outer_context = context.get_current()
            context.attach(Context())
        return call

    def succeeded(self, call: BackgroundCall, result: Any) -> Any:
        calls.leave(call)
        return result

    def failed(self, call: BackgroundCall | None, error: BaseException, *_: Any) -> BaseException:
        if call is not None:
            (calls.leave_unfinished if closes_a_coroutine(error) else calls.leave)(call)
        return error

    def undo(self, call: Any, around: Call | None, error: BaseException) -> None:
        calls.undo(call, around, error)
