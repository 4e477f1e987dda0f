"""The state of one operation for the retry rules: its kind, settings, and failed attempts."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .budget import UNLIMITED, RetryBudget
from .failure import RetryReason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pymongo_resilience.clock import Deadline

    from .failure import Failure
    from .strategy import RetryStrategy


class Kind(enum.Enum):
    """The kind of an operation, as far as the retry rules distinguish it."""

    READ = "read"
    """A read that the Retryable Reads specification covers."""
    WRITE = "write"
    """A write. Whether it is retryable is a fact of each attempt."""
    COMMAND = "command"
    """``command()`` and similar methods. The library does not inspect the command, so only the
    caller can declare that a retry is safe.
    """
    GET_MORE = "getMore"
    AGGREGATE_WRITE = "aggregate with a write stage"
    TRANSACTION_END = "commit or abort"
    CLEANUP = "killCursors or endSessions"
    """Commands that pymongo sends by itself. Retried only if the server is overloaded."""


@dataclass(slots=True)
class RetryState:
    """The state of one run of pymongo's retry loop. Created at its first failure; belongs to one
    thread or task.
    """

    name: str
    """The operation's name in telemetry, such as ``"find"``."""
    namespace: str
    """``"db.collection"``, or ``"db"`` if there is no collection."""
    kind: Kind
    strategy: RetryStrategy
    retries_enabled: bool = True
    """The client's retryReads or retryWrites; for ``command()``, both. ``retryWrites=false`` does
    not switch off retries of what the caller declared idempotent.
    """
    in_transaction: bool = False
    acknowledged: bool = True
    """False if the write is unacknowledged, or if that is unknown."""
    declared_idempotent: bool = False
    """The caller declared that applying the command twice does no harm."""
    deadline: Deadline | None = None
    retry_window: Deadline | None = None
    """The end of retries if there is no deadline: for ``timeout_ms=0`` and for endSessions."""
    max_retries: int | None = None
    """The client's own maximum; None if the configuration applies."""
    budget: RetryBudget = field(default=UNLIMITED, repr=False)
    """The client's retry budget."""
    once: bool = False
    """True for an abort. An abort that no server rejected is retried at most once, even if time is
    left, because the client's background task sends it again later.
    """
    method: str = ""
    """The pymongo method that the application called, such as ``"update_many"``; for a cursor's
    later batches, ``"find/getMore"``. Empty if unknown.
    """
    not_resumable: str = ""
    """Why the cursor of this getMore is not resumed although the option ``resumable`` is set; empty
    if it is not set. A text of the library, without any value of the application.
    """
    data: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """The caller's own values for the strategy. Never exported, since they may be confidential."""

    unhurried_until: Deadline | None = None
    """If there is no deadline, retries before this time do not count as the operation's single
    retry: pymongo alone might still be waiting for the server. See ``retry_rules.is_extra``.
    """

    attempts: int = 0
    """Number of failed attempts of the current command."""
    unattempted: int = 0
    """Number of these that found a paused pool, so that no connection was tried."""
    carried_txn_number: bool = False
    """True if the last attempt carried a transaction number."""
    overloaded: bool = False
    """True if after at least one attempt the server asked for less load."""
    rejections: int = 0
    """Number of attempts that a server rejected because it was overloaded."""
    began: float | None = None
    """When the operation began, on the clock; None if unknown."""
    rejected_since: float | None = None
    """When the server first rejected the operation, on the clock; None if it has not, or if that is
    unknown.
    """
    in_grace: bool = False
    """True if the operation may be retried as often as by pymongo, even if the budget is spent."""
    waited: float = 0.0
    """Total seconds of delay between attempts."""
    reasons: list[RetryReason] = field(default_factory=list)
    unanswered_by: list[str | None] = field(default_factory=list)
    """The server of each attempt that had no reply."""

    @property
    def idempotent(self) -> bool:
        """True if applying the command twice is known to do no harm.

        That holds for reads, commits and aborts, for writes whose failed attempt carried a
        transaction number, and for commands that the caller declared idempotent.
        """
        harmless = self.kind in (Kind.READ, Kind.TRANSACTION_END)
        return harmless or self.carried_txn_number or self.declared_idempotent

    @property
    def time_limit(self) -> Deadline | None:
        """The deadline, or ``retry_window`` if there is none. No delay may last longer."""
        return self.retry_window if self.deadline is None else self.deadline

    def count(self, failure: Failure) -> None:
        """Count a failed attempt. The budget counts it separately, in ``RetryBudget.failed``."""
        self.attempts += 1
        self.unattempted += failure.pool_paused
        if self.retries <= 1 and (until := failure.unhurried_until) is not None:
            # ``until`` is the time by which pymongo alone would have found the server again and
            # retried. The failures of the first attempt and of the first retry may move it back;
            # the later one applies. Later failures may not, so that the extra retries end.
            earlier = self.unhurried_until
            if earlier is None or earlier.remaining() < until.remaining():
                self.unhurried_until = until._replace(timeout=until.timeout + self.waited)
        self.carried_txn_number = failure.carried_txn_number
        self.overloaded = self.overloaded or failure.overloaded
        self.rejections += failure.rejected
        self.reasons.append(failure.reason)
        if failure.reason is RetryReason.NO_REPLY:
            self.unanswered_by.append(failure.server)

    @property
    def retries(self) -> int:
        """Number of failed attempts that were retries."""
        # An attempt that found a paused pool tried no connection, so pymongo's single retry would
        # still be due.
        return self.attempts - 1 - self.unattempted

    @property
    def pymongo_would_have_retried(self) -> bool:
        """True if pymongo alone would have made its single retry by now."""
        until = self.unhurried_until
        # Also compare the total delay: if the clock stands still, as in a test, no time expires.
        return until is None or until.expired() or self.waited > until.timeout

    def next_command(self) -> None:
        """Reset the counts when a bulk write moves on to its next command, which gets its own
        attempts.
        """
        self.attempts = self.unattempted = self.rejections = 0
        self.unhurried_until = None
        self.overloaded = self.in_grace = False
        self.rejected_since = None
        self.unanswered_by.clear()
