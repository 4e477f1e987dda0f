"""The retry budget of one client, which limits its retries.

``RatioBudget`` is the default. ``TokenBucket`` is the specification's bucket, for retries after
overload errors only. The numbers of ``RatioBudget`` come from the simulation in bench/overload.md.
"""

from __future__ import annotations

import math
import threading

from pymongo_resilience.clock import Clock

from .failure import UNHEALTHY, Failure, RetryReason

CAPACITY = 1000.0
RETURN_RATE = 0.1
"""Tokens that a success at the first attempt adds."""
RETRY = 1.0
"""Tokens that one retry costs. A retry that shows a healthy server gets them back."""

RESERVE = 8.0
"""Number of consecutive failed attempts that a client with a full account retries."""
DEBT = 8.0
"""How far the account may be overdrawn. Successes must earn this much before the next retry."""
RATIO = 0.2
"""Tokens that a success earns. If more than one attempt in six fails, the account runs empty."""
PYMONGO_RETRIES = 2
"""How often pymongo itself retries a rejected operation."""
GRACE_S = 1.0
"""Length in seconds of the grace period that the first rejection of a full account starts. Many
operations may be in progress at that time; those that began before the period ends may be retried
as often as by pymongo, whatever the account holds.
"""
MAX_FAILED = 4
"""The grace period ends when this many operations were rejected more often than pymongo would
retry: the overload is not a brief one.
"""
PATIENCE_S, PATIENCE_BACKOFFS = 2.0, 20.0
"""After its first rejection, an operation is retried more often than by pymongo for this many
seconds, or for this many times the base of the back-off if that is longer. Later retries would hit
a server that has just recovered, from many clients at once.
"""
FORGOTTEN_S = 60.0
"""Seconds without a failed attempt after which the account is full again."""

DISTRESS = UNHEALTHY | {RetryReason.NOT_PRIMARY}
"""Reasons that a server in distress causes and that retries may make worse. Conflicts and lock
timeouts come from the application, and attempts that a breaker refused were never sent.
"""


class RetryBudget:
    """The interface of budgets, and a budget without a limit. Thread- and task-safe."""

    full = True
    """True if a success at the first attempt would not change the budget."""

    @property
    def tokens(self) -> float | None:
        """The tokens left for retries after overload errors; None without a limit."""
        return None

    def failed(
        self,
        failure: Failure,  # noqa: ARG002
        *,
        retried: bool,  # noqa: ARG002
        rejections: int = 0,  # noqa: ARG002
        began: float | None = None,  # noqa: ARG002
    ) -> bool:
        """Count a failed attempt.

        Args:
            failure: The facts of the attempt.
            retried: Whether the attempt was a retry.
            rejections: How many earlier attempts of the operation were rejected.
            began: When the operation began, on the clock; None if unknown.

        Returns:
            True if the operation may be retried as often as by pymongo, whatever the budget holds.
        """
        return False

    def allows(self, failure: Failure) -> bool:  # noqa: ARG002
        """Return True if one retry may follow. Asking costs nothing."""
        return True

    def spend(self, failure: Failure) -> bool:  # noqa: ARG002
        """Pay for an allowed retry. Return False if another thread took the last token."""
        return True

    def is_too_late(self, since: float, delay: float, base_backoff: float) -> bool:  # noqa: ARG002
        """Return True if a retry in ``delay`` seconds would be too late.

        Args:
            since: When the operation was first rejected, on the clock.
            delay: Seconds until the retry.
            base_backoff: Base of the back-off after overload errors, in seconds.
        """
        return False

    def succeeded(self, *, retried: bool, rejections: int = 0) -> None:
        """Count a command that succeeded.

        Args:
            retried: Whether it succeeded at a retry.
            rejections: How many of its attempts were rejected before.
        """

    def is_rejection(self, failure: Failure) -> bool:
        """Return True if the budget counts the failure as overload."""
        return failure.overloaded

    def reset_after_fork(self) -> None:
        """Fill the budget in a forked child, and replace the lock, which a thread of the parent may
        hold.
        """


UNLIMITED = RetryBudget()


class _Accounts(RetryBudget):
    """Two accounts of tokens, one for rejected attempts and one for other failures, under a
    reentrant lock.

    Both start full. Amounts are integers, in tenths of a token, because adding 0.1 ten times as
    floats gives less than 1.
    """

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
        """Add tenths of tokens to both accounts. Anything above the capacity is lost."""
        with self._lock:
            self._rejected = min(self._most, max(self._least, self._rejected + rejected))
            self._others = min(self._most, max(self._least, self._others + others))
            # Read without the lock by successes, which cost nothing while the accounts are full.
            self.full = self._rejected == self._others == self._most


