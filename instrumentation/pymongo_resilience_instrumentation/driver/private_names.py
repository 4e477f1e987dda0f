"""Every private name of pymongo that this package uses, for the self-check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience_instrumentation.self_check import Feature, Part

from .clients import BACKGROUND, CONNECTION_FOR_SESSIONS, END_SESSIONS, KILLS, LOOK
from .commands import CONNECTIONS, LIMITED, PASSED
from .cursors import AGGREGATE, CLONE, RUN_OPERATION
from .finds import ADDRESS, DOCUMENTS, OF_A_QUERY, SEND
from .interruptions import HANDLED, SENDERS, SENDING
from .retry_loop import EXECUTE_BATCH, LOOKING_UP, LOOP
from .selection import ERROR_MESSAGE, PREFERENCES, SELECT, STALENESS
from .servers.connections import FAILED, HELLO
from .servers.monitors import OF_A_MONITOR, OF_A_TOPOLOGY, OF_AN_EXECUTOR
from .servers.pools import IDLE, IN_USE, PLACES
from .servers.topologies import CHANGE
from .sessions import END_SESSION, STATE, WITHIN_TIME_LIMIT
from .waits import ASYNC_HALF, HANDSHAKE, SELECTING, SELECTION_TIMEOUT, SYNC_HALF

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .waits import Half

_LOOP_NAMES = (
    "run", "_read", "_write", "_always_retryable", "_attempt_number", "_bulk", "_client",
    "_deprioritized_servers", "_func", "_is_aggregate_write", "_is_read", "_is_run_command",
    "_is_session_state_retryable", "_last_error", "_operation", "_retryable", "_retrying",
    "_server", "_server_selector", "_session",
)  # fmt: skip
_TRANSACTION_NAMES = (
    "set_starting", "has_completed_command", "attempt", "pinned_address", "sharded",
)  # fmt: skip


def parts() -> Iterator[Part]:
    """Every private name below, with the feature that is lost without it."""
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
        (Feature.RETRIES, loop, _LOOP_NAMES),
        # The client must look the loop up in its module, each time.
        (Feature.RETRIES, client, (LOOP,), LOOKING_UP),
        (
            Feature.RETRIES,
            f"{package}.bulk:_{prefix}Bulk",
            ("current_run", "retrying", "started_retryable_write"),
        ),
        (Feature.BULKS, f"{package}.bulk:_{prefix}Bulk", (EXECUTE_BATCH,)),
        (
            Feature.RETRIES,
            session,
            ("_implicit", "_start_retryable_write", "_transaction", "_unpin"),
        ),
        (Feature.RETRIES, transaction, _TRANSACTION_NAMES),
        (Feature.OPEN_COMMITS, transaction, (STATE,)),
        (Feature.RETRIES, connection, ("supports_sessions",)),
        (Feature.RETRIES, connection, ("is_standalone",), "_hello"),
        (Feature.BREAKERS, loop, (SELECT, "_address", "_server", "_server_selector")),
        (Feature.BREAKERS, transaction, ("starting",)),
        (Feature.BREAKERS, client, ("_closed",)),
        (Feature.CURSORS, client, (RUN_OPERATION, "_ensure_session")),
        (
            Feature.CURSORS,
            f"{cursors}:{prefix}Cursor",
            (CLONE, "_explain", "_query_flags", "_max_await_time_ms", "_session"),
        ),
        (
            Feature.CURSORS,
            f"{streams}:{prefix}CollectionChangeStream",
            (AGGREGATE, "_timeout", "_target", "_client"),
        ),
        (Feature.CURSORS, f"{streams}:{prefix}ChangeStream", ("_cursor",), "_initialize_cursor"),
        (Feature.CURSORS, connection, (LIMITED,)),
        (Feature.RESUMPTION, f"{cursors}:{prefix}Cursor", (SEND, DOCUMENTS)),
        (Feature.RESUMPTION, loop, (ADDRESS,)),
        (Feature.EXISTING_CLIENTS, client, ("_clients", "_closed")),
        (
            Feature.CLEANUP,
            client,
            (*KILLS, BACKGROUND, END_SESSIONS, CONNECTION_FOR_SESSIONS, "_close_cursor_soon"),
        ),
        (Feature.CLEANUP, executor, ("_stopped",)),
        (Feature.CLEANUP, client, ("_kill_cursors_executor",), "_init_background"),
        (Feature.END_SESSION, session, (END_SESSION,)),
        (Feature.WHOLE_TIMEOUTS, sessions, (WITHIN_TIME_LIMIT, "_SESSION")),
        (Feature.WHY_NOT, topology, (ERROR_MESSAGE, "_servers", "_settings")),
        (Feature.WHY_NOT, server, ("_monitor",)),
        (Feature.WHY_NOT, f"{monitor}Base", ("_executor",)),
        (Feature.WHY_NOT, executor, ("_task" if prefix else "_thread",)),
        (Feature.RECOVERY, monitor, OF_A_MONITOR),
        (Feature.RECOVERY, topology, OF_A_TOPOLOGY),
        (Feature.RECOVERY, executor, OF_AN_EXECUTOR),
        (Feature.RECOVERY, f"pymongo.network_layer:{prefix}NetworkingInterface", ("conn",)),
        (Feature.DEAD_PEERS, pools, (half.connect,)),
        (Feature.DEAD_PEERS, connection, (FAILED,)),
        (Feature.LOST_PRIMARIES, topology, (CHANGE, "_description", "_opened", "_servers")),
        (Feature.LOST_PRIMARIES, connection, ("cancel_context", "pool_ref", HELLO)),
        (Feature.IN_FLIGHT, client, ("_topology",)),
        (Feature.IN_FLIGHT, topology, ("get_server_by_address",)),
        (Feature.POOLS, client, ("_topology",)),
        (Feature.POOLS, topology, ("get_server_by_address",)),
        (Feature.IN_FLIGHT, pool, ("operation_count",)),
        (Feature.POOLS, pool, (IDLE, IN_USE, *PLACES)),
        (Feature.SELECTION, loop, (SELECT,)),
        (Feature.INTERRUPTIONS, topology, (HANDLED,)),
        (Feature.INTERRUPTIONS, f"{topologies}:_ErrorContext", ("error",)),
        (Feature.WAITS, topology, (SELECTION_TIMEOUT, "_settings")),
        (Feature.WAITS, topologies, (half.wait,)),
        (Feature.WAITS, pools, (half.wait, half.connect)),
        (Feature.WAITS, pool, (HANDSHAKE,)),
        (Feature.FAST_FAIL, client, ("_topology",)),
        (Feature.FAST_FAIL, topology, ("_condition", "_servers", "_seed_addresses", SELECTING)),
        (Feature.FAST_FAIL, server, ("_monitor",)),
        (Feature.FAST_FAIL, monitor, ("cancel_check",)),
    )


def _of_both() -> Iterator[tuple[Any, ...]]:
    csot, options = "pymongo._csot", "pymongo.client_options:ClientOptions"
    topology, address = (
        "pymongo.topology_description:TopologyDescription",
        "pymongo.message:_CursorAddress",
    )
    yield Feature.CURSORS, "pymongo.message", ("_CursorAddress",)
    yield Feature.RESUMPTION, "pymongo.message:_Query", OF_A_QUERY
    yield Feature.RETRIES, "pymongo.errors:OperationFailure", ("_OperationFailure__details",)
    yield Feature.RETRIES, csot, ("get_timeout", "remaining", "get_rtt")
    yield Feature.CLEANUP, address, ("namespace",)
    yield Feature.CLEANUP, csot, ("DEADLINE", "get_timeout", "remaining")
    for module in SENDERS:
        yield Feature.INTERRUPTIONS, f"{module}:{SENDING}", ("telemetry", "command_name")
    names = ("failed", "_start", "_duration_s")
    yield Feature.INTERRUPTIONS, "pymongo._telemetry:_CommandTelemetry", names
    for feature in (Feature.RETRIES, Feature.CLEANUP):
        yield feature, options, ("_options",)
    yield Feature.BREAKERS, topology, (LOOK,)
    yield Feature.RETARGETING, topology, (LOOK, "known_servers")
    yield Feature.RETARGETING, STALENESS, ("select",)
    yield Feature.RETARGETING, PREFERENCES, ("make_read_preference",)
    yield Feature.TIMEOUT, csot, ("get_timeout", "reset_all", "TIMEOUT", "DEADLINE", "RTT")
    yield Feature.TIME_LIMITS, csot, ("TIMEOUT", "get_timeout", "remaining")
    for connection in CONNECTIONS:
        yield Feature.TIME_LIMITS, connection, (LIMITED, "set_conn_timeout")
        yield Feature.COMMENTS, connection, (PASSED, "max_wire_version")
    yield Feature.WAITS, csot, ("DEADLINE", "TIMEOUT", "get_deadline", "get_timeout", "remaining")
    yield Feature.WAITS, "pymongo.pool_options:PoolOptions", ("_ssl_context",)
    yield Feature.FAST_FAIL, "pymongo.errors:PyMongoError", ("_remove_error_label",)
    yield Feature.RECOVERY, "pymongo.network_layer:PyMongoProtocol", ("_closed", "transport")
    yield Feature.RECOVERY, "pymongo.errors", ("_OperationCancelled",)


def parts_of_gridfs() -> Iterator[Part]:
    """Of what is imported only where the application does."""
    for half, prefix in (("synchronous", ""), ("asynchronous", "Async")):
        gridfs = f"gridfs.{half}.grid_file:{prefix}Grid"
        for cls in ("FS", "FSBucket", "Out"):
            yield Part(Feature.GRIDFS, gridfs + cls, ("_files",))
        yield Part(Feature.GRIDFS, f"{gridfs}OutCursor", ())
        # Its constructor names what it sets in strings; this method uses it.
        yield Part(Feature.GRIDFS, f"{gridfs}In", ("_coll",), set_by="abort")
