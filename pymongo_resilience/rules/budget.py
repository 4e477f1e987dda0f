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
"""Tokens that a success at the first attempt returns to a ``TokenBucket``."""
RETRY = 1.0
"""Tokens that one retry costs in a ``TokenBucket``. They are refunded if the retry succeeds, or
fails for another reason than overload.
"""

RESERVE = 8.0
"""Tokens in a full account. This many consecutive failed attempts empty it."""
DEBT = 8.0
"""Maximum debt of an account in tokens. Successes must earn the debt back before an account allows
retries again.
"""
RATIO = 0.2
"""Tokens that a success earns. If more than one attempt in six fails, the account becomes empty."""
PYMONGO_RETRIES = 2
"""How often pymongo alone retries a rejected operation."""
GRACE_S = 1.0
"""Length in seconds of the grace period, which begins when an operation is rejected while the
account is full. Many operations may be in progress at that time. Those that began before the period
ends may be retried ``PYMONGO_RETRIES`` times, even if the account is empty.
"""
MAX_FAILED = 4
"""The grace period ends early when pymongo's retries would not have been enough for this many
operations, because the overload is then not a brief one.
"""
PATIENCE_S, PATIENCE_BACKOFFS = 2.0, 20.0
"""How long after its first rejection an operation may get more retries than pymongo would make: so
many seconds, or so many times the base back-off, whichever is longer. Later retries of many clients
would all hit a server that has just recovered.
"""
FORGOTTEN_S = 60.0
"""Seconds without a failed attempt after which the account is full again."""

DISTRESS = UNHEALTHY | {RetryReason.NOT_PRIMARY}
"""Reasons for failures that come from a server in distress, which retries may make worse. Other
failures cost no tokens: conflicts and lock timeouts come from the application, and attempts that a
breaker refused were never sent.
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
            True if the operation may be retried as often as by pymongo, even if the budget is
            spent.
        """
        return False

    def allows(self, failure: Failure) -> bool:  # noqa: ARG002
        """Return True if a retry after the failure is allowed. This takes no tokens."""
        return True

    def spend(self, failure: Failure) -> bool:  # noqa: ARG002
        """Take the tokens for an allowed retry. Return False if another thread took the last
        ones.
        """
        return True

    def is_too_late(self, since: float, delay: float, base_backoff: float) -> bool:  # noqa: ARG002
        """Return True if a retry in ``delay`` seconds would be too long after the first rejection.

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
        """Return True if the budget counts the failure as a rejection by an overloaded server."""
        return failure.overloaded

    def reset_after_fork(self) -> None:
        """Fill the budget in a forked child, and replace the lock, which a thread of the parent may
        hold.
        """


UNLIMITED = RetryBudget()


class _Accounts(RetryBudget):
    """Two accounts of tokens: one for rejected attempts, and one for other failures.

    Both start full. A reentrant lock protects them. Amounts are integers, in tenths of a token,
    because adding 0.1 ten times as a float gives less than 1.
    """

    def __init__(self, most: float, least: float) -> None:
        self._most, self._least = _tenths(most), _tenths(least)
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        # Reentrant, because a finalizer or a signal handler may interrupt the thread that holds it.
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
            # Successes read this without the lock, so that they cost nothing while it is True.
            self.full = self._rejected == self._others == self._most


class RatioBudget(_Accounts):
    """A budget that allows retries in proportion to the client's successes.

    Each attempt that fails because the server is in distress costs a token, each success earns a
    part of a token, and retries need a positive balance. Rejections by an overloaded server have
    their own account, so that failures in an election do not use up the retries for rejections
    after it. Source: gRPC A6, "Throttling Retry Attempts and Hedged RPCs".

    Two rules prevent errors that pymongo alone would not raise when an overload is brief:

    - An operation that succeeds after at most ``PYMONGO_RETRIES`` rejections gets back the tokens
      that they cost.
    - A rejection while the account is full starts a grace period of ``GRACE_S`` seconds. Operations
      that began before its end may be retried ``PYMONGO_RETRIES`` times, even if the account is
      empty. The period ends early once ``MAX_FAILED`` operations were rejected more often than
      that.

    Throttling costs no tokens. A server that throttles specifies when to retry, and refusing a
    request costs it little, so retries do not make it slower for others.

    One rule protects a server that recovers. A new or idle client has a full account, even if the
    overload began long ago. If thousands of such clients retried without end, their retries would
    all arrive when the server recovers. Retries that pymongo would not make therefore end some time
    after the operation's first rejection (see ``PATIENCE_S``), unless another operation of the
    client has succeeded since that rejection.
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
        # Failures that do not come from a server in distress cost nothing.
        if not (failure.reason in DISTRESS or failure.reports_overload or failure.rejected):
            return False
        now = self._clock.now()
        with self._lock:
            # The last failure was so long ago that the client gets full accounts again.
            if self._is_forgotten(now):
                self._fill()
            self._failed_at = now
            if not self.is_rejection(failure):
                # One token, in tenths.
                self._add(0, -10)
                return False
            in_grace = self._note_rejection(now, rejections, now if began is None else began)
            self._add(-10)
        return in_grace

    def _note_rejection(self, now: float, rejections: int, began: float) -> bool:
        """Count a rejection. Return True if it is the operation's first one and the operation began
        before the end of a grace period.

        The operation's start is compared, not the time of the rejection, because the operation may
        have waited long for a connection.
        """
        if rejections == 0:
            # The account was full until now, so this is the first rejection after a quiet time.
            if self._rejected == self._most:
                self._grace_ends, self._failed_in_grace = now + GRACE_S, 0
            return began < self._grace_ends
        # Count each operation once: at the rejection that follows pymongo's last retry.
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
        # Needs no lock: it is a single assignment, and any recent value will do.
        self._succeeded_at = self._clock.now()
        # Refund the retries that pymongo would have made as well, because they helped.
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
        """Refund the token of a retry that failed for another reason than overload (rule 3).

        Always returns False, because the specification has no grace period.
        """
        if retried and not failure.overloaded:
            self._add(_tenths(RETRY))
        return False

    def allows(self, failure: Failure) -> bool:
        # Only overload errors consume tokens (Client Backpressure, "Interaction with Other Retry
        # Policies").
        return not failure.overloaded or self._rejected >= _tenths(RETRY)

    def spend(self, failure: Failure) -> bool:
        return not failure.overloaded or self.consume()

    def succeeded(self, *, retried: bool, rejections: int = 0) -> None:  # noqa: ARG002
        self._add(_tenths(RETURN_RATE + RETRY if retried else RETURN_RATE))

    def consume(self, tokens: float = RETRY) -> bool:
        """Take tokens and return True. If the bucket does not hold enough of them, return False."""
        tenths = _tenths(tokens)
        with self._lock:
            if self._rejected < tenths:
                return False
            self._add(-tenths)
            return True


def _tenths(tokens: float) -> int:
    return round(tokens * 10)
