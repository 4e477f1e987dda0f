"""The retry loop: classify the failure, decide, plan, wait, attempt again.

The sync and the async executor share every decision and differ only in what they await.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pymongo_resilience.events import RetryDeclined, RetryScheduled
from pymongo_resilience.internal_errors import internal_error_types, logger
from pymongo_resilience.rules.explanations import why_not_retried
from pymongo_resilience.rules.outcome import AttemptRecord
from pymongo_resilience.rules.retry_rules import GiveUp, RetryRules, Rule, ask_strategy
from pymongo_resilience.rules.strategy import NAMED, RetryAction

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo_resilience.clock import Clock
    from pymongo_resilience.events import Listener
    from pymongo_resilience.rules.failure import Failure
    from pymongo_resilience.rules.outcome import Outcome
    from pymongo_resilience.rules.retry_rules import Retry, Verdict
    from pymongo_resilience.rules.retry_state import RetryState


class Work(Protocol):
    """One pymongo command that an executor retries, after its first attempt has failed."""

    @property
    def state(self) -> RetryState:
        """The facts that the rules decide on."""
        ...

    @property
    def outcome(self) -> Outcome:
        """The record of the operation that the command belongs to. The executor writes it."""
        ...

    def classify(self, error: Exception, /) -> Failure:
        """Close the attempt that ended with ``error``, and return its facts.

        Called once per attempt.

        Raises ``error`` itself if the operation's coroutine is being closed, because no other
        attempt may follow.
        """
        ...

    def report(self, failure: Failure, /) -> Callable[[], Any] | None:
        """Report the failed attempt, once, to everything that counts attempts.

        Returns:
            A function that releases what the attempt held (for async work, a coroutine function),
            or None. The coroutine function is returned uncalled: a signal handler may raise before
            the coroutine is awaited, and Python would warn that it was never awaited.
        """

    def plan(self, failure: Failure, retry: Retry, /) -> Any:
        """Return how to make the attempt after ``failure``."""
        ...

    def again(self, plan: Any, /) -> Any:
        """Make another attempt according to ``plan``. The async executor awaits the result."""

    def final_error(self, failure: Failure, rule: Rule, /) -> Exception:
        """Return the error that the application gets when no attempt follows."""
        ...

    def failed_before_sending(self, error: Exception, /) -> bool:
        """Return True if an internal error ended the attempt before anything was sent."""
        ...


class UndecidedError(Exception):
    """Raised from an internal error that prevented a decision about the failure ``failed``.

    ``failed`` is None if nothing was sent.
    """

    def __init__(self, failed: Exception | None) -> None:
        super().__init__("internal error in pymongo-resilience")
        self.failed = failed


OURS = frozenset(map(type, NAMED.values()))
"""The library's own strategies. An exception of one of these is a bug and is raised. An exception
of any other strategy is logged, and the operation is not retried.
"""


class Again(NamedTuple):
    """The next attempt: how to make it, and how long to wait before."""

    delay: float
    """Seconds."""
    plan: Any


def _count_success(state: RetryState) -> None:
    """Count a retry that succeeded. A bug in counting must not replace the retry's result."""
    try:
        state.budget.succeeded(retried=True, rejections=state.rejections)
    except internal_error_types():
        logger.exception("internal error in pymongo-resilience after a retry")


async def _awaited(answer: Any, state: RetryState) -> Any:
    """Return a strategy's answer, awaiting it if it is awaitable."""
    try:
        return await answer if inspect.isawaitable(answer) else answer
    # A strategy of the application may raise anything. Its error is logged, and the attempt is not
    # retried.
    except Exception as error:  # noqa: BLE001 - a broken strategy means no retry
        _no_answer(error, state)


def _checked(answer: Any, state: RetryState) -> RetryAction | None:
    """Return the strategy's answer if it is valid; strategies need not be type-checked code."""
    if answer is None or type(state.strategy) in OURS:
        valid: RetryAction | None = answer
        return valid
    try:
        if inspect.iscoroutine(answer):
            # A sync client cannot await it. Close it here, or Python warns about it much later.
            answer.close()
        if not isinstance(answer, RetryAction):
            raise TypeError(f"expected a RetryAction or None, not {type(answer).__name__}")
        # Build a new object: the constructor checks the delay, which a subclass may not have done.
        return RetryAction(answer.delay)
    except Exception as error:  # noqa: BLE001 - as above
        _no_answer(error, state)
        return None


def _no_answer(error: Exception, state: RetryState) -> None:
    """Log the error of a strategy of the application. A bug of our own strategies is raised."""
    strategy = type(state.strategy)
    if strategy in OURS:
        raise error
    text = (
        "the retry strategy %s raised an error for %s, so the operation is not retried. "
        "Fix the strategy: the traceback follows"
    )
    logger.error(text, strategy.__name__, state.name, exc_info=error)


