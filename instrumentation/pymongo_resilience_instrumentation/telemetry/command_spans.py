"""Spans of commands, as children of the operation's span.

The option ``command_spans`` decides which commands get their own span. With ``on_retry``, an
operation that succeeds with a single command gets no command span. Its own span shows the command's
attributes instead. With ``never``, no command gets a span, and the operation's span shows the
attributes of its last command. Commands outside of a recorded operation are not shown.

The application's hooks have the signatures of opentelemetry-instrumentation-pymongo:
``request_hook(span, CommandStartedEvent)``, ``response_hook(span, CommandSucceededEvent)`` and
``failed_hook(span, CommandFailedEvent)``. They are called in the operation's thread or task.
"""

from __future__ import annotations

import functools
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bson.binary import Binary
from opentelemetry import context, trace
from opentelemetry.trace import Span, Status, StatusCode, Tracer
from pymongo import monitoring

from pymongo_resilience.config import CommandSpanMode
from pymongo_resilience.internal_errors import logger
from pymongo_resilience_instrumentation import in_progress
from pymongo_resilience_instrumentation.addresses import Address, namespace_text
from pymongo_resilience_instrumentation.failures.error_texts import qualified_name
from pymongo_resilience_instrumentation.settings import Hook

from . import semconv
from .span_state import SpanState

# Read once, because every command compares these values, and looking up an enum member is slow in
# CPython 3.11.
NEVER, ON_RETRY = CommandSpanMode.NEVER.value, CommandSpanMode.ON_RETRY.value

CommandEvent = (
    monitoring.CommandStartedEvent
    | monitoring.CommandSucceededEvent
    | monitoring.CommandFailedEvent
)


@dataclass(frozen=True)
class CommandSpans:
    """Settings of the spans of commands. Thread- and task-safe if the application's hooks are."""

    tracer: Tracer
    mode: str = ON_RETRY
    """The value of the option ``command_spans``."""
    hooks: Mapping[str, Hook] = field(default_factory=dict)
    _raised: set[str] = field(default_factory=set)

    def call_hook(self, name: str, span: Span, event: CommandEvent) -> None:
        """Call a hook. Its first error is logged, and never affects the operation."""
        if name in self.hooks:
            try:
                in_progress.call_foreign(self.hooks[name], span, event)
            except Exception:
                if name not in self._raised:
                    self._raised.add(name)
                    logger.exception(
                        "the %s raised an error, which affects no operation; further errors of "
                        "this hook are not logged",
                        name,
                    )


