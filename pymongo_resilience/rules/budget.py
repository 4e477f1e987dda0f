"""The retry budget of one client: what its retries may spend.

``RatioBudget`` is the default; ``TokenBucket`` is the specification's, for retries after overload
errors alone. bench/overload.md has the simulation that the numbers of the first are from.
"""

from __future__ import annotations

import math
import threading

from pymongo_resilience.clock import Clock

from .failure import UNHEALTHY, Failure, RetryReason

CAPACITY = 1000.0
RETURN_RATE = 0.1
"""Tokens that a success at the first attempt gives back."""
RETRY = 1.0
"""Tokens that one retry takes; one that shows a healthy server gives them back."""

RESERVE = 8.0
"""Failed attempts in a row of which a client with nothing against it repeats each."""
DEBT = 8.0
"""What the account may be overdrawn by: so much has to be earned before the next retry."""
RATIO = 0.2
"""What a success earns: with more than one failed attempt in six, the account runs empty."""
FORGOTTEN_S = 60.0
"""Seconds without a failed attempt after which the account is full: a quiet client may retry."""

DISTRESS = UNHEALTHY | {RetryReason.NOT_PRIMARY}
"""What a server in distress causes, and repeating may make worse. Conflicts and lock timeouts are
the application's own, and what a breaker refused was never sent."""


class RetryBudget:
    """A budget that limits nothing, for a client without one; those below do. Thread- and
    task-safe."""

    full = True
    """A success at the first attempt would change nothing."""

    @property
    def tokens(self) -> float | None:
        """What retries after overload errors may spend right now; None without a limit."""
        return None

    def failed(self, failure: Failure, *, retried: bool) -> None:
        """An attempt failed; ``retried``: not the first one."""

    def allows(self, failure: Failure) -> bool:  # noqa: ARG002 - for the others, as below
        """Whether one retry may follow. Asking spends nothing."""
        return True

    def spend(self, failure: Failure) -> bool:  # noqa: ARG002
        """Pay for the retry that was allowed; False where another thread had the last token."""
        return True

    def succeeded(self, *, retried: bool) -> None:
        """A command was answered well, at its first attempt or at a later one."""

    def is_rejection(self, failure: Failure) -> bool:
        """Whether it counts as overload here."""
        return failure.overloaded

    def reset_after_fork(self) -> None:
        """In a forked child: full again, and a lock that no thread of the parent's holds."""


UNLIMITED = RetryBudget()


class _Accounts(RetryBudget):
    """Tokens for what a server rejected, and for the rest, full at first, under a reentrant lock.
    Counted in whole tenths: ten times 0.1 as floats is less than 1."""

    def __init__(self, most: float, least: float) -> None:
        self._most, self._least = _tenths(most), _tenths(least)
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        self._lock = threading.RLock()
        self._fill()

    @property
    def tokens(self) -> float:
        return max(0, self._rejected) / 10

    def _fill(self) -> None:
        self._rejected = self._others = self._most
        self.full = True

    def _add(self, rejected: int, others: int = 0) -> None:
        """Tenths, to either account; what exceeds the capacity is lost."""
        with self._lock:
            self._rejected = min(self._most, max(self._least, self._rejected + rejected))
            self._others = min(self._most, max(self._least, self._others + others))
            self.full = self._rejected == self._others == self._most


class RatioBudget(_Accounts):
    """Retries in proportion to what succeeds, for every reason.

    Each failed attempt costs a token and each success earns a part of one; a retry needs what is
    left to be more than nothing. There are two accounts, one for what a server rejected as
    overloaded and one for the rest: an election must not use up what rejections after it need.
    Source: gRPC A6, "Throttling Retry Attempts and Hedged RPCs".
    """

    def __init__(
        self, clock: Clock, reserve: float = RESERVE, debt: float = DEBT, ratio: float = RATIO
    ) -> None:
        super().__init__(reserve, -debt)
        self._earned = _tenths(ratio)
        self._clock = clock
        self._failed_at = -math.inf

    @property
    def tokens(self) -> float:
        return self._most / 10 if self._is_forgotten(self._clock.now()) else super().tokens

    def _is_forgotten(self, now: float) -> bool:
        return now - self._failed_at >= FORGOTTEN_S

    def failed(self, failure: Failure, *, retried: bool) -> None:  # noqa: ARG002 - both cost the same
        if not (failure.overloaded or failure.reason in DISTRESS):
            return
        now = self._clock.now()
        with self._lock:
            if self._is_forgotten(now):
                self._fill()
            self._failed_at = now
            self._add(*((-10, 0) if self.is_rejection(failure) else (0, -10)))

    def allows(self, failure: Failure) -> bool:
        return (self._rejected if self.is_rejection(failure) else self._others) > 0

    def succeeded(self, *, retried: bool) -> None:  # noqa: ARG002 - as above
        self._add(self._earned, self._earned)

    def is_rejection(self, failure: Failure) -> bool:
        return failure.rejected


class TokenBucket(_Accounts):
    """The specification's, for retries after overload errors alone. Source: Client Backpressure of
    February 2026, "Adaptive retry policy" and "Token Bucket"."""

    def __init__(self, capacity: float | None = None) -> None:
        super().__init__(CAPACITY if capacity is None else capacity, 0)

    def failed(self, failure: Failure, *, retried: bool) -> None:
        """A retry that failed otherwise than by overload has its token back (rule 3)."""
        if retried and not failure.overloaded:
            self._add(_tenths(RETRY))

    def allows(self, failure: Failure) -> bool:
        return not failure.overloaded or self._rejected >= _tenths(RETRY)

    def spend(self, failure: Failure) -> bool:
        return not failure.overloaded or self.consume()

    def succeeded(self, *, retried: bool) -> None:
        self._add(_tenths(RETURN_RATE + RETRY if retried else RETURN_RATE))

    def consume(self, tokens: float = RETRY) -> bool:
        """Take them if they are all there; whether they were."""
        tenths = _tenths(tokens)
        with self._lock:
            if self._rejected < tenths:
                return False
            self._add(-tenths)
            return True


def _tenths(tokens: float) -> int:
    return round(tokens * 10)
