"""What the engine reports about its decisions, and who may listen.

Events are immutable and carry no document, no query and no server text.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pymongo_resilience.unquoting import Unquoting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pymongo_resilience.failure import RetryReason
    from pymongo_resilience.orchestrator import Rule

logger = logging.getLogger("pymongo_resilience")
retry_logger = logging.getLogger("pymongo_resilience.retry")
for each in (logger, retry_logger):
    each.addFilter(Unquoting())


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


class Broadcast:
    """Sends every event to all listeners; one that raises is logged once and kept apart.

    Thread- and task-safe: the listeners are fixed when it is made.
    """

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = tuple(listeners)
        self._faulty: set[int] = set()

    def on_event(self, event: Event, /) -> None:
        for listener in self._listeners:
            try:
                listener.on_event(event)
            except Exception:
                if id(listener) not in self._faulty:
                    self._faulty.add(id(listener))
                    logger.exception(
                        "the listener %s raised; further errors of it are not logged",
                        type(listener).__name__,
                    )


class DecisionLog:
    """Writes every decision to the logger ``pymongo_resilience.retry``, with structured fields.

    The fields are a dict in the record's attribute ``pymongo_resilience``, as formatters for JSON
    and OpenTelemetry's handler show it: ``event`` (``"retry.scheduled"`` or ``"retry.declined"``),
    ``operation``, ``namespace``, ``reason``, ``server``, ``attempt``, and ``delay`` (seconds) or
    ``rule``.

    Scheduled retries at INFO, declined ones at WARNING where at least one attempt had been
    repeated, else at DEBUG: an ordinary error of the application is no news.
    """

    def on_event(self, event: Event, /) -> None:
        fields = {
            "event": "retry.scheduled" if isinstance(event, RetryScheduled) else "retry.declined",
            "operation": event.operation,
            "namespace": event.namespace,
            "reason": event.reason.value,
            "server": event.server,
            "attempt": event.attempt,
        }
        if isinstance(event, RetryScheduled):
            retry_logger.info(
                "%s %s: attempt %d failed on %s (%s), again in %.3f s",
                event.operation,
                event.namespace,
                event.attempt,
                event.server or "no server",
                event.reason.value,
                event.delay,
                extra={"pymongo_resilience": fields | {"delay": event.delay}},
            )
        else:
            retry_logger.log(
                logging.WARNING if event.attempt > 1 else logging.DEBUG,
                "%s %s: attempt %d failed on %s (%s), not repeated: %s",
                event.operation,
                event.namespace,
                event.attempt,
                event.server or "no server",
                event.reason.value,
                event.rule.value,
                extra={"pymongo_resilience": fields | {"rule": event.rule.value}},
            )
