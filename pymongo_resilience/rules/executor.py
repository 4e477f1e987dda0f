"""Attempt, decide, wait, again: one generator of steps, and two drivers, which differ only in what
they await.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from pymongo_resilience import internal_errors
from pymongo_resilience.internal_errors import is_closing, logger

from .events import RetryDeclined, RetryScheduled, of_both_events
from .explanations import why_not_repeated
from .retry_rules import GiveUp, NeedsStrategy, RetryRules
from .strategy import NAMED, RetryAction

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from pymongo_resilience.clock import Clock

    from .budget import RetryBudget
    from .events import Listener
    from .failure import Failure
    from .retried_operation import Operation
    from .retry_rules import Rule, Verdict
    from .strategy import Answer

T_co = TypeVar("T_co", covariant=True)


class Work(Protocol):
    """One operation of the driver, as the loops repeat it."""

    @property
    def budget(self) -> RetryBudget | None:
        """The client's retry budget, where it has one."""

    def operation(self) -> Operation:
        """The operation that the rules decide on; asked for once, at the first failure."""

    def classify(self, error: Exception, operation: Operation, /) -> Failure:
        """The facts of the attempt that ended with ``error``."""

    def prepare(self, failure: Failure, operation: Operation, /) -> None:
        """Set the driver up for one more attempt after ``failure``."""

    def final_error(self, failure: Failure, rule: Rule, operation: Operation, /) -> Exception:
        """What the application gets once no attempt follows."""

    def undecided(self, error: Exception, /) -> Callable[[], Any] | None:
        """An internal error kept the rules from deciding on ``error``: what runs instead, awaited
        where attempts are. None to raise it."""


class SyncWork(Work, Protocol[T_co]):
    """Work whose attempts block."""

    def attempt(self) -> T_co: ...

    def release_attempt(self, failure: Failure, /) -> Callable[[], object] | None:
        """The failed attempt is over, whatever follows: what releases what it held, if anything."""


class AsyncWork(Work, Protocol[T_co]):
    """Work whose attempts are awaited."""

    def attempt(self) -> Awaitable[T_co]: ...

    def release_attempt(self, failure: Failure, /) -> Callable[[], Awaitable[object]] | None:
        """As in SyncWork. No coroutine yet: an exception of a signal handler that strikes between
        one and its ``await`` leaves it unawaited."""


T = TypeVar("T")
OURS = frozenset(map(type, NAMED.values()))
"""What any other strategy raises is caught, whatever it is."""


def _close_unawaited(answer: object) -> None:
    """Python warns of a coroutine that is never awaited, long after and far from its making."""
    if inspect.iscoroutine(answer) and inspect.getcoroutinestate(answer) == inspect.CORO_CREATED:
        answer.close()


class _Outcome(NamedTuple):
    result: Any
    error: Any


Steps = Generator["Callable[[], Any] | _Outcome", tuple[Any, Any], T]


def _done(step: Callable[[], Any]) -> Steps[Any]:
    result, error = yield step
    if error is not None:
        raise error
    return result


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

    def _steps(
        self, work: Any, error: Exception | None, ask: Callable[..., Any], sleep: Callable[..., Any]
    ) -> Steps[None]:
        """Each step is to be called, and awaited by the executor of tasks; it is sent the result or
        the error. It ends with an outcome, or is closed where anything else is raised.

        ``error``: of a first attempt that was made already.
        """
        operation: Operation | None = None
        failure = end = None
        try:
            while True:
                result = None
                if error is None:
                    result, error = yield work.attempt
                if error is None:
                    if work.budget is not None:
                        work.budget.succeeded(retried=operation is not None)
                    yield _Outcome(result, None)
                    return
                if is_closing(error):
                    yield _Outcome(None, error)
                    return
                try:
                    operation = operation or work.operation()
                    failure = work.classify(error, operation)
                    end = yield from self._after_decision(work, operation, failure, ask)
                except internal_errors.faults:
                    logger.exception(
                        "internal error in pymongo-resilience while classifying %s",
                        type(error).__name__,
                    )
                    break
                if isinstance(end, Exception):
                    yield _Outcome(None, end)
                    return
                yield from self._waited(operation, failure, end, sleep)
                error = None
            instead = work.undecided(error)
            yield _Outcome(None, error) if instead is None else _Outcome(*(yield instead))
        finally:
            # The frames of errors hold this one.
            del error, failure, end

    def _after_decision(
        self, work: Any, operation: Operation, failure: Failure, ask: Callable[..., Any]
    ) -> Steps[Exception | float]:
        """The error to raise, or the seconds to wait before the next attempt."""
        release = work.release_attempt(failure)
        if release is not None:
            yield from _done(release)
        operation.record(failure)
        verdict = self.retry_rules.check_rules(operation, failure)
        if isinstance(verdict, NeedsStrategy):
            answer = yield from _done(partial(ask, operation, failure))
            verdict = self.retry_rules.apply_strategy(operation, failure, answer)
        return self._conclude(work, operation, failure, verdict)

    def _waited(
        self, operation: Operation, failure: Failure, seconds: float, sleep: Callable[..., Any]
    ) -> Steps[None]:
        if seconds > 0:
            try:
                _, cut = yield partial(sleep, seconds)
            except GeneratorExit:
                operation.never_repeated(failure)
                raise
            if cut is not None:
                operation.never_repeated(failure)
                yield _Outcome(None, cut)

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

    def run(self, work: SyncWork[T], error: Exception | None = None) -> T:
        """The first successful attempt's result, or ``work.final_error()`` raised.

        ``error``: what a first attempt that the caller made has raised.
        """
        steps = self._steps(work, error, self._ask, self.clock.sleep)
        step: Any = None
        sent: Any = None
        try:
            step = next(steps)
            while not isinstance(step, _Outcome):
                try:
                    sent = step(), None
                except Exception as raised:  # noqa: BLE001 - the rules decide on every failure
                    sent = None, raised
                step = steps.send(sent)
            if step.error is not None:
                raise step.error
            result: T = step.result
            return result
        finally:
            steps.close()
            # The frames of errors hold this one.
            del error, sent, step

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

    async def run(self, work: AsyncWork[T], error: Exception | None = None) -> T:
        """As that of Executor."""
        steps = self._steps(work, error, self._ask, self.clock.sleep_async)
        step: Any = None
        sent: Any = None
        try:
            step = next(steps)
            while not isinstance(step, _Outcome):
                try:
                    sent = await step(), None
                except Exception as raised:  # noqa: BLE001 - as above
                    sent = None, raised
                step = steps.send(sent)
            if step.error is not None:
                raise step.error
            result: T = step.result
            return result
        finally:
            steps.close()
            del error, sent, step

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
