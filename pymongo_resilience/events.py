"""The events that report the engine's decisions, and the listeners that receive them.

Events are immutable. They contain no document, no query and no text from a server.
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
from pymongo_resilience.rules.retry_rules import Rule, is_explained

__all__ = [
    "BreakerClosed",
    "BreakerOpened",
    "Event",
    "Listener",
    "ReadHedged",
    "RequestExpired",
    "RetryDeclined",
    "RetryScheduled",
    "StreamNotice",
    "StreamStep",
]

retry_logger = logging.getLogger("pymongo_resilience.retry")
breaker_logger = logging.getLogger("pymongo_resilience.circuit_breaker")
deadline_logger = logging.getLogger("pymongo_resilience.deadlines")
stream_logger = logging.getLogger("pymongo_resilience.streams")
for each in (retry_logger, breaker_logger, deadline_logger, stream_logger):
    # A logger's filter does not apply to its child loggers, so each logger needs its own.
    each.addFilter(RedactionFilter())


class EventName(enum.StrEnum):
    """The values of ``event`` in log records."""

    RETRY_SCHEDULED = "retry.scheduled"
    RETRY_DECLINED = "retry.declined"
    BREAKER_OPENED = "circuit_breaker.opened"
    BREAKER_CLOSED = "circuit_breaker.closed"
    REQUEST_EXPIRED = "request.expired"
    STREAM = "stream."


class RetryScheduled(NamedTuple):
    """A failed attempt will be retried after ``delay`` seconds."""

    operation: str
    """The operation's name in telemetry, such as ``"find"``."""
    namespace: str
    """``"db.collection"``, or ``"db"`` if there is no collection."""
    reason: RetryReason
    server: str | None
    """``"host:port"`` of the failed attempt; None if no server was selected."""
    attempt: int
    """Number of failed attempts of this command, including this one."""
    delay: float
    error: str = ""
    """Class, code and code name of the error, without its text."""
    held_back: bool = False
    """The delay is longer because the client's retry budget is spent."""


class RetryDeclined(NamedTuple):
    """A failed attempt is not retried. Its error goes to the application."""

    operation: str
    namespace: str
    reason: RetryReason
    server: str | None
    attempt: int
    rule: Rule
    """The rule that declined."""
    why: str = ""
    """The rule in words, as at the end of the error's text."""
    error: str = ""
    """As for RetryScheduled."""


class BreakerOpened(NamedTuple):
    """A server's circuit breaker opened, or a probe failed and it opened again."""

    server: str
    """``"host:port"``."""
    calls: int
    """The calls that were counted when the breaker last opened from closed."""
    failures: int
    """How many of these calls failed."""
    next_probe_in: float
    """Seconds."""


class BreakerClosed(NamedTuple):
    """All probes succeeded, so the server is used normally again."""

    server: str


class ReadHedged(NamedTuple):
    """A read that was also sent to a second server has ended."""

    operation: str
    namespace: str
    server: str
    """``"host:port"`` of the first server."""
    second_server: str | None
    """None if no second server had been selected yet."""
    waited: float
    """Seconds without an answer before the read was sent again."""
    winner: str | None
    """Whose reply was used: ``"first"`` or ``"hedge"``; None if neither replied."""


class RequestExpired(NamedTuple):
    """An incoming request was refused, because its time was over when it arrived.

    Neither the application's own code nor the database was called for it. See
    ``pymongo_resilience.deadlines``.
    """

    received_by: str
    """The kind of server that received the request: ``"asgi"``, ``"wsgi"`` or ``"grpc"``."""


class StreamStep(enum.StrEnum):
    """What has happened to the consumer of a change stream."""

    OPENED = "opened"
    """It has opened the stream at the present, because it had no token."""
    RESUMED = "resumed"
    """It has opened the stream after its token."""
    LOST = "lost"
    """The stream has failed, and the consumer will open it again."""
    INVALIDATED = "invalidated"
    """What it watches was dropped or renamed."""
    HANDLER_FAILED = "handler_failed"
    """The handler will be called again for the change."""
    SKIPPED = "skipped"
    """A change for which the handler failed was recorded and skipped."""
    FAILED = "failed"
    """The consumer has ended with an error."""
    STOPPED = "stopped"
    """The consumer has ended because its ``stop()`` was called."""


class StreamNotice(NamedTuple):
    """Something has happened to a consumer of ``pymongo_resilience.streams``."""

    stream: str
    """The consumer's name."""
    step: StreamStep
    reason: str = ""
    """The class of the error, if it was one."""
    pause: float | None = None
    """Seconds to the next attempt."""


BreakerEvent = BreakerOpened | BreakerClosed
RetryEvent = RetryScheduled | RetryDeclined
Event = RetryEvent | BreakerEvent | ReadHedged | RequestExpired | StreamNotice


