"""Every private name of pymongo that this package uses, for the self-check."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pymongo_resilience_instrumentation.self_check import Feature, Part

from .clients import BACKGROUND, CONNECTION_FOR_SESSIONS, END_SESSIONS, KILLS, LOOK
from .commands import CONNECTIONS, LIMITED, OF_DELETES, OF_UPDATES, PASSED
from .cursors import AGGREGATE, CLONE, RUN_OPERATION
from .finds import ADDRESS, DOCUMENTS, OF_A_QUERY, SEND
from .interruptions import HANDLED, SENDERS, SENDING
from .publishing import ARGUMENTS, ENABLED
from .retry_loop import LOOKING_UP, LOOP
from .selection import ERROR_MESSAGE, PREFERENCES, SELECT, STALENESS
from .servers.attempts_in_flight import ATTEMPTS, CLEAR, CONNECTING, CONNECTION, CONTEXTS
from .servers.connections import FAILED
from .servers.monitors import OF_A_MONITOR, OF_A_TOPOLOGY, OF_AN_EXECUTOR
from .servers.pools import IDLE, IN_USE, PLACES
from .servers.topologies import CHANGE
from .sessions import END_SESSION, STATE, WITHIN_TIME_LIMIT
from .waits import ASYNC_HALF, HANDSHAKE, SELECTING, SELECTION_TIMEOUT, SYNC_HALF

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOOP_NAMES = (
    "run", "_read", "_write", "_always_retryable", "_attempt_number", "_bulk", "_client",
    "_deprioritized_servers", "_func", "_is_aggregate_write", "_is_read", "_is_run_command",
    "_is_session_state_retryable", "_last_error", "_operation", "_retryable", "_retrying",
    "_server", "_server_selector", "_session",
)  # fmt: skip
_BULK_NAMES = ("current_run", "retrying", "started_retryable_write")
_SESSION_NAMES = ("_start_retryable_write", "_transaction", "_unpin")
_CLEANUP_NAMES = (*KILLS, BACKGROUND, END_SESSIONS, CONNECTION_FOR_SESSIONS, "_close_cursor_soon")
_CURSOR_NAMES = (CLONE, "_query_flags", "_max_await_time_ms", "_session")
_STREAM_NAMES = (AGGREGATE, "_timeout", "_target", "_client")
_TRANSACTION_NAMES = (
    "set_starting", "has_completed_command", "attempt", "pinned_address", "sharded",
)  # fmt: skip


def parts() -> Iterator[Part]:
    """Every private name below, with the feature that is lost without it."""
    for half, prefix in (("synchronous", ""), ("asynchronous", "Async")):
        client = f"pymongo.{half}.mongo_client"
        session = f"pymongo.{half}.client_session"
        yield from _of_the_loop(half, prefix)
        yield from _of_breakers(f"{client}:{LOOP}", f"{session}:_Transaction")
        yield Part(Feature.BREAKERS, f"{client}:{prefix}MongoClient", ("_closed",))
        yield Part(
            Feature.CURSORS,
            f"{client}:{prefix}MongoClient",
            (RUN_OPERATION, "_ensure_session"),
        )
        yield from _of_cursors(half, prefix)
        yield Part(
            Feature.EXISTING_CLIENTS, f"{client}:{prefix}MongoClient", ("_clients", "_closed")
        )
        yield Part(Feature.REPR, f"{client}:{prefix}MongoClient", ("_options",))
        yield Part(Feature.EVENTS, f"{client}:{prefix}MongoClient", ("_event_listeners",))
        yield Part(Feature.CLEANUP, f"{client}:{prefix}MongoClient", _CLEANUP_NAMES)
        yield Part(
            Feature.CLEANUP, f"pymongo.periodic_executor:{prefix}PeriodicExecutor", ("_stopped",)
        )
        yield Part(
            Feature.CLEANUP,
            f"{client}:{prefix}MongoClient",
            ("_kill_cursors_executor",),
            set_by="_init_background",
        )
        yield Part(Feature.END_SESSION, f"{session}:{prefix}ClientSession", (END_SESSION,))
        yield Part(Feature.WHOLE_TIMEOUTS, session, (WITHIN_TIME_LIMIT, "_SESSION"))
        topology = f"pymongo.{half}.topology"
        yield from (*_of_why_not(half, prefix), *_of_recovery(half, prefix))
        yield Part(Feature.IN_FLIGHT, f"{client}:{prefix}MongoClient", ("_topology",))
        yield Part(Feature.IN_FLIGHT, f"{topology}:Topology", ("get_server_by_address",))
        yield Part(Feature.IN_FLIGHT, f"pymongo.{half}.pool:Pool", ("operation_count",))
        yield Part(Feature.POOLS, f"{client}:{prefix}MongoClient", ("_topology",))
        yield Part(Feature.POOLS, f"{topology}:Topology", ("get_server_by_address",))
        yield Part(Feature.POOLS, f"pymongo.{half}.pool:Pool", (IDLE, IN_USE, *PLACES))
        yield Part(Feature.SELECTION, f"{client}:{LOOP}", (SELECT,))
        yield Part(Feature.INTERRUPTIONS, f"{topology}:Topology", (HANDLED,))
        yield Part(Feature.INTERRUPTIONS, f"{topology}:_ErrorContext", ("error",))
    yield from (*_of_waits(), *_of_write_models())
    yield Part(Feature.CURSORS, "pymongo.message", ("_CursorAddress",))
    yield Part(Feature.RESUMPTION, "pymongo.message:_Query", OF_A_QUERY)
    yield Part(Feature.RETRIES, "pymongo.errors:OperationFailure", ("_OperationFailure__details",))
    yield Part(Feature.EVENTS, "pymongo.monitoring:_EventListeners", (ENABLED, *ARGUMENTS))
    yield Part(Feature.CLEANUP, "pymongo.common", ("KILL_CURSOR_FREQUENCY",))
    yield Part(Feature.CLEANUP, "pymongo.message:_CursorAddress", ("namespace",))
    yield Part(Feature.CLEANUP, "pymongo._csot", ("DEADLINE", "get_timeout", "remaining"))
    for module in SENDERS:
        yield Part(Feature.INTERRUPTIONS, f"{module}:{SENDING}", ("telemetry", "command_name"))
    yield Part(
        Feature.INTERRUPTIONS,
        "pymongo._telemetry:_CommandTelemetry",
        ("failed", "_start", "_duration_s"),
    )
    yield Part(Feature.RETRIES, "pymongo._csot", ("get_timeout", "remaining", "get_rtt"))
    for feature in (Feature.REPR, Feature.RETRIES, Feature.CLEANUP):
        yield Part(feature, "pymongo.client_options:ClientOptions", ("_options",))
    yield Part(
        Feature.REPR, "pymongo.client_options:ClientOptions", ("_ClientOptions__server_selector",)
    )
    yield Part(
        Feature.RETARGETING,
        "pymongo.topology_description:TopologyDescription",
        (LOOK, "known_servers"),
    )
    yield Part(Feature.RETARGETING, STALENESS, ("select",))
    yield Part(Feature.RETARGETING, PREFERENCES, ("make_read_preference",))
    yield Part(
        Feature.TIMEOUT, "pymongo._csot", ("get_timeout", "reset_all", "TIMEOUT", "DEADLINE", "RTT")
    )
    yield Part(Feature.TIME_LIMITS, "pymongo._csot", ("TIMEOUT", "get_timeout", "remaining"))
    for connection in CONNECTIONS:
        yield Part(Feature.TIME_LIMITS, connection, (LIMITED, "set_conn_timeout"))
        yield Part(Feature.COMMENTS, connection, (PASSED, "max_wire_version"))


def _of_the_loop(half: str, prefix: str) -> Iterator[Part]:
    client, session = f"pymongo.{half}.mongo_client", f"pymongo.{half}.client_session"
    yield Part(Feature.RETRIES, f"{client}:{LOOP}", _LOOP_NAMES)
    # The client must look the loop up in its module, each time.
    yield Part(Feature.RETRIES, f"{client}:{prefix}MongoClient", (LOOP,), LOOKING_UP)
    yield Part(Feature.RETRIES, f"pymongo.{half}.bulk:_{prefix}Bulk", _BULK_NAMES)
    yield Part(Feature.RETRIES, f"{session}:{prefix}ClientSession", _SESSION_NAMES)
    yield Part(Feature.RETRIES, f"{session}:_Transaction", _TRANSACTION_NAMES)
    yield Part(Feature.OPEN_COMMITS, f"{session}:_Transaction", (STATE,))
    connection = f"pymongo.{half}.pool:{prefix}Connection"
    yield Part(Feature.RETRIES, connection, ("supports_sessions",))
    yield Part(Feature.RETRIES, connection, ("is_standalone",), set_by="_hello")


def _of_why_not(half: str, prefix: str) -> Iterator[Part]:
    names = (ERROR_MESSAGE, "_servers", "_settings")
    yield Part(Feature.WHY_NOT, f"pymongo.{half}.topology:Topology", names)
    yield Part(Feature.WHY_NOT, f"pymongo.{half}.server:Server", ("_monitor",))
    yield Part(Feature.WHY_NOT, f"pymongo.{half}.monitor:MonitorBase", ("_executor",))
    executor = f"pymongo.periodic_executor:{prefix}PeriodicExecutor"
    yield Part(Feature.WHY_NOT, executor, ("_task" if prefix else "_thread",))


def _of_recovery(half: str, prefix: str) -> Iterator[Part]:
    yield Part(Feature.RECOVERY, f"pymongo.{half}.monitor:Monitor", OF_A_MONITOR)
    yield Part(Feature.RECOVERY, f"pymongo.{half}.topology:Topology", OF_A_TOPOLOGY)
    executor = f"pymongo.periodic_executor:{prefix}PeriodicExecutor"
    yield Part(Feature.RECOVERY, executor, OF_AN_EXECUTOR)
    yield Part(Feature.RECOVERY, f"pymongo.network_layer:{prefix}NetworkingInterface", ("conn",))
    yield Part(Feature.RECOVERY, "pymongo.network_layer:PyMongoProtocol", ("_closed", "transport"))
    yield Part(Feature.RECOVERY, "pymongo.errors", ("_OperationCancelled",))
    connect = (SYNC_HALF if half == SYNC_HALF.name else ASYNC_HALF).connect
    yield Part(Feature.DEAD_PEERS, f"pymongo.{half}.pool", (connect,))
    yield Part(Feature.DEAD_PEERS, f"pymongo.{half}.pool:{prefix}Connection", (FAILED,))
    lost, topology = Feature.LOST_PRIMARIES, f"pymongo.{half}.topology:Topology"
    yield Part(lost, topology, (CHANGE, "_description", "_opened", "_servers"))
    yield Part(lost, f"pymongo.{half}.pool:{prefix}Connection", ("cancel_context", "pool_ref"))
    yield Part(lost, f"pymongo.{half}.pool:Pool", (CLEAR, CONTEXTS, "lock"))
    yield Part(lost, f"pymongo.{half}.pool:Pool", (CONNECTION,), set_by=CONNECTING)
    for attempt in ATTEMPTS:
        loop = f"pymongo.{half}.mongo_client:{LOOP}"
        yield Part(lost, loop, (CONNECTION,), set_by=attempt)


def parts_of_gridfs() -> Iterator[Part]:
    """Of what is imported only where the application does."""
    for half, prefix in (("synchronous", ""), ("asynchronous", "Async")):
        gridfs = f"gridfs.{half}.grid_file:{prefix}Grid"
        for cls in ("FS", "FSBucket", "Out"):
            yield Part(Feature.GRIDFS, gridfs + cls, ("_files",))
        yield Part(Feature.GRIDFS, f"{gridfs}OutCursor", ())
        # Its constructor names what it sets in strings; this method uses it.
        yield Part(Feature.GRIDFS, f"{gridfs}In", ("_coll",), set_by="abort")


def _of_write_models() -> Iterator[Part]:
    yield Part(Feature.SINGLE_WRITES, "pymongo.operations:_UpdateOp", OF_UPDATES)
    yield Part(Feature.SINGLE_WRITES, "pymongo.operations:_DeleteOp", OF_DELETES)


def _of_waits() -> Iterator[Part]:
    for each in (SYNC_HALF, ASYNC_HALF):
        topology, pool = f"pymongo.{each.name}.topology", f"pymongo.{each.name}.pool"
        yield Part(Feature.WAITS, f"{topology}:Topology", (SELECTION_TIMEOUT, "_settings"))
        yield Part(Feature.WAITS, topology, (each.wait,))
        yield Part(Feature.WAITS, pool, (each.wait, each.connect))
        yield Part(Feature.WAITS, f"{pool}:Pool", (HANDSHAKE,))
        yield from _of_failing_fast(each.name, topology)
    yield Part(Feature.FAST_FAIL, "pymongo.errors:PyMongoError", ("_remove_error_label",))
    yield Part(Feature.WAITS, "pymongo.pool_options:PoolOptions", ("_ssl_context",))
    yield Part(
        Feature.WAITS,
        "pymongo._csot",
        ("DEADLINE", "TIMEOUT", "get_deadline", "get_timeout", "remaining"),
    )


def _of_breakers(loop: str, transaction: str) -> Iterator[Part]:
    yield Part(Feature.BREAKERS, loop, (SELECT, "_address", "_server", "_server_selector"))
    yield Part(Feature.BREAKERS, transaction, ("starting",))
    yield Part(
        Feature.BREAKERS,
        "pymongo.topology_description:TopologyDescription",
        (LOOK,),
    )


def _of_cursors(half: str, prefix: str) -> Iterator[Part]:
    module = f"pymongo.{half}"
    yield Part(Feature.CURSORS, f"{module}.cursor:{prefix}Cursor", _CURSOR_NAMES)
    stream = f"{module}.change_stream:{prefix}CollectionChangeStream"
    yield Part(Feature.CURSORS, stream, _STREAM_NAMES)
    stream = f"{module}.change_stream:{prefix}ChangeStream"
    yield Part(Feature.CURSORS, stream, ("_cursor",), set_by="_initialize_cursor")
    yield Part(Feature.CURSORS, f"{module}.pool:{prefix}Connection", (LIMITED,))
    yield Part(Feature.RESUMPTION, f"{module}.cursor:{prefix}Cursor", (SEND, DOCUMENTS))
    yield Part(Feature.RESUMPTION, f"{module}.mongo_client:{LOOP}", (ADDRESS,))


def _of_failing_fast(half: str, topology: str) -> Iterator[Part]:
    prefix = "Async" if half == "asynchronous" else ""
    client, module = f"{prefix}MongoClient", f"pymongo.{half}"
    yield Part(Feature.FAST_FAIL, f"{module}.mongo_client:{client}", ("_topology",))
    names = ("_condition", "_servers", "_seed_addresses")
    yield Part(Feature.FAST_FAIL, f"{topology}:Topology", (*names, SELECTING))
    yield Part(Feature.FAST_FAIL, f"{module}.server:Server", ("_monitor",))
    yield Part(Feature.FAST_FAIL, f"{module}.monitor:Monitor", ("cancel_check",))
