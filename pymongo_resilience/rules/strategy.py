"""Strategies: whether and when to retry, within what the rules allow (Couchbase RFC 0049).

A strategy may refuse or delay a retry. It can never permit one that the rules refuse.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import random
from typing import Protocol

from pymongo_resilience.option_types import one_of, wrong_type

from . import backoff
from .failure import RETRYABLE_WRITE, Failure, RetryReason
from .retry_state import Kind, RetryState

TERMINAL = frozenset(
    {RetryReason.AUTHENTICATION_ERROR, RetryReason.TLS_ERROR, RetryReason.ACCESS_ERROR}
)
MAX_DELAY = 86_400.0
"""Maximum delay in seconds. A longer one is a mistake, and infinity and NaN cannot be waited
for.
"""


@dataclass(frozen=True, slots=True)
class RetryAction:
    """Retry the attempt after ``delay`` seconds. A negative delay counts as 0.

    Raises:
        TypeError: If ``delay`` is neither float nor int. (A Decimal cannot be slept.)
        ValueError: If ``delay`` is NaN or longer than a day.
    """

    delay: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.delay, (float, int)):
            raise TypeError(f"delay={self.delay!r}: expected seconds as a float")
        if not self.delay <= MAX_DELAY:
            raise ValueError(f"delay={self.delay!r}: expected seconds, at most {MAX_DELAY:g}")


Answer = RetryAction | None


class RetryStrategy(Protocol):
    """Decides about each failed attempt that the rules would allow to retry.

    One instance serves all threads and tasks, so it must be thread- and task-safe. Errors like "not
    primary" are retried without calling it. After an overload error, the longer of its delay and
    the overload delay applies, within the deadline. If it raises, the error is logged and the
    attempt is not retried.
    """

    def retry_after(self, state: RetryState, failure: Failure, /) -> Answer | Awaitable[Answer]:
        """Return when to retry, or None to give up.

        With an async client, it may be a coroutine function. A sync client cannot await one.
        """


@dataclass(frozen=True)
class BestEffort:
    """Retries everything that is safe, after delays from 1 ms doubling up to 500 ms, until the time
    ends.

    Raises:
        TypeError: If ``calculator`` is not callable.
    """

    calculator: Callable[[int], float] | None = None
    """Maps the number of failed attempts (from 1) to seconds. None uses the exponential delays."""

    def __post_init__(self) -> None:
        if self.calculator is not None and not callable(self.calculator):
            expected = "a function from the number of failed attempts to seconds"
            raise TypeError(wrong_type("calculator", self.calculator, expected))

    def retry_after(self, state: RetryState, failure: Failure, /) -> Answer:  # noqa: ARG002 - the protocol's shape
        if self.calculator is None:
            return RetryAction(backoff.exponential(state.attempts, random))
        return RetryAction(self.calculator(state.attempts))


class FastFail(BestEffort):
    """BestEffort, except that it gives up on errors that a retry cannot fix.

    It gives up at once, or after the single retry that pymongo would make.
    """

    def retry_after(self, state: RetryState, failure: Failure, /) -> Answer:
        if failure.reason in TERMINAL and (
            state.retries > 0 or not _listed_retryable(state, failure)
        ):
            return None
        return super().retry_after(state, failure)


@dataclass(frozen=True)
class MongoDB:
    """Follows MongoDB's specifications exactly: retries at once, and waits only for an overloaded
    server.

    Sources: Retryable Reads ("When to allow retry"), which decides by error code, and Retryable
    Writes, which decides by label and covers only writes with a transaction number. Neither covers
    writes that the caller declares idempotent; those are decided as reads are.
    """

    def retry_after(self, state: RetryState, failure: Failure, /) -> Answer:
        if failure.retryable_overload or _listed_retryable(state, failure):
            return RetryAction(0.0)
        return None


def follows_specification(state: RetryState) -> bool:
    return isinstance(state.strategy, MongoDB)


def _listed_retryable(state: RetryState, failure: Failure) -> bool:
    # Retryable Writes leaves the decision to the server, which sets the label.
    if failure.carried_txn_number or state.kind is Kind.TRANSACTION_END:
        return RETRYABLE_WRITE in failure.labels
    read_or_declared = state.kind is not Kind.WRITE or state.declared_idempotent
    return failure.listed_retryable and read_or_declared


NAMED: Mapping[str, RetryStrategy] = {
    "fast_fail": FastFail(),
    "best_effort": BestEffort(),
    "mongodb": MongoDB(),
}
"""The strategies by name. They have no state, so one instance of each suffices."""
NAMES = one_of(*NAMED)


def check_strategy(strategy: object) -> None:
    """Raise TypeError if ``strategy`` is not a strategy.

    The error names only its type, because the object may be anything.
    """
    method = inspect.getattr_static(strategy, "retry_after", None)
    # A class in place of an instance is the most likely mistake, so its error shows the correction.
    if isinstance(strategy, type) and inspect.isfunction(method):
        name = strategy.__name__
        raise TypeError(f"strategy is the class {name}: expected an object, as in {name}()")
    if not callable(getattr(strategy, "retry_after", None)):
        expected = (
            'a name, as in "best_effort", or an object with retry_after(state, failure), as in '
            "BestEffort()"
        )
        raise TypeError(wrong_type("strategy", strategy, expected))
