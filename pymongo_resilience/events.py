"""What the engine reports about its decisions, and who may listen.

Events are immutable and carry no document, no query and no server text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pymongo_resilience.failure import RetryReason
    from pymongo_resilience.orchestrator import Rule


@dataclass(frozen=True, slots=True)
class RetryScheduled:
    """A failed attempt will be repeated after ``delay`` seconds."""

    operation: str
    """The operation's name as in the telemetry, for example ``"find"``."""
    namespace: str
    """``"db.collection"``, or ``"db"`` where there is no collection."""
    reason: RetryReason
    server: str | None
    """``"host:port"`` of the server whose attempt failed, if one was selected."""
    attempt: int
    """How many attempts of this command have failed, this one included."""
    delay: float


@dataclass(frozen=True, slots=True)
class RetryDeclined:
    """A failed attempt is final: its error goes to the application."""

    operation: str
    namespace: str
    reason: RetryReason
    server: str | None
    attempt: int
    rule: Rule
    """The rule that declined."""


Event = RetryScheduled | RetryDeclined


class Listener(Protocol):
    """Hears every decision, in the thread or task of the operation.

    An implementation must not block; in async clients it runs on the event loop. What it raises
    is logged once and never reaches the operation.
    """

    def on_event(self, event: Event, /) -> None:
        """Take one event; called in the order of the decisions of one operation."""
