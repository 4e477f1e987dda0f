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
"""Failed attempts in a row that a client with nothing against it retries."""
DEBT = 8.0
"""What the account may be overdrawn by: so much has to be earned before the next retry."""
RATIO = 0.2
"""What a success earns: with more than one failed attempt in six, the account runs empty."""
PYMONGO_RETRIES = 2
"""How often pymongo itself retries a rejected operation."""
GRACE_S = 1.0
"""Seconds after the first rejection of a full account. What began before their end may be retried
as often as by pymongo, whatever is left: so many operations may be in progress at once."""
MAX_FAILED = 4
"""So many operations rejected once more than pymongo retries show that this is no blip."""
PATIENCE_S, PATIENCE_BACKOFFS = 2.0, 20.0
"""Seconds after its first rejection in which an operation is retried more often than by pymongo, or
so many times the base of the back-off if that is longer. What is retried later hits a server that
has just recovered, and it comes from clients that did not know of each other."""
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

    def failed(
        self,
        failure: Failure,  # noqa: ARG002
        *,
        retried: bool,  # noqa: ARG002
        rejections: int = 0,  # noqa: ARG002
        began: float | None = None,  # noqa: ARG002
    ) -> bool:
        """Take note of a failed attempt.

        Args:
            failure: its facts.
            retried: whether it was a retry.
            rejections: how many earlier attempts of the operation were rejected.
            began: when the operation began, on the clock; None if it is not known.

        Returns:
            Whether the operation may be retried as often as by pymongo, whatever is left.
        """
        return False

    def allows(self, failure: Failure) -> bool:  # noqa: ARG002
        """Whether one retry may follow. Asking spends nothing."""
        return True

    def spend(self, failure: Failure) -> bool:  # noqa: ARG002
        """Pay for the retry that was allowed; False where another thread had the last token."""
        return True

    def is_too_late(self, since: float, delay: float, base_backoff: float) -> bool:  # noqa: ARG002
        """Return True if no retry may follow ``delay`` seconds from now.

        Args:
            since: when the operation was rejected first, on the clock.
            delay: in seconds.
            base_backoff: the base of the back-off after overload errors, in seconds.
        """
        return False

    def succeeded(self, *, retried: bool, rejections: int = 0) -> None:
        """Take note of a command that succeeded: at a later attempt than the first if ``retried``,
        after so many ``rejections``."""

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

    Each failed attempt takes a token, and each success earns a part of one; a retry needs what is
    left to be more than nothing. There are two accounts, one for what a server rejected as
    overloaded and one for the rest: an election must not use up what rejections after it need.
    Source: gRPC A6, "Throttling Retry Attempts and Hedged RPCs".

    Two rules keep a blip from becoming an error where pymongo has none. An operation that succeeds
    after at most ``PYMONGO_RETRIES`` rejections gets its tokens back. And the first rejection of a
    full account begins a grace period: operations that began before its end may be retried so often
    whatever is left, until ``MAX_FAILED`` operations were rejected again after that.

    A client that is new, or quiet, has a full account however long the overload has lasted. So its
    operations are retried for ``PATIENCE_S`` only, unless another one succeeds in that time:
    thousands of such clients recover together.
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
        if not (failure.overloaded or failure.reason in DISTRESS):
            return False
        now = self._clock.now()
        with self._lock:
            if self._is_forgotten(now):
                self._fill()
            self._failed_at = now
            if not self.is_rejection(failure):
                self._add(0, -10)
                return False
            in_grace = self._note_rejection(now, rejections, now if began is None else began)
            self._add(-10)
        return in_grace

    def _note_rejection(self, now: float, rejections: int, began: float) -> bool:
        """Return True if the operation is rejected for the first time, and began before the end of
        a grace period: it may have waited long for a connection."""
        if rejections == 0:
            if self._rejected == self._most:
                self._grace_ends, self._failed_in_grace = now + GRACE_S, 0
            return began < self._grace_ends
        self._failed_in_grace += rejections == PYMONGO_RETRIES
        if self._failed_in_grace >= MAX_FAILED:
            self._grace_ends = -math.inf
        return False

    def allows(self, failure: Failure) -> bool:
        return (self._rejected if self.is_rejection(failure) else self._others) > 0

    def is_too_late(self, since: float, delay: float, base_backoff: float) -> bool:
        patience = max(PATIENCE_S, PATIENCE_BACKOFFS * base_backoff)
        return self._succeeded_at < since and self._clock.now() + delay - since > patience

    def succeeded(self, *, retried: bool, rejections: int = 0) -> None:  # noqa: ARG002
        self._succeeded_at = self._clock.now()
        refund = 10 * rejections if rejections <= PYMONGO_RETRIES else 0
        self._add(self._earned + refund, self._earned)

    def is_rejection(self, failure: Failure) -> bool:
        return failure.rejected


class TokenBucket(_Accounts):
    """The specification's, for retries after overload errors alone. Source: Client Backpressure of
    February 2026, "Adaptive retry policy" and "Token Bucket"."""

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
        """A retry that failed otherwise than by overload has its token back (rule 3)."""
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
        """Take them if they are all there; whether they were."""
        tenths = _tenths(tokens)
        with self._lock:
            if self._rejected < tenths:
                return False
            self._add(-tenths)
            return True


def _tenths(tokens: float) -> int:
    return round(tokens * 10)
