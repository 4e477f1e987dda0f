"""Listeners that turn pymongo's events of commands and monitors into spans and metrics.

While the library is off, they do nothing. A client keeps its listeners for its whole life.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from pymongo import monitoring

from pymongo_resilience.enabled_flag import EnabledFlag
from pymongo_resilience.internal_errors import internal_error_types, logger
from pymongo_resilience_instrumentation import driver, in_progress

from . import client_tracing, semconv
from .client_tracing import DEFAULT, Tracing
from .command_spans import SENSITIVE, CommandSpans, SentCommand, cursor_of, failure_attributes
from .metrics import DriverMetrics
from .query_text import shape_of, text_of


@dataclass(eq=False, repr=False)
class OurListener:
    """Marks the library's listeners. A client that is created from another one's options must not
    get them twice.
    """

    enabled_flag: EnabledFlag


faulty: set[Any] = set()
"""Methods whose first internal error was logged."""


def contain(method: Callable[..., None], error: Exception) -> None:
    """Log the first internal error of a listener's method.

    pymongo would drop an exception that a signal handler raised there, so the current operation
    keeps it.
    """
    operation = in_progress.current()
    if not isinstance(error, internal_error_types()) and operation is not None:
        operation.interrupt(error)
    elif method not in faulty:
        faulty.add(method)
        where = method.__qualname__
        text = "internal error in pymongo-resilience in %s (please report it)"
        logger.error(text, where, exc_info=error)


def guarded(method: Callable[..., None]) -> Callable[..., None]:
    """Return a listener's method that does nothing while the library is off."""

    @functools.wraps(method)
    def called(self: OurListener, *args: Any) -> None:
        try:
            if self.enabled_flag.on:
                method(self, *args)
        except Exception as error:  # noqa: BLE001 - sorted out there
            contain(method, error)

    return called


@dataclass(eq=False, repr=False)
class Commands(OurListener, monitoring.CommandListener):
    """Records which server a command of an operation was sent to, and the command's span."""

    spans: CommandSpans | None
    tracing: Tracing = DEFAULT
    """The client's tracing options."""
    sanitizes: bool = False
    """True if spans and the log contain the shape of commands, unless the client's options demand
    whole commands.
    """
    beside_contrib: bool = False
    """True if OpenTelemetry's own instrumentation listens to the client as well."""

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        try:
            operation = in_progress.current_or_ended()
            if operation is None or operation.ended or not self.enabled_flag.on:
                return
            operation.sent_to = event.connection_id
            if self.sanitizes:
                operation.last_command = event
            state, spans = operation.shown, self.spans
            if state is None or not state.records or spans is None:
                return
            result: dict[str, Any] = {}
            sent = SentCommand(spans, event, state.span, result)
            if not sent.command or sent.name.lower() in SENSITIVE:
                state.withholds = True
                return
            if self.beside_contrib and client_tracing.contrib_is_active():
                return
            attempts = operation.attempts
            if attempts is not None and (connection := attempts.connection) is not None:
                result["db.mongodb.driver_connection_id"] = connection.id
            # Create the text now, because the application may change its documents later.
            if length := self.tracing.query_text_max_length:
                result["db.query.text"] = text_of(sent.command, length)
            elif self.sanitizes and (shape := shape_of(sent.command)) is not None:
                result["db.query.text"] = shape
            sent.start(state, event.request_id)
            if spans.hooks:
                spans.call_hook("request_hook", sent.span or state.span, event)
        except Exception as error:  # noqa: BLE001 - sorted out there
            contain(Commands.started, error)

    def succeeded(self, event: Any) -> None:
        try:
            operation = in_progress.current_or_ended()
            state = None if operation is None or operation.ended else operation.shown
            if state is None or not state.commands:
                return
            if self.spans is None or not self.enabled_flag.on:
                return
            request_id = event.request_id
            if (sent := state.commands.get(request_id)) is None:
                return
            failed = isinstance(event, monitoring.CommandFailedEvent)
            if failed:
                sent.result |= failure_attributes(event, self.tracing.quotes)
            elif cursor_id := cursor_of(sent, event.reply):
                sent.result["db.mongodb.cursor_id"] = cursor_id
            try:
                if self.spans.hooks:
                    hook = "failed_hook" if failed else "response_hook"
                    self.spans.call_hook(hook, sent.span or sent.around, event)
            finally:
                sent.end(state)
            # Remove the command last. If a step above raises, the command ends with the operation.
            state.commands.pop(request_id, None)
        except Exception as error:  # noqa: BLE001 - sorted out there
            contain(Commands.succeeded, error)

    failed = succeeded


NO_CONTEXT = trace.set_span_in_context(trace.INVALID_SPAN, Context())
"""The monitors and background tasks of async clients inherit the context of the first operation,
but do not belong to its trace. The SDK treats an empty context like none (opentelemetry-sdk
1.45.2), so this one contains an invalid span.
"""


@dataclass(eq=False, repr=False)
class Heartbeats(OurListener, monitoring.ServerHeartbeatListener):
    """Measures the hellos of a client's monitors."""

    metrics: DriverMetrics

    def started(self, event: monitoring.ServerHeartbeatStartedEvent) -> None: ...

    @guarded
    def succeeded(self, event: monitoring.ServerHeartbeatSucceededEvent) -> None:
        self.metrics.heartbeat.record(event.duration, _attributes(event), NO_CONTEXT)

    @guarded
    def failed(self, event: monitoring.ServerHeartbeatFailedEvent) -> None:
        self.metrics.heartbeat.record(event.duration, _attributes(event), NO_CONTEXT)
        # A check that the client itself canceled, as in close(), shows nothing about the server.
        if not driver.monitors.was_cancelled(event.reply):
            self.metrics.heartbeat_failures.add(1, _attributes(event), NO_CONTEXT)


def _attributes(
    event: monitoring.ServerHeartbeatSucceededEvent | monitoring.ServerHeartbeatFailedEvent,
) -> dict[str, Any]:
    return {
        **semconv.address_attributes(event.connection_id),
        "pymongo_resilience.awaited": event.awaited,
    }
