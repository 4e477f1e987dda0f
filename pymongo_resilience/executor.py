"""Attempt, decide, wait, again: the same steps for threads and tasks."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from pymongo_resilience import internal_errors
from pymongo_resilience.events import RetryDeclined, RetryScheduled, of_both_events
from pymongo_resilience.internal_errors import is_closing, logger
from pymongo_resilience.rules.explanations import why_not_repeated
from pymongo_resilience.rules.retry_rules import GiveUp, NeedsStrategy, RetryRules
from pymongo_resilience.rules.strategy import NAMED, RetryAction
from pymongo_resilience.steps import Steps, run, run_async

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from pymongo_resilience.clock import Clock
    from pymongo_resilience.events import Listener
    from pymongo_resilience.rules.budget import RetryBudget
    from pymongo_resilience.rules.failure import Failure
    from pymongo_resilience.rules.retried_operation import Operation
    from pymongo_resilience.rules.retry_rules import Rule, Verdict
    from pymongo_resilience.rules.strategy import Answer


class Work(Protocol):
    """One operation of the driver, as an executor repeats it."""

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


class Executor:
    """Runs work in the calling thread. Thread-safe: but for names that are only ever added to a
    set, nothing changes."""

    asynchronous = False

    def __init__(self, retry_rules: RetryRules, clock: Clock, listener: Listener) -> None:
        self.retry_rules = retry_rules
        self.clock = clock
        self.listener = listener
        self.warned: set[str] = set()
        """Strategies that were logged once and are not to be logged again."""

    def run(self, work: Work, error: Exception | None = None) -> Any:
        """The first successful attempt's result, or ``work.final_error()`` raised.

        ``error``: what a first attempt that the caller made has raised.
        """
        return run(self._steps(work, error, self.clock.sleep))

    def _steps(  # noqa: PLR0912 - one way
        self, work: Work, error: Exception | None, sleep: Callable[[float], Any]
    ) -> Steps:
        operation = failure = end = None
        try:
            while True:
                if error is None:
                    try:
                        result = yield work.attempt
                    except Exception as raised:  # noqa: BLE001 - the rules decide on every failure
                        error = raised
                    else:
                        if work.budget is not None:
                            work.budget.succeeded(retried=operation is not None)
                        return result
                if is_closing(error):
                    raise error
                try:
                    operation = operation or work.operation()
                    failure = work.classify(error, operation)
                    release = work.release_attempt(failure)
                    if release is not None:
                        yield release
                    operation.record(failure)
                    verdict = self.retry_rules.check_rules(operation, failure)
                    if isinstance(verdict, NeedsStrategy):
                        answer = yield from self._ask(operation, failure)
                        verdict = self.retry_rules.apply_strategy(operation, failure, answer)
                    end = self._conclude(work, operation, failure, verdict)
                except internal_errors.faults:
                    text = "internal error in pymongo-resilience while classifying %s"
                    logger.exception(text, type(error).__name__)
                    instead = work.undecided(error)
                    break
                if isinstance(end, Exception):
                    raise end
                if end > 0:
                    try:
                        yield partial(sleep, end)
                    except BaseException:
                        operation.never_repeated(failure)
                        raise
                error = None
            if instead is None:
                raise error
            return (yield instead)
        finally:
            # The frames of errors hold this one.
            del error, failure, end

    def _ask(self, operation: Operation, failure: Failure) -> Generator[Any, Any, Answer]:
        answer: Any = None
        try:
            answer = operation.strategy.retry_after(operation, failure)
            if inspect.isawaitable(answer):
                if not self.asynchronous:
                    self._not_awaited(operation)
                    return None
                answer = yield partial(_given, answer)
            # A strategy need not be type-checked code.
            if answer is not None and not isinstance(answer, RetryAction):
                raise TypeError(f"expected a RetryAction or None, not {type(answer).__name__}")
            # Made anew, and so checked: a subclass need not have done that.
            return None if answer is None else RetryAction(answer.delay)
        except Exception as error:
            ours = type(operation.strategy) in OURS
            if is_closing(error) or (ours and not isinstance(error, internal_errors.faults)):
                raise
            text = "the retry strategy %s raised on %s: not retried"
            logger.exception(text, type(operation.strategy).__name__, operation.name)
            return None
        finally:
            # Python warns of a coroutine that is never awaited, long after and far from its making.
            if inspect.iscoroutine(answer):
                answer.close()

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


class AsyncExecutor(Executor):
    """Runs work in the calling task."""

    asynchronous = True

    async def run(self, work: Work, error: Exception | None = None) -> Any:
        return await run_async(self._steps(work, error, self.clock.sleep_async))


def _given(awaitable: Any) -> Any:
    return awaitable
