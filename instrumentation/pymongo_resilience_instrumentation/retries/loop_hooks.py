"""What a feature may change about the retry loop of an operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pymongo_resilience.rules.failure import Failure
    from pymongo_resilience_instrumentation.driver.attempts import DriverAttempts

    from .after_failure import Retries


class LoopHooks:
    """Hooks that the first loop of an operation calls. Features override them in subclasses.

    Operations with hooks only read, so they are retried like any other read.
    """

    def begin(self, attempts: DriverAttempts) -> None:
        """Called before the first attempt."""

    def gives_up(self, retries: Retries, error: Exception) -> bool:  # noqa: ARG002 - for others
        """Return True to end the loop with the error of its first attempt, without a retry."""
        return False

    def reclassify(self, retries: Retries, failure: Failure) -> Failure:  # noqa: ARG002 - for others
        """Return the failure that the retry rules should use."""
        return failure

    def prepare(self, attempts: DriverAttempts) -> None:
        """Called before each retry."""

    def unfinished(self, attempts: DriverAttempts) -> Callable[[], Any] | None:  # noqa: ARG002 - for others
        """Return a function to call after the loop has succeeded, or None. In async clients, a
        coroutine function.
        """
        return None
