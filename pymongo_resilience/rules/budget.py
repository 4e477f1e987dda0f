"""The retry budget of one client: what its retries may spend.

``RatioBudget`` is the default; ``TokenBucket`` is the specification's, for retries after overload
errors alone. bench/overload.md has the simulation that the numbers of the first are from.
"""

from __future__ import annotations

import math
import threading
from abc import abstractmethod
from collections.abc import MutableSet

from pymongo_resilience.clock import Clock

from .failure import Failure, Stage

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


class RetryBudget:
    """Full at first. Thread- and task-safe: a reentrant lock. Counts in whole tenths of a token:
    ten times 0.1 as floats is less than 1."""

    holds_back = False
    """Whether a retry that it does not allow has to wait, unless a server has rejected the command:
    else it is declined after every overload error, and made as always after others."""

    def __init__(
        self, most: float, least: float, incomplete: MutableSet[RetryBudget] | None = None
    ) -> None:
        """``incomplete``: keeps the budgets that are not full; to others no success need be
        reported."""
        self._most = self._tenths = _tenths(most)
        self._least = _tenths(least)
        self._incomplete: MutableSet[RetryBudget] = set() if incomplete is None else incomplete
        self._lock = threading.RLock()

    @property
    def tokens(self) -> float:
        """What retries after overload errors may spend right now."""
        return max(0, self._tenths) / 10

    @abstractmethod
    def failed(self, *, overloaded: bool, retried: bool, distress: bool) -> None:
        """An attempt failed; ``retried``: not the first one; ``distress``: as servers in distress
        fail."""

    @abstractmethod
    def allows(self, *, overloaded: bool) -> bool:
        """Whether one retry may follow such a failure; where retries cost, it is paid for here."""

    @abstractmethod
    def never_repeated(self, *, overloaded: bool) -> None:
        """The retry that was allowed is not made."""

    @abstractmethod
    def succeeded(self, *, retried: bool) -> None:
        """A command was answered well, at its first attempt or at a later one."""

    def is_rejection(self, failure: Failure) -> bool:
        """Whether it counts as overload here."""
        return failure.overloaded

    def deposit(self, tokens: float) -> None:
        """Put them in; what exceeds the capacity is lost."""
        self._add(_tenths(tokens))

    def reset_after_fork(self) -> None:
        """In a forked child: full again, and a lock that no thread of the parent's holds."""
        self._lock = threading.RLock()
        self._add(self._most - self._tenths)

    def _add(self, tenths: int) -> None:
        with self._lock:
            self._tenths = min(self._most, max(self._least, self._tenths + tenths))
            if self._is_full():
                self._incomplete.discard(self)
            else:
                self._incomplete.add(self)

    def _is_full(self) -> bool:
        return self._tenths == self._most


class RatioBudget(RetryBudget):
    """Retries in proportion to what succeeds, for every reason.

    Each failed attempt costs a token and each success earns a part of one; a retry needs what is
    left to be more than nothing. There are two accounts, one for what a server rejected as
    overloaded and one for the rest: an election must not use up what rejections after it need.
    Source: gRPC A6, "Throttling Retry Attempts and Hedged RPCs".
    """

    holds_back = True

    def __init__(
        self,
        reserve: float = RESERVE,
        debt: float = DEBT,
        ratio: float = RATIO,
        incomplete: MutableSet[RetryBudget] | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        """Without a ``clock`` nothing is forgotten."""
        super().__init__(reserve, -debt, incomplete)
        self._earned = _tenths(ratio)
        self._clock = clock
        self._failed_at = -math.inf
        self._others = self._most

    @property
    def tokens(self) -> float:
        return self._most / 10 if self._is_forgotten(self._now()) else super().tokens

    def _now(self) -> float:
        return 0.0 if self._clock is None else self._clock.now()

    def _is_forgotten(self, now: float) -> bool:
        return now - self._failed_at >= FORGOTTEN_S

    def failed(self, *, overloaded: bool, retried: bool, distress: bool) -> None:  # noqa: ARG002 - both cost the same
        if not distress:
            return
        now = self._now()
        with self._lock:
            if self._is_forgotten(now):
                self._tenths = self._others = self._most
            self._failed_at = now
            if overloaded:
                self._add(-10)
            else:
                self._others = max(self._least, self._others - 10)
                self._add(0)

    def allows(self, *, overloaded: bool) -> bool:
        return (self._tenths if overloaded else self._others) > 0

    def never_repeated(self, *, overloaded: bool) -> None:
        """The failure has cost, not the retry."""

    def succeeded(self, *, retried: bool) -> None:  # noqa: ARG002 - as above
        with self._lock:
            self._others = min(self._most, self._others + self._earned)
            self._add(self._earned)

    def reset_after_fork(self) -> None:
        self._others = self._most
        super().reset_after_fork()

    def is_rejection(self, failure: Failure) -> bool:
        """A connection that cannot be made is none, although the driver calls it overloaded."""
        return failure.overloaded and failure.stage is not Stage.NOT_SENT

    def _is_full(self) -> bool:
        return super()._is_full() and self._others == self._most


class TokenBucket(RetryBudget):
    """The specification's, for retries after overload errors alone. Source: Client Backpressure of
    February 2026, "Adaptive retry policy" and "Token Bucket"."""

    def __init__(
        self, capacity: float | None = None, incomplete: MutableSet[RetryBudget] | None = None
    ) -> None:
        super().__init__(CAPACITY if capacity is None else capacity, 0, incomplete)

    def failed(self, *, overloaded: bool, retried: bool, distress: bool) -> None:  # noqa: ARG002 - not asked
        """A retry that failed otherwise than by overload has its token back (rule 3)."""
        if retried and not overloaded:
            self.deposit(RETRY)

    def allows(self, *, overloaded: bool) -> bool:
        return not overloaded or self.consume()

    def never_repeated(self, *, overloaded: bool) -> None:
        if overloaded:
            self.deposit(RETRY)

    def succeeded(self, *, retried: bool) -> None:
        self.deposit(RETURN_RATE + RETRY if retried else RETURN_RATE)

    def consume(self, tokens: float = RETRY) -> bool:
        """Take them if they are all there; whether they were."""
        tenths = _tenths(tokens)
        with self._lock:
            if self._tenths < tenths:
                return False
            self._add(-tenths)
            return True


def _tenths(tokens: float) -> int:
    return round(tokens * 10)
