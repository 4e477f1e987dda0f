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

from pymongo_resilience.clock import Postponed
from pymongo_resilience.closed_coroutines import closes_a_coroutine
from pymongo_resilience.internal_errors import logger, shielded
from pymongo_resilience.policies import blocks
from pymongo_resilience.rules.executor import AsyncExecutor, Executor
from pymongo_resilience.rules.operation_deadline import Deadline
from pymongo_resilience.rules.retry_rules import RetryRules, Rule
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.calls import NO_DEADLINE
from pymongo_resilience_instrumentation.deferred import pending, run_deferred
from pymongo_resilience_instrumentation.interception.interceptor import Interceptor
from pymongo_resilience_instrumentation.telemetry import transaction_spans
from pymongo_resilience_instrumentation.timeouts.transaction_timeouts import transaction_of

from .cleanup_work import Cleanup, CleanupCall, CleanupInterceptor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from pymongo_resilience.clock import Clock
    from pymongo_resilience.rules.failure import Failure
    from pymongo_resilience.rules.retried_operation import Operation
    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.runtime import Runtime

KILL_CURSORS = "killCursors"
MOST_REQUEUES = 5
"""How often the background task takes up a cursor again."""


class RequeuedId(Int64):
    """A cursor's id in the background task's queue, with the number of failed attempts.

    So the count lives as long as the entry.
    """

    requeues: int

    def __new__(cls, cursor_id: int, requeues: int) -> RequeuedId:
        made = super().__new__(cls, cursor_id)
        made.requeues = requeues
        return made


def _requeues(cursor_id: int) -> int:
    return cursor_id.requeues if isinstance(cursor_id, RequeuedId) else 0


