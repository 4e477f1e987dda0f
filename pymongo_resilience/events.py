"""What the engine reports about its decisions, and who may listen.

Events are immutable and carry no document, no query and no server text.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pymongo_resilience import enabled_flag
from pymongo_resilience.internal_errors import logger
from pymongo_resilience.redaction import RedactionFilter
from pymongo_resilience.rules.failure import RetryReason
from pymongo_resilience.rules.retry_rules import WITHHELD, Rule

__all__ = [
    "BreakerClosed",
    "BreakerOpened",
    "Event",
    "Listener",
    "ReadHedged",
    "RequestExpired",
    "RetryDeclined",
    "RetryScheduled",
]

retry_logger = logging.getLogger("pymongo_resilience.retry")
breaker_logger = logging.getLogger("pymongo_resilience.circuit_breaker")
deadline_logger = logging.getLogger("pymongo_resilience.deadlines")
for each in (retry_logger, breaker_logger, deadline_logger):
    each.addFilter(RedactionFilter())  # a logger's filter does not hold for those below it


class EventName(enum.StrEnum):
    """What a log record's ``event`` may be."""

    RETRY_SCHEDULED = "retry.scheduled"
    RETRY_DECLINED = "retry.declined"
    BREAKER_OPENED = "circuit_breaker.opened"
    BREAKER_CLOSED = "circuit_breaker.closed"
    REQUEST_EXPIRED = "request.expired"


class RetryScheduled(NamedTuple):
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
    error: str = ""
    """Class, code and code name of what the attempt ended with, without its text."""
    held_back: bool = False
    """The client's retry budget is spent, and the delay is longer for it."""


class RetryDeclined(NamedTuple):
    """A failed attempt is final: its error goes to the application."""

    operation: str
    namespace: str
    reason: RetryReason
    server: str | None
    attempt: int
    rule: Rule
    """The rule that declined."""
    why: str = ""
    """The same in words, as the error has it."""
    error: str = ""
    """The same as RetryScheduled has."""


class BreakerOpened(NamedTuple):
    """A server's circuit breaker has opened, or a probe has failed and it is open again."""

    server: str
    """``"host:port"``."""
    calls: int
    """Those that have opened it, when it was closed last."""
    failures: int
    """Among those calls."""
    next_probe_in: float
    """Seconds."""


class BreakerClosed(NamedTuple):
    """The probes have succeeded: the server is used as before."""

    server: str


class ReadHedged(NamedTuple):
    """A read that stayed unanswered was sent to a second server as well, and has ended."""

    operation: str
    namespace: str
    server: str
    """``"host:port"`` of the one that it was sent to first."""
    second_server: str | None
    """None where the second try had not got one yet."""
    waited: float
    """Seconds that the read was unanswered before it was sent again."""
    winner: str | None
    """Whose answer the operation has: ``"first"`` or ``"hedge"``; None where neither had one."""


class RequestExpired(NamedTuple):
    """An incoming request had no time left when it arrived, and was refused: the application's own
    code, and the database, were not called for it. See ``pymongo_resilience.deadlines``."""

    received_by: str
    """What received the request: ``"asgi"``, ``"wsgi"`` or ``"grpc"``."""


BreakerEvent = BreakerOpened | BreakerClosed
RetryEvent = RetryScheduled | RetryDeclined
Event = RetryEvent | BreakerEvent | ReadHedged | RequestExpired


class Listener(Protocol):
    """Receives every decision, in the thread or task of the operation; and when a circuit breaker
    opens or closes, in that of the operation which has brought it about.

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


class Outlet:
    """Passes on events that belong to no operation, while the library is on. Thread- and task-safe:
    it is connected by one thread at a time."""

    def __init__(self) -> None:
        self._listener: Listener | None = None

    def connect(self, listener: Listener | None) -> None:
        """Pass events on to ``listener`` from now on; None drops them."""
        self._listener = listener

    def on_event(self, event: Event, /) -> None:
        listener = self._listener
        if listener is not None and enabled_flag.current.on:
            listener.on_event(event)


outlet = Outlet()
"""Connected to the telemetry of the latest ``instrument()``."""


class EventLog:
    """Writes events to loggers, with structured fields in the record's attribute
    ``pymongo_resilience``, as formatters for JSON and OpenTelemetry's handler show it.

    Scheduled retries are logged at INFO. Declined ones are logged at WARNING if the operation was
    retried before, or if the rule declines a retry that is normally made; else at DEBUG, since an
    ordinary error of the application is no news. A breaker that opens is logged at WARNING, one
    that closes at INFO, as is a request that was refused because it had expired.
    """

    def on_event(self, event: Event, /) -> None:
        fields = event._asdict()
        extra = {"pymongo_resilience": fields}
        if isinstance(event, BreakerOpened):
            fields["event"] = EventName.BREAKER_OPENED.value
            message = (
                "the circuit breaker of %(server)s is open: %(failures)d of %(calls)d calls failed;"
                " next probe in %(next_probe_in).3f s"
            )
            breaker_logger.warning(message, fields, extra=extra)
        elif isinstance(event, BreakerClosed):
            fields["event"] = EventName.BREAKER_CLOSED.value
            message = "the circuit breaker of %(server)s is closed again"
            breaker_logger.info(message, fields, extra=extra)
        elif isinstance(event, RequestExpired):
            fields["event"] = EventName.REQUEST_EXPIRED.value
            message = (
                "refused a request (%(received_by)s) whose deadline had passed when it arrived"
            )
            deadline_logger.info(message, fields, extra=extra)
        elif isinstance(event, RetryEvent):
            fields["reason"] = event.reason.value
            shown = {**fields, "server": event.server or "no server"}
            failed = "%(operation)s %(namespace)s: attempt %(attempt)d failed on %(server)s "
            failed += "(%(reason)s: %(error)s), "
            if isinstance(event, RetryScheduled):
                fields["event"] = EventName.RETRY_SCHEDULED.value
                held_back = ", held back: the retry budget is spent" if event.held_back else ""
                text = failed + "again in %(delay).3f s" + held_back
                retry_logger.info(text, shown, extra=extra)
            else:
                fields |= {"event": EventName.RETRY_DECLINED.value, "rule": event.rule.value}
                is_news = event.attempt > 1 or event.rule in WITHHELD
                level = logging.WARNING if is_news else logging.DEBUG
                retry_logger.log(level, failed + "not repeated: %(why)s", shown, extra=extra)
