"""Attempt, decide, wait, again. Both executors decide alike; they differ in what they await."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Protocol

from pymongo_resilience import internal_errors
from pymongo_resilience.events import RetryDeclined, RetryScheduled, of_both_events
from pymongo_resilience.internal_errors import is_closing, logger
from pymongo_resilience.rules.explanations import why_not_repeated
from pymongo_resilience.rules.retry_rules import GiveUp, NeedsStrategy, RetryRules
from pymongo_resilience.rules.strategy import NAMED, RetryAction

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo_resilience.clock import Clock
    from pymongo_resilience.events import Listener
    from pymongo_resilience.rules.budget import RetryBudget
    from pymongo_resilience.rules.failure import Failure
    from pymongo_resilience.rules.retried_operation import Operation
    from pymongo_resilience.rules.retry_rules import Rule, Verdict
    from pymongo_resilience.rules.strategy import Answer


class Work(Protocol):
    """One operation of the driver, as both executors repeat it."""

    @property
    def budget(self) -> RetryBudget | None:
        """The client's retry budget, where it has one."""

    def operation(self) -> Operation:
        """The operation that the rules decide on; called once, at the first failure."""

    def attempt(self) -> Any:
        """Send it; the executor of tasks awaits what it returns."""

    def classify(self, error: Exception, operation: Operation, /) -> Failure:
        """The facts of the attempt that ended with ``error``."""

    def release_attempt(self, failure: Failure, /) -> Callable[[], Any] | None:
        """The failed attempt is over, whatever follows: what releases what it held, if anything.

        No coroutine yet: an exception of a signal handler that strikes between one and its
        ``await`` leaves it unawaited.
        """

    def prepare(self, failure: Failure, operation: Operation, /) -> None:
        """Set the driver up for one more attempt after ``failure``."""

    def final_error(self, failure: Failure, rule: Rule, operation: Operation, /) -> Exception:
        """What the application gets once no attempt follows."""

    def undecided(self, error: Exception, /) -> Callable[[], Any] | None:
        """An internal error kept the rules from deciding on ``error``: what runs instead, awaited
        where attempts are. None to raise it."""


OURS = frozenset(map(type, NAMED.values()))
"""What any other strategy raises is caught, whatever it is."""


def _close_unawaited(answer: object) -> None:
    """Python warns of a coroutine that is never awaited, long after and far from its making."""
    if inspect.iscoroutine(answer) and inspect.getcoroutinestate(answer) == inspect.CORO_CREATED:
        answer.close()


class _Decisions:
    """What both executors share: every decision. Thread- and task-safe: but for names that are only
    ever added to a set, nothing changes."""

    __slots__ = ("clock", "listener", "retry_rules", "warned")

    def __init__(self, retry_rules: RetryRules, clock: Clock, listener: Listener) -> None:
        self.retry_rules = retry_rules
        self.clock = clock
        self.listener = listener
        self.warned: set[str] = set()
        """Strategies that were logged once and are not to be logged again."""

    def _succeeded(self, work: Work, operation: Operation | None) -> None:
        if work.budget is not None:
            work.budget.succeeded(retried=operation is not None)

    def _undecided(self, work: Work, error: Exception, fault: Exception) -> Any:
        text = "internal error in pymongo-resilience while classifying %s"
        logger.error(text, type(error).__name__, exc_info=fault)
        return work.undecided(error)

    def _conclude(
        self, work: Work, operation: Operation, failure: Failure, verdict: Verdict
    ) -> Exception | float:
        """The error to raise, or the seconds to wait before the next attempt.

        Who prepares it and who listens may take their time: the wait ends when it was to end.
        """
        decided = self.clock.now()
        facts = of_both_events(operation, failure)
        if isinstance(verdict, GiveUp):
            if not operation.part:
                why = why_not_repeated(verdict.rule, operation, failure)
                self.listener.on_event(RetryDeclined(*facts, verdict.rule, why, failure.error_name))
            return work.final_error(failure, verdict.rule, operation)
        operation.waited += verdict.delay
        work.prepare(failure, operation)
        self.listener.on_event(
            RetryScheduled(*facts, verdict.delay, failure.error_name, verdict.held_back)
        )
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
        ours = type(operation.strategy) in OURS
        if is_closing(error) or (ours and not isinstance(error, internal_errors.faults)):
            raise error
        logger.error(
            "the retry strategy %s raised on %s: not retried",
            type(operation.strategy).__name__,
            operation.name,
            exc_info=error,
        )

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


