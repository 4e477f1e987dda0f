"""The record of one operation: its failed attempts and their outcome.

The executor writes it while the operation runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .failure import RetryReason, Stage
    from .retry_rules import Rule


class AttemptRecord(NamedTuple):
    """One failed attempt and the decision about it. Immutable."""

    server: str | None
    """``"host:port"``; None if no server was selected."""
    stage: Stage
    reason: RetryReason
    ended: float
    """Seconds after the start of the operation."""
    delay: float | None
    """Seconds of back-off before the next attempt; None if no attempt follows."""


class Outcome:
    """The failed attempts of one operation, and why retries ended.

    Belongs to the operation's thread or task. An operation may run several commands, one after the
    other, and all their failed attempts are here. Successful attempts are not recorded. The
    defaults are class attributes, so that creating an outcome is cheap.
    """

    attempts: tuple[AttemptRecord, ...] = ()
    declined_by: Rule | None = None
    """The rule that declined the most recent retry."""
    final_error: Exception | None = None
    """The error that was raised in the end. A timeout among these is not the deadline's, unless it
    is an OperationTimeoutError.
    """

    @property
    def retry_reasons(self) -> tuple[RetryReason, ...]:
        """The reason for each retry."""
        return tuple(attempt.reason for attempt in self.attempts if attempt.delay is not None)

    @property
    def is_retried(self) -> bool:
        """True if there was a retry."""
        return bool(self.attempts) and bool(self.retry_reasons)

    @property
    def number_of_attempts(self) -> int:
        """The number of attempts, including the current or successful one."""
        return 1 + len(self.retry_reasons)

    @property
    def backoff(self) -> float:
        """Total seconds of delay between attempts."""
        return sum(attempt.delay or 0.0 for attempt in self.attempts)

    def retried(self, record: AttemptRecord) -> None:
        """Record a failed attempt that is retried."""
        self.attempts += (record,)

    def declined(self, record: AttemptRecord, rule: Rule) -> None:
        """Record a failed attempt that is not retried."""
        self.attempts += (record,)
        self.declined_by = rule

    def begin_again(self) -> None:
        """Clear the final error, because the whole operation starts again."""
        self.declined_by = self.final_error = None
