"""What happened to an operation so far. The executor writes it; everything else only reads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .failure import RetryReason, Stage
    from .retry_rules import Rule


class AttemptRecord(NamedTuple):
    """One failed attempt, and what was decided after it. Immutable."""

    server: str | None
    """``"host:port"``; None if no server was selected."""
    stage: Stage
    reason: RetryReason
    ended: float
    """Seconds since the operation began."""
    delay: float | None
    """Seconds of back-off before the next attempt; None if no attempt follows."""


@dataclass(slots=True, eq=False)
class Outcome:
    """The failed attempts of one operation, and why it was not retried further.

    Belongs to the thread or task of the operation. An operation may run several commands, one
    after the other; their attempts are all here. An attempt that succeeded leaves no record.
    """

    attempts: list[AttemptRecord] = field(default_factory=list)
    declined_by: Rule | None = None
    """The rule that declined the last retry."""
    final_error: Exception | None = None
    """The error that was raised in the end. If it is a timeout, it is not the deadline's, unless
    it says so itself."""

    @property
    def retry_reasons(self) -> tuple[RetryReason, ...]:
        """Why the operation was retried, one for each retry."""
        return tuple(each.reason for each in self.attempts if each.delay is not None)

    @property
    def is_retried(self) -> bool:
        """Return True if there was a retry."""
        return bool(self.attempts) and bool(self.retry_reasons)

    @property
    def number_of_attempts(self) -> int:
        """All attempts, with the one that is being made, or that succeeded."""
        return 1 + len(self.retry_reasons)

    @property
    def backoff(self) -> float:
        """Seconds of all waits between attempts."""
        return sum(each.delay or 0.0 for each in self.attempts)

    def retried(self, record: AttemptRecord) -> None:
        """Add a failed attempt after which another one follows."""
        self.attempts.append(record)

    def declined(self, record: AttemptRecord, rule: Rule) -> None:
        """Add a failed attempt that is the last one of its command."""
        self.attempts.append(record)
        self.declined_by = rule

    def begin_again(self) -> None:
        """Forget why the last retry was declined: all of the operation is tried again."""
        self.declined_by = self.final_error = None