class KillWork(Cleanup):
    """One killCursors. ``in_background``: the rules see the count of the cursor that was put back
    least often, and each one has a count of its own."""

    def __init__(self, *facts: Any, ids: Sequence[int], address: Any, in_background: bool) -> None:
        super().__init__(*facts)
        self.call.address = tuple(address)
        self._client = self.call.client
        self._ids = ids
        self._cursor_address = address
        self._in_background = in_background
        self._fewest = min(map(_requeues, ids)) if in_background else 0
        self._attempts = 0
        self._used_up = False
        self._classified: Operation | None = None
        own = driver.clients.max_retries(self._client)
        most = self.executor.retry_rules.max_retries if own is None else own
        self._most = min(MOST_REQUEUES, most)

    @property
    def deadline(self) -> AbstractContextManager[None]:
        return self.call.deadline

    def attempt(self) -> Any:
        self._attempts += 1
        return self.send()

    def operation(self) -> Operation:
        facts: dict[str, Any] = {"enabled": self._client.options.retry_reads}
        if self._in_background:
            # The task of an async client inherits the policy of the client's first caller.
            facts |= {"attempts": self._fewest, "max_retries": self._most}
        else:
            clock, facts["block"] = self.executor.clock, blocks.current()
            timeout, ends = driver.csot.timeout_in_force(), driver.csot.deadline_on(clock)
            if timeout is not None and ends is not None:
                facts["deadline"] = Deadline(clock, ends, timeout)
        self._classified = self._operation(**facts)
        return self._classified

    def classify(self, error: Exception, operation: Operation) -> Failure:
        failure = super().classify(error, operation)
        # The next run comes when it comes, whatever the server would like.
        return replace(failure, base_backoff=None) if self._in_background else failure

    def prepare(self, failure: Failure, operation: Operation) -> None:  # noqa: ARG002 - the protocol's shape, as below
        if self._in_background:
            self._queue({each: _requeues(each) + 1 for each in self._ids})

    def final_error(self, failure: Failure, rule: Rule, operation: Operation) -> Exception:  # noqa: ARG002
        self._used_up = rule is Rule.ATTEMPTS
        return failure.error

    def succeeded(self) -> None:
        # What the repetition cost; the executor took it for a first attempt.
        if self.budget is not None and self._fewest:
            self.budget.never_repeated(overloaded=True)

    def failed(self, error: BaseException) -> bool:
        """Whether the error is no more the driver's, which would queue the cursors as if they had
        never been sent.

        The background task has what is left of the attempts: of an overloaded command there are so
        many in all, wherever it is sent from. Where none was rejected, one at least.
        """
        if isinstance(error, Exception) and not isinstance(error, PyMongoError):
            return False
        with shielded("after killCursors"):
            interrupted = not isinstance(error, Exception)
            rejected = self._classified is not None and self._classified.overloaded
            dropped = self._used_up or (rejected and self._attempts > self._most)
            if dropped:
                self._log_dropped(len(self._ids))
            elif interrupted or not self._in_background:
                self._queue({each: min(self._attempts, self._most) for each in self._ids})
            return not interrupted and (dropped or not self._in_background)
        return False

    def _queue(self, cursors: Mapping[int, int]) -> None:
        """By id, how often each was sent."""
        for cursor_id, requeues in cursors.items():
            if requeues <= self._most:
                again = RequeuedId(cursor_id, requeues)
                driver.clients.kill_later(self._client, again, self._cursor_address)
            else:
                self._log_dropped(1)

    def _log_dropped(self, count: int) -> None:
        """The server ends them, when they time out."""
        logger.debug("%s %s: %d dropped", self.call.operation, self.call.namespace, count)


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

    def __init__(self, client: object) -> None:
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

    def enter(self, given: tuple[Any, ...], kwargs: dict[str, Any]) -> KillWork | None:
        ids, address, session = driver.clients.kill_arguments(given, kwargs, self._session_at)
        client, outer = given[0], calls.current()
        if outer is not None and outer.client is not client:
            outer = None
        background = isinstance(outer, BackgroundCall)
        alone = (
            outer.is_last if isinstance(outer, BackgroundCall) else isinstance(outer, CleanupCall)
        )
        if alone or address is None or calls.reporting():
            return None
        runtime = self.runtime
        call = CleanupCall(client, KILL_CURSORS, *driver.clients.cursor_namespace(address))
        executor = self._in_background if background else self.executor
        facts = (call, executor, runtime.rules, runtime.budgets.of(client))
        work = KillWork(*facts, ids=ids, address=address, in_background=background)
        # CSOT, "Cursor close() methods refresh timeoutMS". What a call closes by itself, or a
        # stream of GridFS, is within that one's own time; with the session of with_transaction, in
        # what is left of that.
        call.transaction = transaction_of(session)
        refreshed = outer is None is call.transaction and not driver.csot.runs_already()
        runtime.enter(call, whole_timeout=refreshed)
        if not refreshed and call.transaction is None:
            call.deadline = NO_DEADLINE
        if not background:
            parent = None if session is None else transaction_spans.parent_of(session)
            runtime.start_span(call, parent)
        return work

    def succeeded(self, work: KillWork, result: object) -> None:  # noqa: ARG002 - it has none
        work.succeeded()
        self.runtime.end(work.call)

    def failed(self, work: KillWork | None, error: BaseException, *_: Any) -> BaseException | None:
        # Where the call is over, what struck is a signal handler's.
        if work is None or work.call.client is None:
            return error
        over = isinstance(error, Postponed) or work.failed(error)
        self.runtime.end(work.call, None if isinstance(error, Postponed) else error)
        return None if over else error


class BackgroundRun(Interceptor):
    """One run of the background task; ``enter`` returns its BackgroundCall."""

    def enter(self, given: tuple[Any, ...], _kwargs: dict[str, Any]) -> BackgroundCall:
        if pending:
            run_deferred()
        call = BackgroundCall(given[0])
        calls.enter(call)
        if not call.is_last:
            # The task of an async client inherits the span of the client's first caller.
            call.outer_context = context.get_current()
            context.attach(Context())
        return call

    def succeeded(self, call: BackgroundCall, result: object) -> Any:
        calls.leave(call)
        return result

    def failed(self, call: BackgroundCall | None, error: BaseException, *_: Any) -> BaseException:
        if call is not None:
            (calls.leave_unfinished if closes_a_coroutine(error) else calls.leave)(call)
        return error

    def undo(self, call: object, around: Call | None, error: BaseException) -> None:
        calls.undo(call, around, error)
