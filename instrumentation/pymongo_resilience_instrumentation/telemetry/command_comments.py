"""A comment on commands that leads from the server's profiler and slow-query log to the trace.

It carries the context of the operation span, which all attempts of an operation share: a repeated
write is the same to the last byte, and the server recognises it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience.internal_errors import shielded
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.interception.methods import Method

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

    from pymongo_resilience.enabled_flag import EnabledFlag
    from pymongo_resilience_instrumentation.interception.methods import Function

COMMENTED = frozenset({
    "abortTransaction", "aggregate", "bulkWrite", "collMod", "commitTransaction", "count", "create",
    "createIndexes", "delete", "distinct", "drop", "dropDatabase", "dropIndexes", "find",
    "findAndModify", "getMore", "insert", "killCursors", "listCollections", "listDatabases",
    "listIndexes", "renameCollection", "update",
})  # fmt: skip
"""What shows up in the profiler. mongod takes a comment with any command (generic arguments)."""
FIRST_WIRE_VERSION = 9
"""MongoDB 4.4: before, a server refuses an argument that it does not know."""
KEY = "traceparent"


def comment(enabled_flag: EnabledFlag) -> Method:
    """A connection's method that each command passes on its way, with the command."""

    def around(original: Function) -> Function:
        def method(connection: Any, *args: Any, **kwargs: Any) -> Any:
            with shielded("before a command was sent"):
                command, client = driver.commands.passing_command(args, kwargs)
                # Without a client it is a handshake, an authentication or a monitor's.
                if enabled_flag.on and client is not None and next(iter(command)) in COMMENTED:
                    _add(connection, command)
            return original(connection, *args, **kwargs)

        return method

    return Method(around)


def _add(connection: Any, command: Any) -> None:
    call = calls.current()
    if call is None or call.span is None or command.get("comment") is not None:
        return
    if call.operation == "runCommand":
        # The document is the application's own: what is put there would stay there.
        return
    context = call.span.get_span_context()
    if context.is_valid and connection.max_wire_version >= FIRST_WIRE_VERSION:
        command["comment"] = {KEY: traceparent(context)}


def traceparent(context: SpanContext) -> str:
    """Source: W3C Trace Context, "traceparent Header"."""
    trace_id, span_id = context.trace_id, context.span_id
    return f"00-{trace_id:032x}-{span_id:016x}-{context.trace_flags:02x}"
