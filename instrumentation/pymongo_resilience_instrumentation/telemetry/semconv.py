"""Names and attributes that several modules use, and the attributes of errors.

Each name of the telemetry appears in the code only once.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from pymongo_resilience.internal_errors import wrap_foreign_error
from pymongo_resilience.redaction import stack
from pymongo_resilience_instrumentation.addresses import Address
from pymongo_resilience_instrumentation.failures.error_texts import qualified_name, safe_message

# Read once, because each span has it, and looking up an enum member is slow in CPython 3.11.
CLIENT = SpanKind.CLIENT
DB_OPERATION_NAME = "db.operation.name"
DB_COMMAND_NAME = "db.command.name"
SERVER_CONNECTION_ID = "db.mongodb.server_connection_id"
LSID = "db.mongodb.lsid"
ERROR_TYPE = "error.type"
EXCEPTION_TYPE = "exception.type"
EXCEPTION_MESSAGE = "exception.message"

ATTEMPTS = "pymongo_resilience.attempts"
OUTCOME = "pymongo_resilience.outcome"
REASON = "pymongo_resilience.reason"
SERVER = "pymongo_resilience.server"
DECISION = "pymongo_resilience.decision"
WAITED = "pymongo_resilience.waited"
HEDGE_WINNER = "pymongo_resilience.hedge.winner"
NEITHER = "neither"
STREAM = "pymongo_resilience.stream"
STEP = "pymongo_resilience.stream.step"
READY_TO = "pymongo_resilience.ready_to"
RECEIVED_BY = "pymongo_resilience.received_by"

EVENT_SCHEDULED = "retry.scheduled"
EVENT_DECLINED = "retry.declined"

DURATION_BOUNDARIES = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)
"""Seconds. With the SDK's defaults, all values under five seconds would be in one bucket."""
ATTEMPT_BOUNDARIES = (1, 2, 3, 4, 6, 11, 21)
KNOWN_NAMES = 1024
"""Size of caches. Operations on more collections are recorded as well, without the cache."""


def namespace_attributes(database: str, collection: str | None) -> dict[str, Any]:
    attributes = {"db.system.name": "mongodb", "db.namespace": database}
    if collection is not None and database != "admin":
        attributes["db.collection.name"] = collection
    return attributes


def address_attributes(address: Address) -> dict[str, Any]:
    host, port = address
    attributes: dict[str, Any] = {"server.address": host}
    if port is not None:
        attributes["server.port"] = port
    return attributes


def error_attributes(error: BaseException, quotes: bool = False) -> dict[str, Any]:
    """Return the attributes of an exception: class, code, code name, and the stack without source
    lines.

    With ``quotes``, the message is the server's text, which contains values of documents.
    """
    message = safe_message(error)
    with suppress(Exception):  # str(error) may raise
        message = str(error) if quotes else message
    return {
        EXCEPTION_TYPE: qualified_name(error),
        EXCEPTION_MESSAGE: message,
        "exception.stacktrace": "".join([*stack(error), message]),
    }


def end_span(
    span: Span, error: BaseException | None, quotes: bool = False, ended_ns: int | None = None
) -> None:
    """Set the error on a span, and end it even if that fails."""
    try:
        if error is not None and span.is_recording():
            attributes = error_attributes(error, quotes)
            span.set_attributes(attributes)
            span.set_status(Status(StatusCode.ERROR, attributes[EXCEPTION_MESSAGE]))
    finally:
        wrap_foreign_error(span.end, ended_ns)
