"""The errors that this library adds to those of pymongo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pymongo_resilience.rules.failure import RetryReason, Stage
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.timeline import Phase

__all__ = [
    "CircuitBreakerOpenError",
    "ConfigurationError",
    "OperationTimeoutError",
    "RetryInfo",
    "RetryReason",
    "Rule",
    "Stage",
    "retry_info",
]


class ConfigurationError(ValueError):
    """One or more options are invalid. The message lists each of them and its allowed values."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n  ".join(["invalid configuration of pymongo-resilience:", *problems]))

    def __reduce__(self) -> tuple[Any, ...]:
        # pickle would pass the message to the constructor, which expects the list.
        return type(self), (self.problems,)


class CircuitBreakerOpenError(Exception):
    """The circuit breaker of the selected server is open, so the operation was not sent.

    Applications catch a subclass that is also pymongo's AutoReconnect.
    """

    server: str
    """``"host:port"``."""
    next_probe_in: float
    """Seconds until the server is tried again."""
    calls: int
    """The calls that were counted when the breaker opened."""
    failures: int
    """How many of those calls failed."""
    elsewhere: bool
    """True if another server could be selected at once."""


class OperationTimeoutError(Exception):
    """The operation did not finish before its deadline.

    Applications catch a subclass that is also the class of pymongo's own exception, so existing
    ``except`` clauses keep working. ``__cause__`` is pymongo's exception. Source: Client Side
    Operations Timeout, "Errors".
    """

    timeout_s: float
    """The timeout of the operation, in seconds."""
    elapsed_s: float
    """Seconds since the timeout began. It may have begun before this operation: with a cursor, a
    transaction, or a block of ``pymongo.timeout``.
    """
    attempts: int
    retry_reasons: tuple[RetryReason, ...]
    """The reason for each retry."""
    timeline: tuple[Phase, ...] = ()
    """How the operation spent its time, in order."""
    retry_rule: Rule | None
    """The rule that ended the retries."""
    server: str | None
    """``"host:port"`` of the last attempt; None if no server was selected."""
    stage: Stage
    """How far the last attempt got. Earlier attempts, or earlier batches of a bulk write, may have
    got further, so ``not_sent`` does not prove that nothing was applied.
    """


@dataclass(frozen=True, slots=True)
class RetryInfo:
    """What the library tried before an error reached the application. Immutable."""

    attempts: int
    """How many attempts were made, whether or not they got as far as sending the command."""
    reasons: tuple[RetryReason, ...]
    """The reason for each retry."""
    rule: Rule | None
    """The rule that ended the retries; None if no rule was needed."""
    server: str | None
    """``"host:port"`` of the last attempt; None if no server was selected."""
    timeout_s: float | None = None
    """The timeout of the operation, in seconds; None unless the deadline ended it."""
    elapsed_s: float | None = None
    """Seconds since that timeout began."""


def retry_info(error: BaseException) -> RetryInfo | None:
    """Return the attempts and retries behind an error of pymongo.

    The error carries the same facts as attributes. Thread- and task-safe.

    Returns:
        The facts, or None if the library had no part in the operation.
    """
    facts: Any = vars(error)
    names = ("attempts", "retry_reasons", "retry_rule", "server", "timeout_s", "elapsed_s")
    return RetryInfo(*map(facts.get, names)) if "retry_reasons" in facts else None
