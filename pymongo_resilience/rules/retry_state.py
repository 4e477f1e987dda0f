"""What the rules know of one command and its retries, and how many of its attempts failed."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .budget import UNLIMITED, RetryBudget

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pymongo_resilience.clock import Deadline

    from .failure import Failure, RetryReason
    from .strategy import RetryStrategy


class Kind(enum.Enum):
    """What an operation is to the retry rules."""

    READ = "read"
    """A read the Retryable Reads text supports."""
    WRITE = "write"
    """A write; whether it is a retryable one is a fact of each attempt."""
    COMMAND = "command"
    """A generic command runner: what it runs is the caller's affair, never inspected."""
    GET_MORE = "getMore"
    AGGREGATE_WRITE = "aggregate with a write stage"
    TRANSACTION_END = "commit or abort"
    CLEANUP = "killCursors or endSessions"
    """What the driver sends on its own account; repeated for an overloaded server alone."""


@dataclass(slots=True)
class RetryState:
    """Belongs to one thread or task; made at the first failure of one run of the driver's loop."""

    name: str
    """Its name in the telemetry, for example ``"find"``."""
    namespace: str
    """``"db.collection"``, or ``"db"`` where there is no collection."""
    kind: Kind
    strategy: RetryStrategy
    retries_enabled: bool = True
    """The client's retryReads, retryWrites, or both for a command runner."""
    in_transaction: bool = False
    acknowledged: bool = True
    """False also where it is not known: then a write is not repeated on the strength of it."""
    declared_idempotent: bool = False
    """The caller declares that a repetition does no harm."""
    deadline: Deadline | None = None
    retry_window: Deadline | None = None
    """With ``timeout_ms=0``: no deadline, but repeating ends here."""
    max_retries: int | None = None
    """The client's own number; None leaves it to the configuration."""
    budget: RetryBudget = field(default=UNLIMITED, repr=False)
    """The client's."""
    once: bool = False
    """It is repeated once at most: an abort, which the client's background task sends again."""
    method: str = ""
    """The driver's method that the application called, for example ``"update_many"``; of a cursor's
    later batch ``"find/getMore"``. Empty where it is not known."""
    data: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """The caller's own facts, for the strategy; never shown, they may be confidential."""

    unhurried_until: Deadline | None = None
    """Without a deadline, a retry that begins before then is an extra one: the driver alone might
    still wait for its server, and would make its one retry later."""

    attempts: int = 0
    """Failed attempts of the command at hand."""
    unattempted: int = 0
    """Those of them that found a paused pool, and so tried nothing."""
    carried_txn_number: bool = False
    """The last of them did."""
    overloaded: bool = False
    """An overload error was among them."""
    rejections: int = 0
    """Those of them that the server rejected as overloaded."""
    began: float | None = None
    """When the operation began, on the clock; None if it is not known."""
    rejected_since: float | None = None
    """When the first of those failed, on the clock; None if it is not known."""
    in_grace: bool = False
    """It may be retried as often as by pymongo, whatever the budget has left."""
    waited: float = 0.0
    """Seconds of all waits that were decided on between attempts."""
    reasons: list[RetryReason] = field(default_factory=list)

    @property
    def idempotent(self) -> bool:
        """A repetition is known to do no harm: of a read, of a commit or an abort, of a write whose
        failed attempt carried a transaction number, and of what the caller declared."""
        harmless = self.kind in (Kind.READ, Kind.TRANSACTION_END)
        return harmless or self.carried_txn_number or self.declared_idempotent

    @property
    def time_limit(self) -> Deadline | None:
        """What no wait between attempts may pass: the deadline, or the end of repeating."""
        return self.retry_window if self.deadline is None else self.deadline

    def count(self, failure: Failure) -> None:
        """One more attempt has failed. What that costs, ``RetryBudget.failed`` says."""
        self.attempts += 1
        self.unattempted += failure.pool_paused
        if self.retries <= 1 and (until := failure.unhurried_until) is not None:
            # The driver's own retry begins when it has found the server, not later than this after
            # the library's first. Further failures do not extend the time, so it does end.
            known = self.unhurried_until
            if known is None or known.remaining() < until.remaining():
                self.unhurried_until = until._replace(timeout=until.timeout + self.waited)
        self.carried_txn_number = failure.carried_txn_number
        self.overloaded = self.overloaded or failure.overloaded
        self.rejections += failure.rejected
        self.reasons.append(failure.reason)

    @property
    def retries(self) -> int:
        """How many of the failed attempts were retries."""
        return self.attempts - 1 - self.unattempted

    @property
    def waits_like_pymongo(self) -> bool:
        """Whether the driver alone would have made its one retry by now."""
        until = self.unhurried_until
        # The waits are compared as well: a clock that stands still, as a test's may, never expires.
        return until is None or until.expired() or self.waited > until.timeout

    def next_command(self) -> None:
        """A bulk went on to its next command, which has its own attempts."""
        self.attempts = self.unattempted = self.rejections = 0
        self.unhurried_until = None
        self.overloaded = self.in_grace = False
        self.rejected_since = None
