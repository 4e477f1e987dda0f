"""The names of the metrics, for the option that leaves some of them out."""

from __future__ import annotations

_CONNECTION = "db.client.connection."
_OURS = "pymongo_resilience."
METRICS = (
    "db.client.operation.duration",
    *(
        _CONNECTION + name
        for name in (
            "count", "create_time", "idle.max", "idle.min", "max", "pending_requests", "timeouts",
            "use_time", "wait_time",
        )
    ),
    *(
        _OURS + name
        for name in (
            "attempts", "backoff", "circuit_breaker.state", "heartbeat.duration",
            "heartbeat.failures", "hedged_reads", "retries", "retry_budget.tokens", "server.rtt",
            "server.rtt.min", "server.state", "server_selection.duration",
        )
    ),
)  # fmt: skip
"""As ``docs/metrics.md`` has them."""
OF_EACH_OPERATION = (_CONNECTION + "use_time", _CONNECTION + "wait_time", _OURS + "attempts")
"""What every healthy operation would record beside its duration: not in the standard set."""
