"""Attempt, decide, wait, again: two short loops over one set of rules.

They differ only in what they await. The first attempt costs one try/except; everything else
exists from the first failure on.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pymongo_resilience.clock import Postponed
from pymongo_resilience.events import RetryDeclined, RetryScheduled
from pymongo_resilience.faults import deliver, logger
from pymongo_resilience.retry_rules import GiveUp, NeedsStrategy, RetryRules
from pymongo_resilience.rule_texts import why_not_repeated
from pymongo_resilience.strategy import RetryAction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from pymongo_resilience.budget import RetryBudget
    from pymongo_resilience.clock import Clock
    from pymongo_resilience.events import Listener
    from pymongo_resilience.failure import Failure
    from pymongo_resilience.operation import Operation
    from pymongo_resilience.retry_rules import Rule, Verdict
    from pymongo_resilience.strategy import Answer

T_co = TypeVar("T_co", covariant=True)


class Work(Protocol):
    """One operation of the driver, as the loops repeat it."""

    @property
    def budget(self) -> RetryBudget | None:
        """The client's retry budget, where it has one."""

    def operation(self) -> Operation:
        """The operation the rules judge; asked for once, at the first failure."""

    def describe(self, error: Exception, operation: Operation, /) -> Failure:
        """The facts of the attempt that ended with ``error``."""

    def prepare(self, failure: Failure, operation: Operation, /) -> None:
        """Set the driver up for one more attempt after ``failure``."""

    def final_error(self, failure: Failure, rule: Rule, operation: Operation, /) -> Exception:
        """What the application gets once no attempt follows."""


class SyncWork(Work, Protocol[T_co]):
    """Work whose attempts block."""

    def attempt(self) -> T_co: ...

    def leave(self, failure: Failure, /) -> Callable[[], object] | None:
        """The failed attempt is over, whatever follows: what releases what it held, if anything."""


class AsyncWork(Work, Protocol[T_co]):
    """Work whose attempts are awaited."""

    def attempt(self) -> Awaitable[T_co]: ...

    def leave(self, failure: Failure, /) -> Callable[[], Awaitable[object]] | None:
        """As in SyncWork. No coroutine yet: an exception of a signal handler that strikes between
        one and its ``await`` leaves it unawaited."""


T = TypeVar("T")


@contextmanager
def _fault_of_ours(error: Exception) -> Iterator[None]:
    """A fault while judging must not replace the error being judged: that one is raised."""
    try:
        yield
    except Exception:
        logger.exception(
            "internal error in pymongo-resilience while classifying %s", type(error).__name__
        )
        raise error from error.__cause__


def _close_unawaited(answer: object) -> None:
    """Python warns of a coroutine that is never awaited, long after and far from its making."""
    if inspect.iscoroutine(answer) and inspect.getcoroutinestate(answer) == inspect.CORO_CREATED:
        answer.close()


class _Loop:
    """What both loops share: every decision. Thread- and task-safe: but for names that are only
    ever added to a set, nothing changes."""

    __slots__ = ("clock", "listener", "retry_rules", "warned")

    def __init__(self, retry_rules: RetryRules, clock: Clock, listener: Listener) -> None:
        self.retry_rules = retry_rules
        self.clock = clock
        self.listener = listener
        self.warned: set[str] = set()
        """Strategies that were logged once and are not to be logged again."""

    def _check_rules(self, operation: Operation, failure: Failure) -> Verdict | NeedsStrategy:
        operation.record(failure)
        return self.retry_rules.check_rules(operation, failure)

    def _conclude(
        self, work: Work, operation: Operation, failure: Failure, verdict: Verdict
    ) -> Exception | float:
        """The error to raise, or the seconds to wait before the next attempt.

        Who prepares it and who listens may take their time: the wait ends when it was to end.
        """
        decided = self.clock.now()
        facts = (
            operation.name,
            operation.namespace,
            failure.reason,
            failure.server,
            operation.attempts,
        )
        if isinstance(verdict, GiveUp):
            why = why_not_repeated(verdict.rule, operation, failure)
            self.listener.on_event(RetryDeclined(*facts, verdict.rule, why))
            return work.final_error(failure, verdict.rule, operation)
        work.prepare(failure, operation)
        self.listener.on_event(RetryScheduled(*facts, verdict.delay))
        return verdict.delay - (self.clock.now() - decided)

    def _checked(self, answer: Answer) -> Answer:
        """``answer``, if it is one: a strategy need not be type-checked code."""
        if answer is None:
            return None
        if not isinstance(answer, RetryAction):
            raise TypeError(f"expected a RetryAction or None, not {type(answer).__name__}")
        # Made anew, and so checked: a subclass need not have done that.
        return RetryAction(answer.delay)

    def _no_answer(self, operation: Operation, error: Exception) -> None:
        logger.error(
            "the retry strategy %s raised on %s: not retried",
            type(operation.strategy).__name__,
            operation.name,
            exc_info=error,
        )


