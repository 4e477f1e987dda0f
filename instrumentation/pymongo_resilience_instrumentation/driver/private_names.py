"""Every private name of pymongo that this package uses, for the self-check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience_instrumentation.self_check import Part, State

from .clients import BACKGROUND, END_SESSIONS, KILL, LOOK
from .commands import CONNECTIONS, LIMITED, PASSED
from .connections import FAILED, HELLO, IDLE, IN_USE, PLACES
from .cursors import AGGREGATE, RUN_OPERATION
from .finds import ADDRESS, DOCUMENTS, OF_A_QUERY, SEND
from .monitors import CHANGE, CONNECTORS, OF_A_MONITOR, OF_AN_EXECUTOR
from .retry_loop import EXECUTE_BATCH, LOOKING_UP, LOOP
from .selection import PREFERENCES, SELECT, STALENESS
from .sessions import STATE, WITHIN_TIME_LIMIT
from .waits import ASYNC_HALF, HANDSHAKE, SELECTION_TIMEOUT, SYNC_HALF

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .waits import Half

_LOOP_NAMES = (
    "run", "_read", "_write", "_always_retryable", "_attempt_number", "_bulk", "_client",
    "_deprioritized_servers", "_func", "_is_aggregate_write", "_is_read", "_is_run_command",
    "_is_session_state_retryable", "_last_error", "_operation", "_retryable", "_retrying",
    "_server", "_server_selector", "_session", "_address", SELECT, ADDRESS,
)  # fmt: skip
_SESSION_NAMES = (
    "_implicit", "_server_session", "_start_retryable_write", "_transaction", "_unpin",
)  # fmt: skip
_CSOT_VARIABLES = ("TIMEOUT", "DEADLINE", "RTT")
_TRANSACTION_NAMES = (
    "set_starting", "starting", "has_completed_command", "attempt", "pinned_address", "sharded",
    "recovery_token", STATE,
)  # fmt: skip


def parts() -> Iterator[Part]:
    """Every private name below."""
    for half in (SYNC_HALF, ASYNC_HALF):
        yield from (Part(*row) for row in _of_a_half(half))
    yield from (Part(*row) for row in _of_both())


def _of_a_half(half: Half) -> Iterator[tuple[Any, ...]]:
    prefix, package = "" if half is SYNC_HALF else "Async", f"pymongo.{half.name}"
    clients, sessions, topologies, pools, cursors, streams = (
        f"{package}.{module}"
        for module in (
            "mongo_client", "client_session", "topology", "pool", "cursor", "change_stream",
        )
    )  # fmt: skip
    client, loop = f"{clients}:{prefix}MongoClient", f"{clients}:{LOOP}"
    session, transaction = f"{sessions}:{prefix}ClientSession", f"{sessions}:_Transaction"
    topology, server, monitor = (
        f"{topologies}:Topology",
        f"{package}.server:Server",
        f"{package}.monitor:Monitor",
    )
    pool, connection = f"{pools}:Pool", f"{pools}:{prefix}Connection"
    executor = f"pymongo.periodic_executor:{prefix}PeriodicExecutor"
    yield from (
        (loop, _LOOP_NAMES),
        # The client must look the loop up in its module, each time.
        (client, (LOOP,), LOOKING_UP),
        (
            f"{package}.bulk:_{prefix}Bulk",
            ("current_run", "retrying", "started_retryable_write", EXECUTE_BATCH),
        ),
        (
            f"{package}.client_bulk:_{prefix}ClientBulk",
            ("idx_offset", "ops", "retrying", "started_retryable_write", EXECUTE_BATCH),
        ),
        (session, _SESSION_NAMES),
        (sessions, (f"{WITHIN_TIME_LIMIT}(start_time, backoff)", "_SESSION")),
        (transaction, _TRANSACTION_NAMES),
        (
            client,
            (
                "_checkout(self, server, session)",
                "_select_server(self, server_selector, session, operation, address)",
                "_clients", "_closed", "_close_cursor_soon", "_ensure_session", "_topology",
                f"{RUN_OPERATION}(self, operation)", f"{BACKGROUND}(self)",
                f"{END_SESSIONS}(self, session_ids)",
                f"{KILL}(self, cursor_ids, address, topology, session)",
            ),
        ),
        (
            f"{cursors}:{prefix}Cursor",
            ("_query_flags", "_max_await_time_ms", "_session", SEND, DOCUMENTS),
        ),
        (
            f"{streams}:{prefix}CollectionChangeStream",
            (AGGREGATE, "_timeout", "_target", "_client"),
        ),
        (f"{streams}:{prefix}ChangeStream", ("_cursor",), "_initialize_cursor"),
        (
            topology,
            (
                "_condition", "_servers", "_settings", "get_server_by_address", CHANGE,
                "handle_error(self, address, err_ctx)",
                f"{SELECTION_TIMEOUT}(self)",
            ),
        ),
        (topologies, (f"{half.wait}(condition, timeout)",)),
        (server, ("_monitor",)),
        (monitor, ("cancel_check", *OF_A_MONITOR)),
        (executor, OF_AN_EXECUTOR),
        (f"pymongo.network_layer:{prefix}NetworkingInterface", ("conn",)),
        (pools, (f"{half.wait}(condition, timeout)", f"{half.connect}(address, options)")),
        (pool, ("operation_count", HANDSHAKE, IDLE, IN_USE, *PLACES)),
        (
            connection,
            (
                "cancel_context", "generation", "pool_ref", "service_id", "supports_sessions",
                LIMITED, HELLO, f"{FAILED}(self, error)",
            ),
        ),
        (connection, ("is_standalone",), "_hello"),
    )  # fmt: skip


def _of_both() -> Iterator[tuple[Any, ...]]:
    topology = "pymongo.topology_description:TopologyDescription"
    yield (
        "pymongo._csot",
        ("get_deadline", "get_timeout", "get_rtt", "remaining", "reset_all", *_CSOT_VARIABLES),
    )
    yield "pymongo.client_options:ClientOptions", ("_options",)
    yield "pymongo.message", ("_CursorAddress",)
    yield "pymongo.message:_CursorAddress", ("namespace",)
    yield "pymongo.message:_Query", OF_A_QUERY
    yield "pymongo.errors", ("_OperationCancelled",)
    yield "pymongo.errors:OperationFailure", ("_OperationFailure__details",)
    yield "pymongo.errors:PyMongoError", ("_remove_error_label",)
    for module, name in CONNECTORS:
        yield module, (f"{name}(address, options)",)
    selecting = "(self, selector, address, custom_selector, deprioritized_servers)"
    yield topology, (f"{LOOK}{selecting}", "known_servers")
    yield STALENESS, ("select",)
    yield PREFERENCES, ("make_read_preference",)
    for connection in CONNECTIONS:
        yield connection, (LIMITED, PASSED, "max_wire_version", "set_conn_timeout")
    yield "pymongo.network_layer:PyMongoProtocol", ("_closed", "transport")
    # Without these there are no spans either.
    yield "pymongo.monitoring:CommandListener", ("started", "succeeded", "failed"), "", State.OFF
    yield "pymongo:MongoClient", ("options", "topology_description"), "", State.OFF


def parts_of_gridfs() -> Iterator[Part]:
    """Of what is imported only where the application does."""
    for half, prefix in (("synchronous", ""), ("asynchronous", "Async")):
        gridfs = f"gridfs.{half}.grid_file:{prefix}Grid"
        for cls in ("FS", "FSBucket", "Out"):
            yield Part(gridfs + cls, ("_files",))
        yield Part(f"{gridfs}OutCursor", ())
        # Its constructor names what it sets in strings; this method uses it.
        yield Part(f"{gridfs}In", ("_coll",), set_by="abort")
