"""All private names of pymongo that this package uses.

The self-check compares ``parts`` with the installed pymongo. ``attributes`` exist only on connected
objects, so the tests check those; at run time, the other names of the same class represent them. If
one is missing, the AttributeError is handled like any internal error. ``parts_of_inserts`` has the
local variables that are read from closures of pymongo.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from pymongo_resilience_instrumentation.self_check import Part, State

from .attempts import EXECUTE_BATCH, LOOP
from .clients import (
    ASYNC_API,
    BACKGROUND,
    END_SESSIONS,
    FROM_OPTIONS,
    KILL,
    LOOKUP,
    SYNC_API,
)  # fmt: skip
from .connections import FAILED, HELLO, LIMITED, OUT_OF_TIME, PASSED, RECEIVE
from .csot import WRITE_CONCERN
from .cursors import AGGREGATE, RUN_OPERATION, RUN_WITH_CONN
from .dialing import PERISHED, WAITED_FOR
from .finds import ADDRESS, OF_A_QUERY, RESUME_TOKEN
from .inserts import COLLECTION, COMMAND, DOCUMENT, UPSERT
from .monitors import CANCEL, CHANGE, HANDLE_ERROR, READ, REQUEST
from .selection import ASYNC_SEND, HANDSHAKE, SELECT
from .sessions import STATE, WITHIN_TIME_LIMIT

Names = tuple[str, ...]
_LOOP_NAMES = (
    "run", "_read", "_write", "_always_retryable", "_attempt_number", "_bulk", "_client",
    "_deprioritized_servers", "_func", "_is_aggregate_write", "_is_read", "_is_run_command",
    "_last_error", "_operation", "_retryable", "_retrying", "_server", "_server_selector",
    "_session", "_address", SELECT, ADDRESS,
)  # fmt: skip
# Each row: a module or class, the names that it defines, and the names that only its instances
# have.
_IN_EACH_API: tuple[tuple[str, Names, Names], ...] = (
    (f"{{half}}.mongo_client:{LOOP}", _LOOP_NAMES, ()),
    (
        "{half}.mongo_client:{a}MongoClient",
        (
            "_checkout(self, server, session)",
            "_select_server(self, server_selector, session, operation, address)",
            FROM_OPTIONS, "_clients", "_close_cursor_soon", "_ensure_session",
            f"{RUN_OPERATION}(self, operation)", f"{BACKGROUND}(self)",
            f"{END_SESSIONS}(self, session_ids)", f"{KILL}(self, cursor_ids, address)",
            "_retry_internal(self, func, session, bulk, operation)",
        ),
        ("_closed", "_topology", "_options", "_topology_settings"),
    ),
    (
        "{half}.bulk:_{a}Bulk",
        (EXECUTE_BATCH,),
        ("current_run", "next_run", "retrying", "started_retryable_write"),
    ),
    (
        "{half}.client_bulk:_{a}ClientBulk",
        (EXECUTE_BATCH,),
        ("idx_offset", "ops", "retrying", "started_retryable_write"),
    ),
    (
        "{half}.client_session:{a}ClientSession",
        ("_start_retryable_write", "_unpin"),
        ("_server_session", "_transaction"),
    ),
    ("{half}.client_session", (f"{WITHIN_TIME_LIMIT}(start_time, backoff)", "_SESSION"), ()),
    (
        "{half}.client_session:_Transaction",
        ("set_starting", "starting"),
        ("has_completed_command", "attempt", "pinned_address", "sharded", "recovery_token", STATE),
    ),
    ("{half}.cursor:{a}Cursor", (), ("_query_flags", "_max_await_time_ms", "_session")),
    (
        "{half}.command_cursor:{a}CommandCursor",
        (f"{RUN_WITH_CONN}(self, conn, operation, read_preference)",),
        (ADDRESS, RESUME_TOKEN),
    ),
    (
        "{half}.change_stream:{a}CollectionChangeStream",
        (AGGREGATE, "_client"),
        ("_cursor", "_timeout", "_target"),
    ),
    (
        "{half}.topology:Topology",
        (
            "get_server_by_address", f"{CHANGE}(self, server_description)",
            f"{HANDLE_ERROR}(self, address, err_ctx)",
        ),
        ("_settings",),
    ),
    ("{half}.topology", ("{wait}(condition, timeout)",), ()),
    ("{half}.srv_resolver", (LOOKUP,), ()),
    ("{half}.server:Server", (), ("_monitor",)),
    (
        "{half}.monitor:Monitor",
        (CANCEL, READ, REQUEST),
        ("_awaited", "_executor", "_rtt_monitor", "_server_description", "_topology"),
    ),
    ("{half}.monitor:_RttMonitor", (), ("_moving_average",)),
    (
        "periodic_executor:{a}PeriodicExecutor",
        ("skip_sleep", "update_interval"),
        ("_min_interval",),
    ),
    ("network_layer:{a}NetworkingInterface", (), ("conn",)),
    ("{half}.pool", ("{wait}(condition, timeout)", "{connect}(address, options)"), ()),
    (
        "{half}.pool:Pool",
        (HANDSHAKE, PERISHED + "(self, conn)", f"{OUT_OF_TIME}(self, checkout_started_time)"),
        ("active_contexts", "conns", "operation_count", "pid", WAITED_FOR),
    ),
    (
        "{half}.pool:{a}Connection",
        (LIMITED, PASSED, HELLO, "set_conn_timeout", f"{FAILED}(self, error)"),
        (
            "cancel_context", "generation", "is_standalone", "max_wire_version", "pool_ref",
            "service_id", "supports_sessions",
        ),
    ),
)  # fmt: skip


def parts() -> Iterator[Part]:
    """Yield modules and classes with their names, and the parameters of functions."""
    for place, names, _ in _in_each_api():
        yield Part(place, names)
    write_concern = f"{WRITE_CONCERN}(cmd, write_concern)"
    yield Part("pymongo._csot", ("TIMEOUT", "DEADLINE", "RTT", write_concern))
    yield Part("pymongo.client_options:ClientOptions", ("_options",))
    yield Part("pymongo.pool_options:PoolOptions", ("_event_listeners",))
    yield Part("pymongo.monitoring:_EventListeners", ("event_listeners",))
    yield Part("pymongo.bulk_shared:_Run", ("add", "index"))
    yield Part("pymongo.message", ("_CursorAddress",))
    yield Part("pymongo.message:_CursorAddress", ("namespace",))
    yield Part("pymongo.message:_Query", OF_A_QUERY)
    yield Part("pymongo.errors", ("_OperationCancelled",))
    yield Part("pymongo.errors:PyMongoError", ("_remove_error_label",))
    yield Part("pymongo.topology_description:TopologyDescription", ("known_servers",))
    yield Part("pymongo.synchronous.pool", (RECEIVE,))
    yield Part("pymongo.asynchronous.pool", (f"async_{RECEIVE}",))
    # bounded_waits corrects how these handle cancellations.
    if sys.version_info < (3, 12):
        yield Part("pymongo.asynchronous.pool", (ASYNC_SEND,))
        yield Part("pymongo.lock", ("wait_for",))
    # Without these, there can be no spans either.
    listener = ("started", "succeeded", "failed")
    yield Part("pymongo.monitoring:CommandListener", listener, State.OFF)
    yield Part("pymongo:MongoClient", ("options", "topology_description"), State.OFF)


def parts_of_inserts() -> Iterator[Part]:
    """Yield the functions and their local variables from which ``inserts`` reads a document."""
    for api, prefix in ((SYNC_API, ""), (ASYNC_API, "Async")):
        place = f"pymongo.{api.name}.collection:{prefix}Collection"
        insert = f"_insert_one[{COLLECTION}, {COMMAND}]"
        yield Part(place, (insert, f"_update_retryable[{COLLECTION}, {DOCUMENT}, {UPSERT}]"))


def attributes() -> Iterator[Part]:
    """Yield classes with the attributes that only their instances have."""
    for place, _, names in _in_each_api():
        yield Part(place, names)
    yield Part("pymongo.synchronous.settings:TopologySettings", ("_server_selector",))
    yield Part("pymongo.asynchronous.settings:TopologySettings", ("_server_selector",))
    yield Part("pymongo.errors:OperationFailure", ("_OperationFailure__details",))
    yield Part("pymongo.pool_options:PoolOptions", ("_ssl_context",))
    yield Part("pymongo.network_layer:PyMongoProtocol", ("_closed", "transport"))


def _in_each_api() -> Iterator[tuple[str, Names, Names]]:
    for api in (SYNC_API, ASYNC_API):
        words = {"half": api.name, "a": "" if api is SYNC_API else "Async"}
        words |= {"wait": api.wait, "connect": api.connect}
        for place, names, of_instances in _IN_EACH_API:
            named = tuple(name.format_map(words) for name in names)
            yield "pymongo." + place.format_map(words), named, of_instances


def parts_of_gridfs() -> Iterator[Part]:
    """Yield the parts that are only imported if the application imports gridfs."""
    for api, prefix in (("synchronous", ""), ("asynchronous", "Async")):
        classes = ("FS", "FSBucket", "In", "Out")
        names = tuple(f"{prefix}Grid{each}" for each in classes)
        yield Part(f"gridfs.{api}.grid_file", names)
