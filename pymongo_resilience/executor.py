"""Decide, wait, attempt again. Both executors decide alike; they differ in what they await."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from pymongo_resilience.events import RetryDeclined, RetryScheduled
from pymongo_resilience.internal_errors import internal_error_types, logger
from pymongo_resilience.rules.explanations import why_not_retried
from pymongo_resilience.rules.outcome import AttemptRecord
from pymongo_resilience.rules.retry_rules import GiveUp, RetryRules, Rule, ask_strategy
from pymongo_resilience.rules.strategy import NAMED, RetryAction

if TYPE_CHECKING:
    from pymongo_resilience.clock import Clock
    from pymongo_resilience.events import Listener
    from pymongo_resilience.rules.failure import Failure
    from pymongo_resilience.rules.outcome import Outcome
    from pymongo_resilience.rules.retry_rules import Retry, Verdict
    from pymongo_resilience.rules.retry_state import RetryState


class Work(Protocol):
    """One command of the driver, as an executor retries it."""

    @property
    def outcome(self) -> Outcome:
        """What happened to the operation that the command is part of; the executor writes it."""
        ...

    def retry_state(self) -> RetryState:
        """What the rules decide on; called once, at the first failure."""
        ...

    def attempt(self) -> Any:
        """Send it; the executor of tasks awaits what it returns."""

    def classify(self, error: Exception, state: RetryState, /) -> Failure:
        """Return the facts of the attempt that ended with ``error``.

        Raises ``error`` itself if its coroutine is being closed: nothing may follow it then.
        """
        ...

    def report(self, failure: Failure, state: RetryState, /) -> Callable[[], Any] | None:
        """The failed attempt is over, whatever follows: report it to what counts them, once, and
        return what releases what it held, if anything.

        No coroutine yet: an exception of a signal handler that strikes between one and its
        ``await`` leaves it unawaited.
        """

    def prepare(self, failure: Failure, state: RetryState, retry: Retry, /) -> None:
        """Set the driver up for one more attempt after ``failure``, as the rules have it."""

    def final_error(self, failure: Failure, rule: Rule, state: RetryState, /) -> Exception:
        """What the application gets once no attempt follows."""
        ...

    def failed_before_sending(self, error: Exception, /) -> bool:
        """Whether an internal error ended the attempt before anything was sent."""
        ...


class UndecidedError(Exception):
    """An internal error, its cause, kept the rules from deciding on ``failed``."""

    def __init__(self, failed: Exception) -> None:
        super().__init__("internal error in pymongo-resilience")
        self.failed = failed


OURS = frozenset(map(type, NAMED.values()))
"""What any other strategy raises is caught, whatever it is."""


_End = float | Exception
"""Seconds to wait before the next attempt, or the error to raise."""


class _Retries:
    """Decides on the failed attempts of one work. Belongs to one thread or task."""

    failure: Failure
    """The last one."""

    def __init__(self, executor: Executor, work: Work) -> None:
        self.executor = executor
        self.work = work

    @cached_property
    def state(self) -> RetryState:
        return self.work.retry_state()

    def classify(self, error: Exception) -> Callable[[], Any] | None:
        """What releases what the failed attempt held, if anything."""
        self.failure = self.work.classify(error, self.state)
        release = self.work.report(self.failure, self.state)
        self.state.count(self.failure)
        return release

    def ask(self) -> Any:
        """GiveUp by the rules, or the strategy's answer, in tasks perhaps to be awaited."""
        state, failure = self.state, self.failure
        declined = self.executor.retry_rules.declined(state, failure)
        if declined is not None:
            return GiveUp(declined)
        try:
            return ask_strategy(state, failure)
        except Exception as error:  # noqa: BLE001 - a broken strategy means no retry
            self._no_answer(error)

    async def awaited(self, answer: Any) -> Any:
        """An answer that perhaps is to be awaited."""
        try:
            return await answer if inspect.isawaitable(answer) else answer
        except Exception as error:  # noqa: BLE001 - as above
            self._no_answer(error)

    def decide(self, answer: Any) -> _End:
        """Who prepares it and who listens may take their time: the wait ends when it was to end."""
        state, failure, executor = self.state, self.failure, self.executor
        decided = executor.clock.now()
        verdict: Verdict = answer
        if not isinstance(answer, GiveUp):
            verdict = executor.retry_rules.verdict(state, failure, self._checked(answer))
        if not isinstance(verdict, GiveUp) and not state.budget.spend(failure):
            verdict = GiveUp(Rule.BUDGET)
        outcome = self.work.outcome
        ended = 0.0 if state.began is None else decided - state.began
        delay = None if isinstance(verdict, GiveUp) else verdict.delay
        record = AttemptRecord(failure.server, failure.stage, failure.reason, ended, delay)
        facts = state.name, state.namespace, failure.reason, failure.server, state.attempts
        if isinstance(verdict, GiveUp):
            outcome.declined(record, verdict.rule)
            why = why_not_retried(verdict.rule, state, failure)
            executor.listener.on_event(RetryDeclined(*facts, verdict.rule, why, failure.error_name))
            outcome.final_error = self.work.final_error(failure, verdict.rule, state)
            return outcome.final_error
        outcome.retried(record)
        state.waited += verdict.delay
        self.work.prepare(failure, state, verdict)
        executor.listener.on_event(
            RetryScheduled(*facts, verdict.delay, failure.error_name, verdict.held_back)
        )
        return verdict.delay - (executor.clock.now() - decided)

    def succeeded(self) -> None:
        state = self.state
        try:
            state.budget.succeeded(retried=True, rejections=state.rejections)
        except internal_error_types():
            logger.exception("internal error in pymongo-resilience after a retry")

    def _checked(self, answer: Any) -> RetryAction | None:
        """A strategy need not be type-checked code."""
        try:
            if inspect.iscoroutine(answer):
                answer.close()  # or Python warns of it, long after and far from its making
            if answer is not None and not isinstance(answer, RetryAction):
                raise TypeError(f"expected a RetryAction or None, not {type(answer).__name__}")
            # Made anew, and so checked: a subclass need not have done that.
            return None if answer is None else RetryAction(answer.delay)
        except Exception as error:  # noqa: BLE001 - as above
            self._no_answer(error)
            return None

    def _no_answer(self, error: Exception) -> None:
        strategy = type(self.state.strategy)
        if strategy in OURS:
            raise error
        text = "the retry strategy %s raised on %s: not retried"
        logger.error(text, strategy.__name__, self.state.name, exc_info=error)


