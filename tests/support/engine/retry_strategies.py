"""Strategies for tests: the good, whose dice always show one half, and the bad."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience.rules import backoff
from pymongo_resilience.rules.strategy import BestEffort, FastFail, MongoDB, RetryAction

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo_resilience.rules.failure import Failure
    from pymongo_resilience.rules.retry_state import RetryState


def quarter() -> float:
    return 0.25


def half() -> float:
    """Dice without surprises."""
    return 0.5


def without_surprises(attempt: int) -> float:
    """The default's delays: 0, then 0.75, 1.5, 3 ... ms."""
    return backoff.exponential(attempt, half)


FAST_FAIL = FastFail(without_surprises)
BEST_EFFORT = BestEffort(without_surprises)
MONGODB = MongoDB()


class Answering:
    """Gives one answer to everything."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer
        self.asked: list[tuple[RetryState, Failure]] = []

    def retry_after(self, operation: RetryState, failure: Failure, /) -> Any:
        self.asked.append((operation, failure))
        return self._answer()


def waiting(seconds: float) -> Answering:
    return Answering(lambda: RetryAction(seconds))


def _raise() -> None:
    raise LookupError("a strategy with a mistake")


REFUSES = Answering(lambda: None)
AT_ONCE = waiting(0.0)
RAISES = Answering(_raise)
TALKS_NONSENSE = Answering(lambda: "soon")