class SentCommand:
    """One command, and the attributes of its span. Belongs to one thread or task."""

    __slots__ = (
        "_spans", "around", "command", "ended_ns", "event", "name", "result", "span", "started_ns",
    )  # fmt: skip

    def __init__(
        self,
        spans: CommandSpans,
        event: monitoring.CommandStartedEvent,
        outer: Span,
        result: dict[str, Any],
    ) -> None:
        self._spans = spans
        self.event = event
        # Read these once: the attributes of events are properties, and each access costs a call.
        self.name, self.command = event.command_name, event.command
        self.around = outer
        """The operation's span."""
        self.result = result
        """Attributes of the span that do not come from ``event``."""
        self.span: Span | None = None
        """The command's own span. None until a hook needs it or until the command is recorded."""
        self.started_ns = time.time_ns()
        self.ended_ns = 0

    def start(self, state: SpanState, request_id: int) -> None:
        """Register a command that has started, and decide whether it gets its own span.

        With ``on_retry``, the first command of an operation gets no span yet, because the
        operation's span may show it. A second command causes spans for both.

        A span is usually created when its command has ended, with all attributes at once. If there
        are hooks, it is created here, because they are called with it.
        """
        commands = state.commands
        if commands and (earlier := commands.pop(request_id, None)) is not None:
            earlier.end(state)
        commands[request_id] = self
        mode, first = self._spans.mode, state.only_command
        if mode == NEVER:
            return
        if mode == ON_RETRY and first is None and not state.shows_each_command:
            state.only_command = self
            return
        state.show_each_command()
        if first is not None and first.ended_ns:
            first.record()
        if self._spans.hooks:
            if first is not None and not first.ended_ns:
                first.start_span()
            self.start_span()

    def start_span(self) -> Span:
        """Create the command's own span. It starts when the command was started."""
        self.span = in_progress.call_foreign_wrapped(
            self._spans.tracer.start_span,
            self.name,
            trace.set_span_in_context(self.around, context.get_current()),
            semconv.CLIENT,
            self.attributes(namespace=True),
            None,
            self.started_ns,
        )
        return self.span

    def end(
        self,
        state: SpanState,
        ended_ns: int | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Note the end of the command, and record its span if it has one.

        Args:
            state: The state of the operation's span.
            ended_ns: When the command ended, in nanoseconds since the epoch; None means now.
            error: The operation's error, if the operation ended before pymongo reported the end of
                the command.
        """
        if error is not None:
            self.result |= _error_of(error)
        self.ended_ns = ended_ns or time.time_ns()
        if self._spans.mode == NEVER:
            state.only_command = self
        elif self is not state.only_command:
            self.record()
        elif semconv.ERROR_TYPE in self.result:
            # Record the failure now, because the process may end before the operation does.
            state.show_each_command()
            self.record()

    def record(self) -> None:
        """Set the remaining attributes of the command's span and end it. Create the span if there
        is none.
        """
        span, has_attributes = self.span, False
        if span is None:
            span, has_attributes = self.start_span(), True
        try:
            if not has_attributes:
                span.set_attributes(self.result)
            if semconv.ERROR_TYPE in self.result:
                message = self.result.get(semconv.EXCEPTION_MESSAGE)
                span.set_status(Status(StatusCode.ERROR, message))
        finally:
            in_progress.call_foreign_wrapped(span.end, self.ended_ns)

    def settle(self, error: BaseException | None, *, retried: bool) -> dict[str, Any]:
        """Return the command's attributes for the operation's span, because the operation has ended
        without a span for this command.

        If the operation failed or was retried, record the command's own span instead and return no
        attributes, except with ``command_spans=never``.
        """
        if (error is not None or retried) and self._spans.mode != NEVER:
            self.record()
            return {}
        # The operation's span has its own error type.
        self.result.pop(semconv.ERROR_TYPE, None)
        return self.attributes(namespace=False)

    def attributes(self, *, namespace: bool) -> dict[str, Any]:
        """Return the command's attributes, in a new dict.

        With ``namespace``, they include those of the database and the collection, which the
        operation's span already has.
        """
        event, command, name = self.event, self.command, self.name
        collection: Any = None
        if name in NAMING_A_COLLECTION:
            collection = command.get(name)
        elif name == "getMore":
            collection = command.get("collection")
        if collection is not None:
            # Convert subclasses of str: a bson.Code cannot be hashed, as the cache requires.
            collection = str(collection) if isinstance(collection, str) else None
        known = _constant_attributes(
            name, event.database_name, collection, event.connection_id, namespace
        )
        # Add to a copy: a dict that grows from nothing is moved several times.
        attributes = known.copy()
        attributes |= self.result
        # The server or the application may have sent any type here. Include only numbers.
        server_connection_id = event.server_connection_id
        if isinstance(server_connection_id, int):
            attributes[semconv.SERVER_CONNECTION_ID] = int(server_connection_id)
        transaction = command.get("txnNumber")
        if isinstance(transaction, int):
            attributes["db.mongodb.txn_number"] = int(transaction)
        lsid: Any = command.get("lsid")
        session = lsid.get("id") if hasattr(lsid, "get") else None
        if isinstance(session, Binary) and len(session) == 16:  # noqa: PLR2004 - the size of a UUID
            attributes[semconv.LSID] = _uuid_text(bytes(session))
        return attributes


def failure_attributes(event: monitoring.CommandFailedEvent, quotes: bool) -> dict[str, Any]:
    """Return the attributes of a command that failed. ``quotes`` is True if the error's own text
    may be exported.
    """
    # pymongo reports the failure while it handles the exception, so that is the current exception.
    error = sys.exception()
    attributes = {semconv.ERROR_TYPE: "_OTHER"} if error is None else _error_of(error, quotes)
    code = event.failure.get("code") if hasattr(event.failure, "get") else None
    if isinstance(code, int):
        attributes["db.response.status_code"] = attributes[semconv.ERROR_TYPE] = str(code)
    return attributes


def _error_of(error: BaseException, quotes: bool = False) -> dict[str, Any]:
    return semconv.error_attributes(error, quotes) | {semconv.ERROR_TYPE: qualified_name(error)}


SENSITIVE = frozenset({
    "authenticate", "saslstart", "saslcontinue", "getnonce", "createuser", "updateuser",
    "copydbgetnonce", "copydbsaslstart", "copydb",
})  # fmt: skip
NAMING_A_COLLECTION = frozenset({
    "aggregate", "analyze", "collMod", "collStats", "compact", "convertToCapped", "count", "create",
    "createIndexes", "createSearchIndexes", "delete", "distinct", "drop", "dropIndexes",
    "dropSearchIndex", "find", "findAndModify", "findandmodify", "insert", "killCursors",
    "listIndexes", "mapReduce", "mapreduce", "planCacheClear", "reIndex", "update",
    "updateSearchIndex", "validate",
})  # fmt: skip
"""Commands whose first value is the name of a collection. The first value of another command may be
confidential: that of ``usersInfo`` is the name of a user.
"""
AGAINST_ADMIN = frozenset({"commitTransaction", "abortTransaction", "bulkWrite"})


@functools.lru_cache(maxsize=semconv.KNOWN_NAMES)
def _constant_attributes(
    command: str, database: str, collection: str | None, address: Address, namespace: bool
) -> dict[str, Any]:
    """Return the attributes that are constant for a command, a collection and a server."""
    if command in AGAINST_ADMIN:
        database = "admin"
    shown = None if database == "admin" else collection
    return {
        **(semconv.namespace_attributes(database, collection) if namespace else {}),
        semconv.DB_COMMAND_NAME: command,
        "db.query.summary": f"{command} {namespace_text(database, shown)}",
        "network.transport": "unix" if address[1] is None else "tcp",
        **semconv.address_attributes(address),
    }


@functools.lru_cache(maxsize=semconv.KNOWN_NAMES)
def _uuid_text(octets: bytes) -> str:
    """Return a UUID as text. Cached, because pymongo reuses its sessions."""
    return str(uuid.UUID(bytes=octets))


def cursor_of(sent: SentCommand, reply: Mapping[str, Any]) -> int | None:
    """Return the ID of the cursor that the command opened, read, or closed, or None."""
    cursor: Any = reply.get("cursor") if hasattr(reply, "get") else None
    found = cursor.get("id") if hasattr(cursor, "get") else None
    if not found and sent.name == "getMore":
        found = sent.command.get("getMore")
    elif sent.name == "killCursors":
        ids = sent.command.get("cursors")
        found = ids[0] if isinstance(ids, list) and len(ids) == 1 else None
    return int(found) if isinstance(found, int) else None