class Executor(_Decisions):
    """Runs work in the calling thread."""

    def run(self, work: Work, error: Exception | None = None) -> Any:  # noqa: PLR0912 - one way
        """The first successful attempt's result, or ``work.final_error()`` raised.

        ``error``: what a first attempt that the caller made has raised.
        """
        operation = failure = end = None
        try:
            while True:
                if error is None:
                    try:
                        result = work.attempt()
                    except Exception as raised:  # noqa: BLE001 - the rules decide on every failure
                        error = raised
                    else:
                        self._succeeded(work, operation)
                        return result
                if is_closing(error):
                    raise error
                try:
                    operation = operation or work.operation()
                    failure = work.classify(error, operation)
                    release = work.release_attempt(failure)
                    if release is not None:
                        release()
                    operation.record(failure)
                    verdict = self.retry_rules.check_rules(operation, failure)
                    if isinstance(verdict, NeedsStrategy):
                        answer = self._ask(operation, failure)
                        verdict = self.retry_rules.apply_strategy(operation, failure, answer)
                    end = self._conclude(work, operation, failure, verdict)
                except internal_errors.faults as fault:
                    instead = self._undecided(work, error, fault)
                    break
                if isinstance(end, Exception):
                    raise end
                if end > 0:
                    try:
                        self.clock.sleep(end)
                    except BaseException:
                        operation.never_repeated(failure)
                        raise
                error = None
            if instead is None:
                raise error
            return instead()
        finally:
            # The frames of errors hold this one.
            del error, failure, end

    def _ask(self, operation: Operation, failure: Failure) -> Answer:
        answer: Any = None
        try:
            answer = operation.strategy.retry_after(operation, failure)
            if inspect.isawaitable(answer):
                self._not_awaited(operation)
                return None
            return self._checked(answer)
        except Exception as error:  # noqa: BLE001 - a broken strategy means no retry
            self._no_answer(operation, error)
            return None
        finally:
            _close_unawaited(answer)


class AsyncExecutor(_Decisions):
    """Runs work in the calling task."""

    async def run(self, work: Work, error: Exception | None = None) -> Any:  # noqa: PLR0912 - one way
        operation = failure = end = None
        try:
            while True:
                if error is None:
                    try:
                        result = await work.attempt()
                    except Exception as raised:  # noqa: BLE001 - the rules decide on every failure
                        error = raised
                    else:
                        self._succeeded(work, operation)
                        return result
                if is_closing(error):
                    raise error
                try:
                    operation = operation or work.operation()
                    failure = work.classify(error, operation)
                    release = work.release_attempt(failure)
                    if release is not None:
                        await release()
                    operation.record(failure)
                    verdict = self.retry_rules.check_rules(operation, failure)
                    if isinstance(verdict, NeedsStrategy):
                        answer = await self._ask(operation, failure)
                        verdict = self.retry_rules.apply_strategy(operation, failure, answer)
                    end = self._conclude(work, operation, failure, verdict)
                except internal_errors.faults as fault:
                    instead = self._undecided(work, error, fault)
                    break
                if isinstance(end, Exception):
                    raise end
                if end > 0:
                    try:
                        await self.clock.sleep_async(end)
                    except BaseException:
                        operation.never_repeated(failure)
                        raise
                error = None
            if instead is None:
                raise error
            return await instead()
        finally:
            # The frames of errors hold this one.
            del error, failure, end

    async def _ask(self, operation: Operation, failure: Failure) -> Answer:
        answer: Any = None
        try:
            answer = operation.strategy.retry_after(operation, failure)
            if inspect.isawaitable(answer):
                answer = await answer
            return self._checked(answer)
        except Exception as error:  # noqa: BLE001 - a broken strategy means no retry
            self._no_answer(operation, error)
            return None
        finally:
            _close_unawaited(answer)
