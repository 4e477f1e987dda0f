"""Every private name of pymongo that this package uses, for the self-check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pymongo_resilience_instrumentation.self_check import Part, State

from .clients import BACKGROUND, END_SESSIONS, KILLS, LOOK
from .commands import CONNECTIONS, LIMITED, PASSED
from .connections import FAILED, HELLO, IDLE, IN_USE, PLACES
from .cursors import AGGREGATE, RUN_OPERATION
from .finds import ADDRESS, DOCUMENTS, OF_A_QUERY, SEND
from .monitors import CHANGE, CONNECTORS, OF_A_MONITOR, OF_AN_EXECUTOR
from .retry_loop import EXECUTE_BATCH, LOOKING_UP, LOOP
from .selection import PREFERENCES, SELECT, STALENESS
from .sessions import STATE, WITHIN_TIME_LIMIT
from .waits import ASYNC_HALF, HANDSHAKE, SELECTION_TIMEOUT, SYNC_HALF

_LOOP_NAMES = (
    "run", "_read", "_write", "_always_retryable", "_attempt_number", "_bulk", "_client",
    "_deprioritized_servers", "_func", "_is_aggregate_write", "_is_read", "_is_run_command",
    "_is_session_state_retryable", "_last_error", "_operation", "_retryable", "_retrying",
    "_server", "_server_selector", "_session", "_address", SELECT, ADDRESS,
)  # fmt: skip
_IN_EACH_HALF: tuple[tuple[Any, ...], ...] = (
    (f"{{half}}.mongo_client:{LOOP}", _LOOP_NAMES),
    # The client must look the loop up in its module, each time.
    ("{half}.mongo_client:{a}MongoClient", (LOOP,), LOOKING_UP),
    (
        "{half}.mongo_client:{a}MongoClient",
        (
            "_checkout(self, server, session)",
            "_select_server(self, server_selector, session, operation, address)",
            "_clients", "_closed", "_close_cursor_soon", "_ensure_session", "_topology",
            f"{RUN_OPERATION}(self, operation)", f"{BACKGROUND}(self)",
            f"{END_SESSIONS}(self, session_ids)",
            *(f"{name}(self, cursor_ids, address)" for name in KILLS),
        ),
    ),
    (
        "{half}.bulk:_{a}Bulk",
        ("current_run", "retrying", "started_retryable_write", EXECUTE_BATCH),
    ),
    (
        "{half}.client_bulk:_{a}ClientBulk",
        ("idx_offset", "ops", "retrying", "started_retryable_write", EXECUTE_BATCH),
    ),
    (
        "{half}.client_session:{a}ClientSession",
        ("_implicit", "_server_session", "_start_retryable_write", "_transaction", "_unpin"),
    ),
    ("{half}.client_session", (f"{WITHIN_TIME_LIMIT}(start_time, backoff)", "_SESSION")),
    (
        "{half}.client_session:_Transaction",
        (
            "set_starting", "starting", "has_completed_command", "attempt", "pinned_address",
            "sharded", "recovery_token", STATE,
        ),
    ),
    (
        "{half}.cursor:{a}Cursor",
        ("_query_flags", "_max_await_time_ms", "_session", SEND, DOCUMENTS),
    ),
    (
        "{half}.change_stream:{a}CollectionChangeStream",
        (AGGREGATE, "_timeout", "_target", "_client"),
    ),
    ("{half}.change_stream:{a}ChangeStream", ("_cursor",), "_initialize_cursor"),
    (
        "{half}.topology:Topology",
        (
            "_condition", "_servers", "_settings", "get_server_by_address", CHANGE,
            "handle_error(self, address, err_ctx)", f"{SELECTION_TIMEOUT}(self)",
        ),
    ),
    ("{half}.topology", ("{wait}(condition, timeout)",)),
    ("{half}.server:Server", ("_monitor",)),
    ("{half}.monitor:Monitor", ("cancel_check", *OF_A_MONITOR)),
    ("periodic_executor:{a}PeriodicExecutor", OF_AN_EXECUTOR),
    ("network_layer:{a}NetworkingInterface", ("conn",)),
    ("{half}.pool", ("{wait}(condition, timeout)", "{connect}(address, options)")),
    ("{half}.pool:Pool", ("operation_count", HANDSHAKE, IDLE, IN_USE, *PLACES)),
    (
        "{half}.pool:{a}Connection",
        (
            "cancel_context", "generation", "pool_ref", "service_id", "supports_sessions", LIMITED,
            HELLO, f"{FAILED}(self, error)",
        ),
    ),
    ("{half}.pool:{a}Connection", ("is_standalone",), "_hello"),
)  # fmt: skip


def parts() -> Iterator[Part]:
    """Every private name below, and the parameters of what is called."""
    for half in (SYNC_HALF, ASYNC_HALF):
        words = {"half": half.name, "a": "" if half is SYNC_HALF else "Async"}
        words |= {"wait": half.wait, "connect": half.connect}
        for place, names, *set_by in _IN_EACH_HALF:
            named = tuple(name.format_map(words) for name in names)
            yield Part("pymongo." + place.format_map(words), named, *set_by)
    yield from (Part(*row) for row in _of_both())


def _of_both() -> Iterator[tuple[Any, ...]]:
    topology = "pymongo.topology_description:TopologyDescription"
    timeouts = "get_timeout", "get_rtt", "remaining", "reset_all", "TIMEOUT", "DEADLINE", "RTT"
    yield "pymongo._csot", timeouts
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