QUIET_STEPS = frozenset({StreamStep.OPENED, StreamStep.RESUMED, StreamStep.STOPPED})
"""They are logged at INFO, the others at WARNING."""


class Listener(Protocol):
    """Receives every event, in the thread or task of the operation that caused it.

    Implementations must not block; with async clients they run on the event loop. If a listener
    raises, the first error is logged, and it never reaches the operation.
    """

    def on_event(self, event: Event, /) -> None:
        """Receive one event. The events of one operation arrive in order."""


class Broadcast:
    """Sends every event to all listeners. The first error of each listener is logged.

    Thread- and task-safe: the listeners do not change.
    """

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = tuple(listeners)
        self._faulty: set[int] = set()

    def on_event(self, event: Event, /) -> None:
        for listener in self._listeners:
            try:
                listener.on_event(event)
            except Exception:
                # By identity, because a listener need not be hashable.
                if id(listener) not in self._faulty:
                    self._faulty.add(id(listener))
                    logger.exception(
                        "the listener %s raised an error, which affects no operation; further "
                        "errors of this listener are not logged",
                        type(listener).__name__,
                    )


class Outlet:
    """Passes on events that belong to no operation, while the library is on.

    Thread- and task-safe, but only one thread may connect it at a time.
    """

    def __init__(self) -> None:
        self._listener: Listener | None = None

    def connect(self, listener: Listener | None) -> None:
        """Pass events on to ``listener`` from now on, or drop them if it is None."""
        self._listener = listener

    def on_event(self, event: Event, /) -> None:
        listener = self._listener
        # A consumer or a middleware may outlive ``uninstrument()``.
        if listener is not None and enabled_flag.current.on:
            listener.on_event(event)


outlet = Outlet()
"""Connected to the telemetry of the most recent ``instrument()``."""


class EventLog:
    """Writes events to loggers.

    The fields of the event are also in the record's attribute ``pymongo_resilience``, which JSON
    formatters and OpenTelemetry's handler export.

    Scheduled retries are logged at INFO. Declined ones are logged at WARNING if the operation was
    retried before, or if the rule declines a retry that is normally made; otherwise at DEBUG,
    because ordinary errors of the application are not news. A breaker that opens is logged at
    WARNING, one that closes at INFO. A request that is refused because its deadline has passed is
    logged at INFO.
    """

    def on_event(self, event: Event, /) -> None:
        fields = event._asdict()
        extra = {"pymongo_resilience": fields}
        if isinstance(event, BreakerOpened):
            fields["event"] = EventName.BREAKER_OPENED.value
            message = (
                "the circuit breaker of %(server)s is open: %(failures)d of %(calls)d calls "
                "failed. Check this server; it is tried again in %(next_probe_in).3f s"
            )
            breaker_logger.warning(message, fields, extra=extra)
        elif isinstance(event, BreakerClosed):
            fields["event"] = EventName.BREAKER_CLOSED.value
            message = "the circuit breaker of %(server)s is closed again: the server has recovered"
            breaker_logger.info(message, fields, extra=extra)
        elif isinstance(event, RequestExpired):
            fields["event"] = EventName.REQUEST_EXPIRED.value
            message = (
                "refused a request (%(received_by)s) whose deadline had passed when it arrived"
            )
            deadline_logger.info(message, fields, extra=extra)
        elif isinstance(event, StreamNotice):
            fields["event"] = f"{EventName.STREAM.value}{event.step.value}"
            text = "change stream %(stream)s: %(step)s"
            text += " (%(reason)s)" if event.reason else ""
            text += ", again in %(pause).3f s" if event.pause is not None else ""
            level = logging.INFO if event.step in QUIET_STEPS else logging.WARNING
            stream_logger.log(level, text, fields, extra=extra)
        elif isinstance(event, RetryEvent):
            fields["reason"] = event.reason.value
            # The text needs words for "no server", but the record keeps None.
            shown = {**fields, "server": event.server or "no server"}
            failed = "%(operation)s %(namespace)s: attempt %(attempt)d failed on %(server)s "
            failed += "(%(reason)s: %(error)s), "
            if isinstance(event, RetryScheduled):
                fields["event"] = EventName.RETRY_SCHEDULED.value
                held_back = " (delayed: the retry budget is spent)" if event.held_back else ""
                text = failed + "retrying in %(delay).3f s" + held_back
                retry_logger.info(text, shown, extra=extra)
            else:
                fields |= {"event": EventName.RETRY_DECLINED.value, "rule": event.rule.value}
                # A duplicate key, for example, is declined at its first attempt: an everyday error
                # that the application handles.
                is_news = event.attempt > 1 or is_explained(event.rule, event.reason)
                level = logging.WARNING if is_news else logging.DEBUG
                retry_logger.log(level, failed + "not retried: %(why)s", shown, extra=extra)