class Executor:
    """Runs work in the calling thread. Immutable, so thread-safe."""

    def __init__(self, retry_rules: RetryRules, clock: Clock, listener: Listener) -> None:
        self.retry_rules = retry_rules
        self.clock = clock
        self.listener = listener

    def ask(self, state: RetryState, failure: Failure) -> Any:
        """Return GiveUp if a rule declines, or else the strategy's answer (perhaps an
        awaitable).
        """
        declined = self.retry_rules.declined(state, failure)
        if declined is not None:
            return GiveUp(declined)
        try:
            return ask_strategy(state, failure)
        except Exception as error:  # noqa: BLE001 - a broken strategy means no retry
            _no_answer(error, state)

    def decide(self, work: Work, failure: Failure, answer: Any) -> Again | Exception:
        """Apply the remaining rules, and record and report the decision.

        Returns:
            The next attempt, or the error to raise.
        """
        state, decided = work.state, self.clock.now()
        verdict: Verdict = answer
        if not isinstance(answer, GiveUp):
            verdict = self.retry_rules.verdict(state, failure, _checked(answer, state))
        # Another thread may have taken the last token since the rules looked at the budget.
        if not isinstance(verdict, GiveUp) and not state.budget.spend(failure):
            verdict = GiveUp(Rule.BUDGET)
        outcome = work.outcome
        ended = 0.0 if state.began is None else decided - state.began
        delay = None if isinstance(verdict, GiveUp) else verdict.delay
        record = AttemptRecord(failure.server, failure.stage, failure.reason, ended, delay)
        facts = state.name, state.namespace, failure.reason, failure.server, state.attempts
        if isinstance(verdict, GiveUp):
            outcome.declined(record, verdict.rule)
            why = why_not_retried(verdict.rule, state, failure)
            self.listener.on_event(RetryDeclined(*facts, verdict.rule, why, failure.error_name))
            outcome.final_error = work.final_error(failure, verdict.rule)
            return outcome.final_error
        outcome.retried(record)
        state.waited += verdict.delay
        plan = work.plan(failure, verdict)
        self.listener.on_event(
            RetryScheduled(*facts, verdict.delay, failure.error_name, verdict.held_back)
        )
        # Planning the attempt and calling listeners takes time. Subtract it, so that the next
        # attempt starts when it was planned.
        return Again(verdict.delay - (self.clock.now() - decided), plan)

    def run(self, work: Work, error: Exception) -> Any:
        """Retry ``work`` after a first attempt that raised ``error``.

        Returns:
            The result of the first attempt that succeeds.

        Raises:
            Exception: What ``work.final_error()`` returns.
            UndecidedError: After an internal error.
        """
        failure: Failure | None = None
        following: Again | Exception | None = None
        try:
            while True:
                try:
                    failure = work.classify(error)
                    release = work.report(failure)
                    # Count after reporting, because budgets distinguish the first failure from
                    # later ones.
                    work.state.count(failure)
                    if release is not None:
                        release()
                    answer = self.ask(work.state, failure)
                    following = self.decide(work, failure, answer)
                except internal_error_types() as internal_error:
                    if internal_error is not error:
                        raise UndecidedError(error) from internal_error
                    # ``classify`` raises the error itself if its coroutine is being closed. It is
                    # final.
                    following = error
                if isinstance(following, Exception):
                    raise following
                if following.delay > 0:
                    self.clock.sleep(following.delay)
                try:
                    result = work.again(following.plan)
                except Exception as raised:
                    # A bug of the library ended the attempt before anything was sent, so pymongo
                    # can still continue with the previous error.
                    if work.failed_before_sending(raised):
                        raise UndecidedError(error) from raised
                    error = raised
                else:
                    _count_success(work.state)
                    return result
        finally:
            # The tracebacks of the errors reference this frame. Delete the variables that reference
            # the errors, so that no reference cycle keeps both alive.
            del error, work, failure, following


class AsyncExecutor(Executor):
    """Runs work in the calling task."""

    async def run(self, work: Work, error: Exception) -> Any:
        failure: Failure | None = None
        following: Again | Exception | None = None
        try:
            while True:
                try:
                    failure = work.classify(error)
                    release = work.report(failure)
                    work.state.count(failure)
                    if release is not None:
                        await release()
                    answer = await _awaited(self.ask(work.state, failure), work.state)
                    following = self.decide(work, failure, answer)
                except internal_error_types() as internal_error:
                    if internal_error is not error:
                        raise UndecidedError(error) from internal_error
                    # As above: the coroutine is being closed.
                    following = error
                if isinstance(following, Exception):
                    raise following
                if following.delay > 0:
                    await self.clock.sleep_async(following.delay)
                try:
                    result = await work.again(following.plan)
                except Exception as raised:
                    # As in the synchronous executor: nothing was sent, so pymongo can still
                    # continue.
                    if work.failed_before_sending(raised):
                        raise UndecidedError(error) from raised
                    error = raised
                else:
                    _count_success(work.state)
                    return result
        finally:
            # As above: break the reference cycle.
            del error, work, failure, following
