"""Whether and when to repeat, as far as the rules leave it open (Couchbase RFC 0049).

A strategy may refuse or delay; it can never permit what the rules refuse.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import random
from typing import TYPE_CHECKING, Protocol

from pymongo_resilience import backoff
from pymongo_resilience.failure import RetryReason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pymongo_resilience.failure import Failure
    from pymongo_resilience.operation import Operation

TERMINAL = frozenset(
    {RetryReason.AUTHENTICATION_ERROR, RetryReason.TLS_ERROR, RetryReason.ACCESS_ERROR}
)
LONGEST_DELAY = 86_400.0
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
        if not self.delay <= LONGEST_DELAY:
            raise ValueError(f"delay={self.delay!r}: expected seconds, at most {LONGEST_DELAY:g}")


Answer = RetryAction | None


class RetryStrategy(Protocol):
    """Asked once per failed attempt that the rules would allow to repeat.

    One instance serves all threads and tasks. An async client also takes a coroutine; a sync
    client cannot. A strategy that raises counts as "no".
    """

    def retry_after(self, operation: Operation, failure: Failure, /) -> Answer | Awaitable[Answer]:
        """When to repeat, or None to give up."""


class BestEffort:
    """Repeats whatever is safe, from 1 ms doubling to 500 ms, until the time is up."""

    def __init__(self, calculator: Callable[[int], float] | None = None) -> None:
        """``calculator`` maps failed attempts (from 1) to seconds; default the exponential."""
        self._calculator = calculator or (lambda attempt: backoff.exponential(attempt, random))

    def retry_after(self, operation: Operation, failure: Failure, /) -> Answer:  # noqa: ARG002 - the protocol's shape
        return RetryAction(self._calculator(operation.attempts))


class FastFailOnTerminalError(BestEffort):
    """BestEffort, but gives up at once on errors that repeating cannot mend."""

    def retry_after(self, operation: Operation, failure: Failure, /) -> Answer:
        if failure.reason in TERMINAL:
            return None
        return super().retry_after(operation, failure)


class MongoDBSpecification:
    """Exactly what the driver texts say: repeat at once, wait only for an overloaded server."""

    def retry_after(self, operation: Operation, failure: Failure, /) -> Answer:  # noqa: ARG002 - the protocol's shape
        if failure.in_texts or failure.retryable_overload:
            return RetryAction(0.0)
        return None