class Executor(_Loop):
    """Runs work in the calling thread."""

    def run(self, work: SyncWork[T]) -> T:
        """The first successful attempt's result, or ``work.final_error()`` raised."""
        try:
            result = work.attempt()
        except Exception as error:  # noqa: BLE001 - every failure is judged, unknown ones give up
            failed = error
        else:
            if work.budget is not None:
                work.budget.succeeded(retried=False)
            return result
        return self.recover(work, failed)

    def recover(self, work: SyncWork[T], error: Exception) -> T:
        """As ``run``, for work whose first attempt was made by the caller and raised ``error``."""
        operation = None
        while True:
            deliver(error)
            with _fault_of_ours(error):
                operation = operation or work.operation()
                failure = work.describe(error, operation)
                release = work.leave(failure)
                if release is not None:
                    release()
                verdict = self._check_rules(operation, failure)
                if isinstance(verdict, NeedsStrategy):
                    answer = self._ask(operation, failure)
                    verdict = self.retry_rules.apply_strategy(operation, failure, answer)
                end = self._conclude(work, operation, failure, verdict)
            if isinstance(end, Exception):
                raise end
            try:
                if end > 0:
                    self.clock.sleep(end)
            except Postponed:
                raise
            except BaseException:
                operation.never_repeated(failure)
                raise
            operation.waited(end, self.clock.now())
            try:
                result = work.attempt()
            except Exception as again:  # noqa: BLE001 - as above
                error = again
            else:
                if work.budget is not None:
                    work.budget.succeeded(retried=True)
                return result

    def _not_awaited(self, operation: Operation) -> None:
        name = type(operation.strategy).__name__
        if name not in self.warned:
            self.warned.add(name)
            logger.error(
                "the retry strategy %s must be awaited, which sync clients cannot do: %s is not "
                "retried; further cases are not logged",
                name,
                operation.name,
            )

    def _ask(self, operation: Operation, failure: Failure) -> Answer:
        answer: Any = None
        try:
            answer = operation.strategy.retry_after(operation, failure)
            if inspect.isawaitable(answer):
                self._not_awaited(operation)
                return None
            return self._checked(answer)
        except Exception as error:  # noqa: BLE001 - a broken strategy means no retry
            deliver(error)
            self._no_answer(operation, error)
            return None
        finally:
            _close_unawaited(answer)


class AsyncExecutor(_Loop):
    """Runs work in the calling task."""

    async def run(self, work: AsyncWork[T]) -> T:
        """The first successful attempt's result, or ``work.final_error()`` raised."""
        try:
            result = await work.attempt()
        except Exception as error:  # noqa: BLE001 - every failure is judged, unknown ones give up
            failed = error
        else:
            if work.budget is not None:
                work.budget.succeeded(retried=False)
            return result
        return await self.recover(work, failed)

    async def recover(self, work: AsyncWork[T], error: Exception) -> T:
        """As ``run``, for work whose first attempt was made by the caller and raised ``error``."""
        operation = None
        while True:
            deliver(error)
            with _fault_of_ours(error):
                operation = operation or work.operation()
                failure = work.describe(error, operation)
                release = work.leave(failure)
                if release is not None:
                    await release()
                verdict = self._check_rules(operation, failure)
                if isinstance(verdict, NeedsStrategy):
                    answer = await self._ask(operation, failure)
                    verdict = self.retry_rules.apply_strategy(operation, failure, answer)
                end = self._conclude(work, operation, failure, verdict)
            if isinstance(end, Exception):
                raise end
            try:
                if end > 0:
                    await self.clock.sleep_async(end)
            except Postponed:
                raise
            except BaseException:
                operation.never_repeated(failure)
                raise
            operation.waited(end, self.clock.now())
            try:
                result = await work.attempt()
            except Exception as again:  # noqa: BLE001 - as above
                error = again
            else:
                if work.budget is not None:
                    work.budget.succeeded(retried=True)
                return result

    async def _ask(self, operation: Operation, failure: Failure) -> Answer:
        answer: Any = None
        try:
            answer = operation.strategy.retry_after(operation, failure)
            if inspect.isawaitable(answer):
                answer = await answer
            return self._checked(answer)
        except Exception as error:  # noqa: BLE001 - a broken strategy means no retry
            deliver(error)
            self._no_answer(operation, error)
            return None
        finally:
            _close_unawaited(answer)
