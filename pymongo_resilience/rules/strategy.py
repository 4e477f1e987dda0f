"""Whether and when to repeat, as far as the rules leave it open (Couchbase RFC 0049).

A strategy may refuse or delay; it can never permit what the rules refuse.
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
"""Seconds. A longer wait is a mistake; infinity and NaN cannot be waited for at all."""


@dataclass(frozen=True, slots=True)
class RetryAction:
    """Repeat the attempt after ``delay`` seconds; a negative delay is none.

    Raises TypeError where ``delay`` is neither float nor int (a Decimal cannot be slept), and
    ValueError where it is longer than a day or NaN.
    """

    delay: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.delay, (float, int)):
            raise TypeError(f"delay={self.delay!r}: expected seconds as a float")
        if not self.delay <= MAX_DELAY:
            raise ValueError(f"delay={self.delay!r}: expected seconds, at most {MAX_DELAY:g}")


Answer = RetryAction | None


class RetryStrategy(Protocol):
    """Asked once per failed attempt that the rules would allow to repeat.

    Not after "not primary", which is repeated without asking. After an overload error its delay
    holds where it is longer than that of the overload, cut to what the deadline leaves.
    One instance serves all threads and tasks. An async client also takes a coroutine; a sync
    client cannot. A strategy that raises counts as "no".
    """

    def retry_after(self, state: RetryState, failure: Failure, /) -> Answer | Awaitable[Answer]:
        """When to repeat, or None to give up."""


@dataclass(frozen=True)
class BestEffort:
    """Repeats whatever is safe, from 1 ms doubling to 500 ms, until the time is up.

    Raises TypeError where ``calculator`` cannot be called.
    """

    calculator: Callable[[int], float] | None = None
    """Maps failed attempts (from 1) to seconds; None is the exponential."""

    def __post_init__(self) -> None:
        if self.calculator is not None and not callable(self.calculator):
            expected = "a function from the number of failed attempts to seconds"
            raise TypeError(wrong_type("calculator", self.calculator, expected))

    def retry_after(self, state: RetryState, failure: Failure, /) -> Answer:  # noqa: ARG002 - the protocol's shape
        if self.calculator is None:
            return RetryAction(backoff.exponential(state.attempts, random))
        return RetryAction(self.calculator(state.attempts))


class FastFail(BestEffort):
    """BestEffort, but gives up on errors that a retry cannot solve: at once, or after the one retry
    that pymongo would make."""

    def retry_after(self, state: RetryState, failure: Failure, /) -> Answer:
        if failure.reason in TERMINAL and (
            state.retries > 0 or not _listed_retryable(state, failure)
        ):
            return None
        return super().retry_after(state, failure)


@dataclass(frozen=True)
class MongoDB:
    """Exactly MongoDB's specifications: repeat at once, wait only for an overloaded server.

    Sources: Retryable Reads ("When to allow retry"), which goes by the code, and Retryable Writes,
    which goes by the label, for writes with a transaction number alone. Writes that the caller
    declares idempotent, which neither specification knows, are decided as reads are.
    """

    def retry_after(self, state: RetryState, failure: Failure, /) -> Answer:
        if failure.retryable_overload or _listed_retryable(state, failure):
            return RetryAction(0.0)
        return None


def follows_specification(state: RetryState) -> bool:
    return isinstance(state.strategy, MongoDB)


def _listed_retryable(state: RetryState, failure: Failure) -> bool:
    if failure.carried_txn_number or state.kind is Kind.TRANSACTION_END:
        return RETRYABLE_WRITE in failure.labels
    read_or_declared = state.kind is not Kind.WRITE or state.declared_idempotent
    return failure.listed_retryable and read_or_declared


NAMED: Mapping[str, RetryStrategy] = {
    "fast_fail": FastFail(),
    "best_effort": BestEffort(),
    "mongodb": MongoDB(),
}
"""They keep no state: one of each serves everybody."""
NAMES = one_of(*NAMED)


def check_strategy(strategy: object) -> None:
    """Raises TypeError for what can never answer; names its type alone, it may be anything."""
    method = inspect.getattr_static(strategy, "retry_after", None)
    if isinstance(strategy, type) and inspect.isfunction(method):
        name = strategy.__name__
        raise TypeError(f"strategy is the class {name}: expected an object, as in {name}()")
    if not callable(getattr(strategy, "retry_after", None)):
        expected = (
            'a name, as in "best_effort", or an object with retry_after(state, failure), as in '
            "BestEffort()"
        )
        raise TypeError(wrong_type("strategy", strategy, expected))