class Executor:
    """Runs work in the calling thread. Immutable, so thread-safe."""

    def __init__(self, retry_rules: RetryRules, clock: Clock, listener: Listener) -> None:
        self.retry_rules = retry_rules
        self.clock = clock
        self.listener = listener

    def run(self, work: Work, error: Exception) -> Any:
        """After a first attempt that has raised ``error``: the first successful one's result, or
        ``work.final_error()`` raised.

        Raises UndecidedError after an internal error."""
        retries = _Retries(self, work)
        end: _End = 0.0
        try:
            while True:
                try:
                    release = retries.classify(error)
                    if release is not None:
                        release()
                    end = retries.decide(retries.ask())
                except internal_error_types() as internal_error:
                    if internal_error is not error:
                        raise UndecidedError(error) from internal_error
                    end = error  # its coroutine is being closed
                if isinstance(end, Exception):
                    raise end
                if end > 0:
                    self.clock.sleep(end)
                try:
                    result = work.attempt()
                except Exception as raised:
                    if work.failed_before_sending(raised):
                        raise UndecidedError(error) from raised
                    error = raised
                else:
                    retries.succeeded()
                    return result
        finally:
            # The frames of errors hold this one.
            del error, retries, end


class AsyncExecutor(Executor):
    """Runs work in the calling task."""

    async def run(self, work: Work, error: Exception) -> Any:
        retries = _Retries(self, work)
        end: _End = 0.0
        try:
            while True:
                try:
                    release = retries.classify(error)
                    if release is not None:
                        await release()
                    end = retries.decide(await retries.awaited(retries.ask()))
                except internal_error_types() as internal_error:
                    if internal_error is not error:
                        raise UndecidedError(error) from internal_error
                    end = error  # its coroutine is being closed
                if isinstance(end, Exception):
                    raise end
                if end > 0:
                    await self.clock.sleep_async(end)
                try:
                    result = await work.attempt()
                except Exception as raised:
                    if work.failed_before_sending(raised):
                        raise UndecidedError(error) from raised
                    error = raised
                else:
                    retries.succeeded()
                    return result
        finally:
            # The frames of errors hold this one.
            del error, retries, end
