"""The only package that names private parts of pymongo; the rest of the house asks it here."""

from __future__ import annotations

from pymongo_resilience_instrumentation.driver.clients import (
    cursor_namespace,
    existing_clients,
    kill_interval,
    kill_later,
    kills_no_more,
    max_retries,
    retargets_on_overload,
    show_listeners,
    topology_description,
)
from pymongo_resilience_instrumentation.driver.deadline import (
    TimeoutAnew,
    forget_timeout,
    has_max_commit_time,
    has_max_time,
    min_rtt,
    remaining,
    timeout_in_force,
)
from pymongo_resilience_instrumentation.driver.interruptions import (
    SENDERS,
    fail_interrupted_commands,
    handled_error,
    topology_classes,
)
from pymongo_resilience_instrumentation.driver.names import (
    parts,
)
from pymongo_resilience_instrumentation.driver.repetition import (
    deprioritize,
    prepare_retry,
    unpin,
)
from pymongo_resilience_instrumentation.driver.retry_loop import (
    address_of,
    bulk_progress,
    carries_txn_number,
    client,
    func,
    in_transaction,
    is_sharded,
    kind,
    loop_classes,
    lost_its_txn_number,
    namespace,
    operation_name,
    replace_func,
    restore_retryable,
    retries_enabled,
    server,
    server_address,
    server_selection_timeout,
)
from pymongo_resilience_instrumentation.driver.time_limits import (
    lift_limits,
    limited_command,
    limited_connections,
    refuse_without_end,
)
from pymongo_resilience_instrumentation.driver.tls import (
    TLS_ERRORS,
)

__all__ = [
    "SENDERS",
    "TLS_ERRORS",
    "TimeoutAnew",
    "address_of",
    "bulk_progress",
    "carries_txn_number",
    "client",
    "cursor_namespace",
    "deprioritize",
    "existing_clients",
    "fail_interrupted_commands",
    "forget_timeout",
    "func",
    "handled_error",
    "has_max_commit_time",
    "has_max_time",
    "in_transaction",
    "is_sharded",
    "kill_interval",
    "kill_later",
    "kills_no_more",
    "kind",
    "lift_limits",
    "limited_command",
    "limited_connections",
    "loop_classes",
    "lost_its_txn_number",
    "max_retries",
    "min_rtt",
    "namespace",
    "operation_name",
    "parts",
    "prepare_retry",
    "refuse_without_end",
    "remaining",
    "replace_func",
    "restore_retryable",
    "retargets_on_overload",
    "retries_enabled",
    "server",
    "server_address",
    "server_selection_timeout",
    "show_listeners",
    "timeout_in_force",
    "topology_classes",
    "topology_description",
    "unpin",
]