class RatioBudget(_Accounts):
    """A budget that allows retries in proportion to successes, for every reason.

    Each failed attempt costs a token, each success earns a part of one, and a retry needs a
    positive balance. Rejections by an overloaded server have an account of their own, so that an
    election does not use up the retries that rejections after it need. Source: gRPC A6, "Throttling
    Retry Attempts and Hedged RPCs".

    Two rules keep short problems from causing errors that pymongo would not raise. An operation
    that succeeds after at most ``PYMONGO_RETRIES`` rejections gets its tokens back. And the first
    rejection of a full account starts a grace period: operations that began before its end may be
    retried that often, whatever the balance, until ``MAX_FAILED`` operations were rejected more
    often than that.

    A new or idle client has a full account even if the overload has lasted for long. If thousands
    of such clients retried without end, they would all hit the server when it recovers. So an
    operation is retried for ``PATIENCE_S`` only, unless another operation succeeds in that time.
    """

    def __init__(
        self, clock: Clock, reserve: float = RESERVE, debt: float = DEBT, ratio: float = RATIO
    ) -> None:
        super().__init__(reserve, -debt)
        self._earned = _tenths(ratio)
        self._clock = clock
        self._failed_at = self._succeeded_at = -math.inf

    @property
    def tokens(self) -> float:
        return self._most / 10 if self._is_forgotten(self._clock.now()) else super().tokens

    def _is_forgotten(self, now: float) -> bool:
        return now - self._failed_at >= FORGOTTEN_S

    def _fill(self) -> None:
        super()._fill()
        self._grace_ends, self._failed_in_grace = -math.inf, 0

    def failed(
        self,
        failure: Failure,
        *,
        retried: bool,  # noqa: ARG002
        rejections: int = 0,
        began: float | None = None,
    ) -> bool:
        # Failures that a server in distress does not cause cost nothing.
        if not (failure.overloaded or failure.reason in DISTRESS):
            return False
        now = self._clock.now()
        with self._lock:
            # The last failure is so long ago that the client starts with a full account again.
            if self._is_forgotten(now):
                self._fill()
            self._failed_at = now
            if not self.is_rejection(failure):
                # Ten tenths are one token.
                self._add(0, -10)
                return False
            in_grace = self._note_rejection(now, rejections, now if began is None else began)
            self._add(-10)
        return in_grace

    def _note_rejection(self, now: float, rejections: int, began: float) -> bool:
        """Return True if this is the operation's first rejection and it began before a grace period
        ended.

        The start counts, not the rejection, because the operation may have waited long for a
        connection.
        """
        if rejections == 0:
            # The account was full until now, so this is the first rejection after a quiet time.
            if self._rejected == self._most:
                self._grace_ends, self._failed_in_grace = now + GRACE_S, 0
            return began < self._grace_ends
        # Count each operation once: at the rejection that pymongo would not have retried.
        self._failed_in_grace += rejections == PYMONGO_RETRIES
        if self._failed_in_grace >= MAX_FAILED:
            self._grace_ends = -math.inf
        return False

    def allows(self, failure: Failure) -> bool:
        return (self._rejected if self.is_rejection(failure) else self._others) > 0

    def is_too_late(self, since: float, delay: float, base_backoff: float) -> bool:
        patience = max(PATIENCE_S, PATIENCE_BACKOFFS * base_backoff)
        # A success since the first rejection shows that the server still accepts work.
        return self._succeeded_at < since and self._clock.now() + delay - since > patience

    def succeeded(self, *, retried: bool, rejections: int = 0) -> None:  # noqa: ARG002
        self._succeeded_at = self._clock.now()
        # pymongo would have made these retries as well, so they cost nothing if they helped.
        refund = 10 * rejections if rejections <= PYMONGO_RETRIES else 0
        self._add(self._earned + refund, self._earned)

    def is_rejection(self, failure: Failure) -> bool:
        return failure.rejected


class TokenBucket(_Accounts):
    """The specification's token bucket, for retries after overload errors only.

    Source: Client Backpressure of February 2026, "Adaptive retry policy" and "Token Bucket".
    """

    def __init__(self, capacity: float | None = None) -> None:
        super().__init__(CAPACITY if capacity is None else capacity, 0)

    def failed(
        self,
        failure: Failure,
        *,
        retried: bool,
        rejections: int = 0,  # noqa: ARG002
        began: float | None = None,  # noqa: ARG002
    ) -> bool:
        """Return the token of a retry that failed for another reason than overload (rule 3)."""
        if retried and not failure.overloaded:
            self._add(_tenths(RETRY))
        return False

    def allows(self, failure: Failure) -> bool:
        return not failure.overloaded or self._rejected >= _tenths(RETRY)

    def spend(self, failure: Failure) -> bool:
        return not failure.overloaded or self.consume()

    def succeeded(self, *, retried: bool, rejections: int = 0) -> None:  # noqa: ARG002
        self._add(_tenths(RETURN_RATE + RETRY if retried else RETURN_RATE))

    def consume(self, tokens: float = RETRY) -> bool:
        """Take the tokens if the bucket holds enough of them. Return True if it did."""
        tenths = _tenths(tokens)
        with self._lock:
            if self._rejected < tenths:
                return False
            self._add(-tenths)
            return True


def _tenths(tokens: float) -> int:
    return round(tokens * 10)
