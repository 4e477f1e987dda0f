"""What the engine reports about its decisions, and who may listen.

Events are immutable and carry no document, no query and no server text.
"""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pymongo_resilience.failure import RetryReason
    from pymongo_resilience.orchestrator import Rule

logger = logging.getLogger("pymongo_resilience")
retry_logger = logging.getLogger("pymongo_resilience.retry")
DRIVER = frozenset({"pymongo", "bson", "gridfs"})
"""Packages whose exceptions quote values of documents."""
WITHHELD = "text withheld, it may quote documents"


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


class Unquoting(logging.Filter):
    """Keeps texts of the driver and lines of source out of our log lines: they quote documents.

    A stand-in is logged for an exception: without what it was raised from, or during, since mostly
    that is the driver's, and without a traceback, which every formatter prints with its source.
    The stack is there as text, with file, line and function.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            shown = _unquoting(error)
            record.exc_info = type(shown), shown, None
            record.exc_text = "".join(
                [*_stack(error), *traceback.format_exception_only(shown)]
            ).rstrip("\n")
        return True


def _unquoting(error: BaseException) -> BaseException:
    name = type(error).__qualname__
    try:
        if isinstance(error, BaseExceptionGroup):
            # A member may have been raised from an error of the driver's, or be a group itself.
            members = ", ".join(dict.fromkeys(type(each).__qualname__ for each in error.exceptions))
            return Exception(f"{name} of {members}: {WITHHELD}")
        if _is_of_driver(error) or any(map(_is_of_driver, error.args)):
            return Exception(f"{name}: {WITHHELD}")
        alone = type(error).__new__(type(error), *error.args)
        vars(alone).update(vars(error))
        # A class may put a cause or a traceback on whatever is made of it.
        if (alone.__cause__, alone.__context__, alone.__traceback__) == (None, None, None):
            return alone
    except Exception:  # noqa: BLE001, S110 - a class may be made in its own way
        pass
    return Exception(name)


def _is_of_driver(value: object) -> bool:
    """Of an exception's arguments, too: ``RuntimeError(error)`` has the text of ``error``."""
    classes = type(value).__mro__ if isinstance(value, BaseException) else ()
    return any(cls.__module__.partition(".")[0] in DRIVER for cls in classes)


def _stack(error: BaseException) -> list[str]:
    frames = [
        (frame.f_code.co_filename, line, frame.f_code.co_name, "")
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    return [
        "Traceback (most recent call last):\n",
        *traceback.StackSummary.from_list(frames).format(),
    ]


logger.addFilter(Unquoting())
retry_logger.addFilter(Unquoting())


class DecisionLog:
    """Writes every decision to the logger ``pymongo_resilience.retry``, with structured fields.

    Scheduled retries at INFO, declined ones at WARNING where at least one attempt had been
    repeated, else at DEBUG: an ordinary error of the application is no news.
    """

    def on_event(self, event: Event, /) -> None:
        fields = {
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
