"""The retry loop: decide, wait, attempt again.

The sync and the async executor share every decision and differ only in what they await.
"""

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
    """One pymongo command that an executor retries."""

    @property
    def outcome(self) -> Outcome:
        """The record of the operation that the command belongs to. The executor writes it."""
        ...

    def retry_state(self) -> RetryState:
        """Return the facts that the rules decide on. Called once, at the first failure."""
        ...

    def attempt(self) -> Any:
        """Send the command. The async executor awaits the result."""

    def classify(self, error: Exception, state: RetryState, /) -> Failure:
        """Return the facts of the attempt that ended with ``error``.

        Raises ``error`` itself if its coroutine is being closed, because no other attempt may
        follow.
        """
        ...

    def report(self, failure: Failure, state: RetryState, /) -> Callable[[], Any] | None:
        """Report the failed attempt, once, to everything that counts attempts.

        Returns:
            A function that releases what the attempt held (for async work, a coroutine function),
            or None. It is not yet a coroutine, because a signal handler may raise before the
            coroutine is awaited, and Python would warn about it.
        """

    def prepare(self, failure: Failure, state: RetryState, retry: Retry, /) -> None:
        """Prepare pymongo for the next attempt after ``failure``."""

    def final_error(self, failure: Failure, rule: Rule, state: RetryState, /) -> Exception:
        """Return the error that the application gets when no attempt follows."""
        ...

    def failed_before_sending(self, error: Exception, /) -> bool:
        """Return True if an internal error ended the attempt before anything was sent."""
        ...


class UndecidedError(Exception):
    """An internal error (its cause) prevented a decision about the failure ``failed``."""

    def __init__(self, failed: Exception) -> None:
        super().__init__("internal error in pymongo-resilience")
        self.failed = failed


OURS = frozenset(map(type, NAMED.values()))
"""The library's own strategies. Errors raised by any other strategy are caught, whatever their
type.
"""


_End = float | Exception
"""Seconds to wait before the next attempt, or the error to raise."""


class _Retries:
    """The decisions about the failed attempts of one command. Belongs to one thread or task."""

    failure: Failure
    """The most recent failure."""

    def __init__(self, executor: Executor, work: Work) -> None:
        self.executor = executor
        self.work = work

    @cached_property
    def state(self) -> RetryState:
        return self.work.retry_state()

    def classify(self, error: Exception) -> Callable[[], Any] | None:
        """Classify, report and count the failed attempt; return what ``Work.report`` returned."""
        self.failure = self.work.classify(error, self.state)
        release = self.work.report(self.failure, self.state)
        # Count after reporting, because budgets distinguish the first failure from later ones.
        self.state.count(self.failure)
        return release

    def ask(self) -> Any:
        """Return GiveUp if a rule declines, or else the strategy's answer (perhaps an
        awaitable).
        """
        state, failure = self.state, self.failure
        declined = self.executor.retry_rules.declined(state, failure)
        if declined is not None:
            return GiveUp(declined)
        try:
            return ask_strategy(state, failure)
        # A strategy of the application may raise anything. Its error is logged, and the attempt is
        # not retried.
        except Exception as error:  # noqa: BLE001 - a broken strategy means no retry
            self._no_answer(error)

    async def awaited(self, answer: Any) -> Any:
        """Return the strategy's answer, awaiting it if it is awaitable."""
        try:
            return await answer if inspect.isawaitable(answer) else answer
        except Exception as error:  # noqa: BLE001 - as above
            self._no_answer(error)

    def decide(self, answer: Any) -> _End:
        """Apply the remaining rules and record the decision.

        Returns:
            Seconds to wait, or the error to raise.
        """
        state, failure, executor = self.state, self.failure, self.executor
        decided = executor.clock.now()
        verdict: Verdict = answer
        if not isinstance(answer, GiveUp):
            verdict = executor.retry_rules.verdict(state, failure, self._checked(answer))
        # Another thread may have taken the last token since the rules looked at the budget.
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
        # Preparing the attempt and calling listeners takes time. Subtract it, so that the next
        # attempt starts when it was planned.
        return verdict.delay - (executor.clock.now() - decided)

    def succeeded(self) -> None:
        state = self.state
        try:
            state.budget.succeeded(retried=True, rejections=state.rejections)
        except internal_error_types():
            logger.exception("internal error in pymongo-resilience after a retry")

    def _checked(self, answer: Any) -> RetryAction | None:
        """Return the strategy's answer if it is valid; strategies need not be type-checked code."""
        try:
            if inspect.iscoroutine(answer):
                # A sync client cannot await it. Close it here, or Python warns about it much later.
                answer.close()
            if answer is not None and not isinstance(answer, RetryAction):
                raise TypeError(f"expected a RetryAction or None, not {type(answer).__name__}")
            # Build a new object: the constructor checks the delay, which a subclass may not have
            # done.
            return None if answer is None else RetryAction(answer.delay)
        except Exception as error:  # noqa: BLE001 - as above
            self._no_answer(error)
            return None

    def _no_answer(self, error: Exception) -> None:
        strategy = type(self.state.strategy)
        if strategy in OURS:
            raise error
        text = (
            "the retry strategy %s raised an error for %s, so the operation is not retried. "
            "Fix the strategy: the traceback follows"
        )
        logger.error(text, strategy.__name__, self.state.name, exc_info=error)


class Executor:
    """Runs work in the calling thread. Immutable, so thread-safe."""

    def __init__(self, retry_rules: RetryRules, clock: Clock, listener: Listener) -> None:
        self.retry_rules = retry_rules
        self.clock = clock
        self.listener = listener

    def run(self, work: Work, error: Exception) -> Any:
        """Retry ``work`` after a first attempt that raised ``error``.

        Returns:
            The result of the first attempt that succeeds.

        Raises:
            Exception: What ``work.final_error()`` returns.
            UndecidedError: After an internal error.
        """
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
                    # ``classify`` raises the error itself if its coroutine is being closed. It is
                    # final.
                    end = error
                if isinstance(end, Exception):
                    raise end
                if end > 0:
                    self.clock.sleep(end)
                try:
                    result = work.attempt()
                except Exception as raised:
                    # A bug of the library ended the attempt before anything was sent, so pymongo
                    # can still continue with the previous error.
                    if work.failed_before_sending(raised):
                        raise UndecidedError(error) from raised
                    error = raised
                else:
                    retries.succeeded()
                    return result
        finally:
            # The tracebacks of the errors reference this frame. Delete the variables that reference
            # the errors, so that no reference cycle keeps both alive.
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
                    # As above: the coroutine is being closed.
                    end = error
                if isinstance(end, Exception):
                    raise end
                if end > 0:
                    await self.clock.sleep_async(end)
                try:
                    result = await work.attempt()
                except Exception as raised:
                    # As in the synchronous executor: nothing was sent, so pymongo can still
                    # continue.
                    if work.failed_before_sending(raised):
                        raise UndecidedError(error) from raised
                    error = raised
                else:
                    retries.succeeded()
                    return result
        finally:
            # As above: break the reference cycle.
            del error, retries, end
