"""Comments on commands, which lead from the server's profiler and slow-query log to the operation's
span.

All attempts of an operation share that span: a repeated write is the same to the last byte, and the
server recognises it.
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
"""What shows up in the profiler. mongod takes a comment with any command (generic arguments)."""
MONGODB_4_4 = 9
"""Its wire version. Before, a server refuses an argument that it does not know."""
PROPAGATOR = TraceContextTextMapPropagator()


def plug_in(runtime: Runtime, apply_patches: Any) -> None:
    """Around a connection's method that each command passes on its way, with the command."""
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
                _add_comment(operation, *driver.connections.passing_command(args, kwargs))
        return original(*args, **kwargs)

    name = driver.connections.PASSED
    apply_patches((owner, name, send) for owner in driver.connections.connections_with(name))


def _add_comment(operation: Operation, command: Any, client: Any) -> None:
    # Without a client it is a handshake, an authentication or a monitor's; the document of a
    # runCommand is the application's own: what is put there would stay there.
    if operation.span is None or client is None or operation.name == "runCommand":
        return
    if next(iter(command)) in COMMENTED and command.get("comment") is None:
        carrier: dict[str, str] = {}
        PROPAGATOR.inject(carrier, trace.set_span_in_context(operation.span))
        carrier.pop("tracestate", None)
        if carrier:
            command["comment"] = carrier
