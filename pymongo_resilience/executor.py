"""Attempt, decide, wait, again. Both executors decide alike; they differ in what they await."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from pymongo_resilience import internal_errors
from pymongo_resilience.events import RetryDeclined, RetryScheduled, of_both_events
from pymongo_resilience.internal_errors import is_closing, logger
from pymongo_resilience.rules.explanations import why_not_repeated
from pymongo_resilience.rules.retry_rules import GiveUp, NeedsStrategy, RetryRules
from pymongo_resilience.rules.strategy import NAMED, RetryAction

if TYPE_CHECKING:
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


_End = float | Exception | Callable[[], Any]
"""Seconds to wait before the next attempt, the error to raise, or what runs instead."""


class _Retries:
    """Decides on the failed attempts of one work. Belongs to one thread or task."""

    operation: Operation
    failure: Failure
    verdict: Verdict | NeedsStrategy

    def __init__(self, executor: Executor, work: Work) -> None:
        self.executor = executor
        self.work = work
        self.failed = False

    def succeeded(self) -> None:
        if self.work.budget is not None:
            self.work.budget.succeeded(retried=self.failed)

    def classify(self, error: Exception) -> Callable[[], Any] | None:
        """What releases what the failed attempt held, if anything."""
        if is_closing(error):
            raise error
        if not self.failed:
            self.operation, self.failed = self.work.operation(), True
        self.failure = self.work.classify(error, self.operation)
        return self.work.release_attempt(self.failure)

    def ask(self) -> Any:
        """The strategy's answer, in tasks perhaps to be awaited; None where none is needed."""
        operation, executor, answer = self.operation, self.executor, None
        operation.record(self.failure)
        self.verdict = executor.retry_rules.check_rules(operation, self.failure)
        if isinstance(self.verdict, NeedsStrategy):
            try:
                answer = operation.strategy.retry_after(operation, self.failure)
            except Exception as error:  # noqa: BLE001 - a broken strategy means no retry
                self._no_answer(error)
            if inspect.isawaitable(answer) and not executor.asynchronous:
                self._not_awaited(answer)
                return None
        return answer

    async def awaited(self, answer: Any) -> Any:
        """An answer that perhaps is to be awaited."""
        try:
            return await answer if inspect.isawaitable(answer) else answer
        except Exception as error:  # noqa: BLE001 - as above
            self._no_answer(error)

    def decide(self, answer: Any) -> _End:
        """Who prepares it and who listens may take their time: the wait ends when it was to end."""
        operation, failure, verdict = self.operation, self.failure, self.verdict
        executor, decided = self.executor, self.executor.clock.now()
        if isinstance(verdict, NeedsStrategy):
            answer = self._checked(answer)
            verdict = executor.retry_rules.apply_strategy(operation, failure, answer)
        facts = of_both_events(operation, failure)
        if isinstance(verdict, GiveUp):
            if not operation.part:
                why = why_not_repeated(verdict.rule, operation, failure)
                declined = RetryDeclined(*facts, verdict.rule, why, failure.error_name)
                executor.listener.on_event(declined)
            return self.work.final_error(failure, verdict.rule, operation)
        operation.waited += verdict.delay
        self.work.prepare(failure, operation)
        executor.listener.on_event(
            RetryScheduled(*facts, verdict.delay, failure.error_name, verdict.held_back)
        )
        return verdict.delay - (executor.clock.now() - decided)

    def __enter__(self) -> None:
        """The wait for the next attempt begins."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self.operation.never_repeated(self.failure)

    def undecided(self, error: Exception, fault: Exception) -> _End:
        if is_closing(error):
            return error
        text = "internal error in pymongo-resilience while classifying %s"
        logger.error(text, type(error).__name__, exc_info=fault)
        return self.work.undecided(error) or error

    def _checked(self, answer: Any) -> Answer:
        """A strategy need not be type-checked code."""
        try:
            if answer is not None and not isinstance(answer, RetryAction):
                raise TypeError(f"expected a RetryAction or None, not {type(answer).__name__}")
            # Made anew, and so checked: a subclass need not have done that.
            return None if answer is None else RetryAction(answer.delay)
        except Exception as error:  # noqa: BLE001 - as above
            self._no_answer(error)
            return None

    def _no_answer(self, error: Exception) -> None:
        strategy = type(self.operation.strategy)
        ours = strategy in OURS and not isinstance(error, internal_errors.faults)
        if is_closing(error) or ours:
            raise error
        text = "the retry strategy %s raised on %s: not retried"
        logger.error(text, strategy.__name__, self.operation.name, exc_info=error)

    def _not_awaited(self, answer: Any) -> None:
        # Python warns of a coroutine that is never awaited, long after and far from its making.
        if inspect.iscoroutine(answer):
            answer.close()
        name = type(self.operation.strategy).__name__
        if name not in self.executor.warned:
            self.executor.warned.add(name)
            logger.error(
                "the retry strategy %s must be awaited, which sync clients cannot do: %s is not "
                "retried; further cases are not logged",
                name,
                self.operation.name,
            )


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
        retries = _Retries(self, work)
        end: _End = 0.0
        try:
            while True:
                if error is None:
                    try:
                        result = work.attempt()
                    except Exception as raised:  # noqa: BLE001 - the rules decide on every failure
                        error = raised
                    else:
                        retries.succeeded()
                        return result
                try:
                    release = retries.classify(error)
                    if release is not None:
                        release()
                    end = retries.decide(retries.ask())
                except internal_errors.faults as fault:
                    end = retries.undecided(error, fault)
                if isinstance(end, Exception):
                    raise end
                if callable(end):
                    return end()
                if end > 0:
                    with retries:
                        self.clock.sleep(end)
                error = None
        finally:
            # The frames of errors hold this one.
            del error, retries, end


class AsyncExecutor(Executor):
    """Runs work in the calling task."""

    asynchronous = True

    async def run(self, work: Work, error: Exception | None = None) -> Any:
        retries = _Retries(self, work)
        end: _End = 0.0
        try:
            while True:
                if error is None:
                    try:
                        result = await work.attempt()
                    except Exception as raised:  # noqa: BLE001 - the rules decide on every failure
                        error = raised
                    else:
                        retries.succeeded()
                        return result
                try:
                    release = retries.classify(error)
                    if release is not None:
                        await release()
                    end = retries.decide(await retries.awaited(retries.ask()))
                except internal_errors.faults as fault:
                    end = retries.undecided(error, fault)
                if isinstance(end, Exception):
                    raise end
                if callable(end):
                    return await end()
                if end > 0:
                    with retries:
                        await self.clock.sleep_async(end)
                error = None
        finally:
            # The frames of errors hold this one.
            del error, retries, end
