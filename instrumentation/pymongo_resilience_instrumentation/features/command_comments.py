"""Adds the operation's trace as a comment to commands, for the server's profiler and slow-query
log.

All attempts of an operation share its span, so a retried write has the same bytes, and the server
recognizes it.

The fields are those that OpenTelemetry's semantic conventions propose for MongoDB (their pull
request 4056): traceparent, tracestate, and the application's own comment as text.
"""

from __future__ import annotations

from typing import Any

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pymongo_resilience.internal_errors import contain_internal_errors
from pymongo_resilience_instrumentation import driver, in_progress
from pymongo_resilience_instrumentation.interceptor import Function
from pymongo_resilience_instrumentation.operation import Operation
from pymongo_resilience_instrumentation.runtime import Runtime

COMMENTED = frozenset({
    "abortTransaction", "aggregate", "bulkWrite", "collMod", "commitTransaction", "count", "create",
    "createIndexes", "delete", "distinct", "drop", "dropDatabase", "dropIndexes", "find",
    "findAndModify", "getMore", "insert", "killCursors", "listCollections", "listDatabases",
    "listIndexes", "renameCollection", "update",
})  # fmt: skip
"""Commands that appear in the profiler. mongod accepts a comment with any command (generic
arguments).
"""
MONGODB_4_4 = 9
"""Its wire version. Older servers reject arguments that they do not know."""
ONLY_TEXT = frozenset({"count", "distinct"})
"""A mongod 4.4 accepts only text as the comment of some commands (TypeMismatch, code 14)."""
MONGODB_6_0 = 17
"""Its wire version. It accepts a document with every command."""
PROPAGATOR = TraceContextTextMapPropagator()


def plug_in(runtime: Runtime, apply_patches: Any) -> None:
    """Wrap the method of connections that every command passes through."""
    if not runtime.config.command_comment:
        return
    enabled_flag = runtime.enabled_flag

    def send(original: Function, connection: Any, args: Any, kwargs: Any) -> Any:
        with contain_internal_errors("before a command was sent"):
            operation = in_progress.current()
            if (
                enabled_flag.on
                and operation is not None
                and connection.max_wire_version >= MONGODB_4_4
            ):
                command, client = driver.connections.passing_command(args, kwargs)
                _add_comment(operation, command, client, connection.max_wire_version)
        return original(*args, **kwargs)

    name = driver.connections.PASSED
    apply_patches((owner, name, send) for owner in driver.connections.connections_with(name))


def _add_comment(operation: Operation, command: Any, client: Any, wire_version: int) -> None:
    # Without a client, the command is a handshake, an authentication, or a monitor's. The document
    # of a runCommand belongs to the application, which would keep the comment.
    if operation.span is None or client is None or operation.name == "runCommand":
        return
    name = next(iter(command))
    if name not in COMMENTED or (name in ONLY_TEXT and wire_version < MONGODB_6_0):
        return
    own = command.get("comment")
    # A document is the application's own, or ours from an earlier attempt. Only text has a place
    # beside the trace.
    if own is not None and not isinstance(own, str):
        return
    carrier: dict[str, str] = {}
    PROPAGATOR.inject(carrier, trace.set_span_in_context(operation.span))
    if carrier:
        command["comment"] = carrier if own is None else {**carrier, "text": own}
