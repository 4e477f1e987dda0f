"""The errors this library adds to those of the driver."""

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
    """One or more options are invalid; the message lists every one with what is allowed."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n  ".join(["invalid configuration of pymongo-resilience:", *problems]))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems,)


class CircuitBreakerOpenError(Exception):
    """The circuit breaker of the server that was selected is open: nothing was sent.

    What an application catches is also pymongo's AutoReconnect.
    """

    server: str
    """``"host:port"``."""
    next_probe_in: float
    """Seconds after which it is worth trying again."""
    calls: int
    """Those that have opened it."""
    failures: int
    """Among those calls."""
    elsewhere: bool
    """Another server could have been selected at once."""


class OperationTimeoutError(Exception):
    """The deadline ended the operation.

    What an application catches is a subclass that is also the driver's own exception class, so
    that no ``except`` clause stops working. ``__cause__`` is the driver's exception.
    Source: Client Side Operations Timeout, "Errors".
    """

    timeout_s: float
    """The time the operation was given, in seconds."""
    elapsed_s: float
    """How much of that is gone, in seconds: since it began, be it with a cursor, a transaction or a
    block of ``pymongo.timeout`` before this operation."""
    attempts: int
    retry_reasons: tuple[RetryReason, ...]
    """Why it was repeated: one for each retry."""
    timeline: tuple[Phase, ...] = ()
    """Where the time of this operation went, in order."""
    retry_rule: Rule | None
    """The rule by which there was no further retry."""
    server: str | None
    """``"host:port"`` of the last attempt; None when no server was selected."""
    stage: Stage
    """How far the last attempt came. Earlier ones, and earlier batches of a bulk write, may have
    come further: it does not prove that nothing happened."""


@dataclass(frozen=True, slots=True)
class RetryInfo:
    """What the library did before an error reached the application. Immutable."""

    attempts: int
    """How often the command was sent, or was to be sent."""
    reasons: tuple[RetryReason, ...]
    """Why it was repeated: one for each retry."""
    rule: Rule | None
    """The rule by which there was no further retry; None where there was nothing to decide."""
    server: str | None
    """``"host:port"`` of the last attempt; None when no server was selected."""
    timeout_s: float | None = None
    """The time that the operation had, in seconds; None where no deadline ended it."""
    elapsed_s: float | None = None
    """How much of that was gone."""


def retry_info(error: BaseException) -> RetryInfo | None:
    """The attempts and retries behind an error of pymongo; None for one that the library had no
    part in. The error has the same facts as attributes. Thread- and task-safe.
    """
    facts: Any = vars(error)
    names = ("attempts", "retry_reasons", "retry_rule", "server", "timeout_s", "elapsed_s")
    return RetryInfo(*map(facts.get, names)) if "retry_reasons" in facts else None
