"""What the dashboard shows: rows of panels, each with its queries. ``grafana.py`` draws them."""

from __future__ import annotations

from .queries import (
    DURATION,
    FAILED,
    OF_POOL,
    OF_SERVER,
    OPERATION,
    POOL,
    POOL_LEGEND,
    SERVER,
    SERVER_LEGEND,
    Panel,
    Query,
    of,
    per_second,
    quantile,
    slowest,
)

ONLY_ALL = "Empty unless PYMONGO_RESILIENCE_METRICS=all."

OPERATIONS = (
    Panel(
        "Operations",
        "ops",
        "Calls of the public API, their retries included.",
        (
            Query(
                per_second(f"{DURATION}_count", "db_operation_name", OPERATION),
                "{{db_operation_name}}",
            ),
        ),
    ),
    Panel(
        "Duration",
        "s",
        "How long calls take, their retries included. Points are exemplars: they lead to traces.",
        tuple(
            Query(quantile(share, DURATION, labels=OPERATION), f"p{share * 100:g}", exemplars=True)
            for share in (0.5, 0.95, 0.99)
        ),
    ),
    Panel(
        "Errors",
        "ops",
        "Calls that raised, by the server's name of its code, else by the exception's class.",
        (Query(per_second(f"{DURATION}_count", "error_type", FAILED), "{{error_type}}"),),
    ),
    slowest(
        "Duration by collection (p95)",
        DURATION,
        "db_namespace, db_collection_name",
        "{{db_namespace}}.{{db_collection_name}}",
        description="Of each database, where durations have no attribute for the collection.",
        labels=OPERATION,
    ),
)
RETRIES = (
    Panel(
        "Retries by reason",
        "ops",
        "Failed attempts that were repeated. Of connections that were given up on purpose: "
        "dead_peer, interrupted and attempt_timeout.",
        (
            Query(
                per_second(
                    "pymongo_resilience_retries_total",
                    "pymongo_resilience_reason",
                    of('pymongo_resilience_decision="scheduled"'),
                ),
                "{{pymongo_resilience_reason}}",
            ),
        ),
    ),
    Panel(
        "Declined by rule",
        "ops",
        "Failed attempts that were final, by the rule that declined to repeat them.",
        (
            Query(
                per_second(
                    "pymongo_resilience_retries_total",
                    "pymongo_resilience_decision, pymongo_resilience_reason",
                    of('pymongo_resilience_decision!="scheduled"'),
                ),
                "{{pymongo_resilience_decision}}: {{pymongo_resilience_reason}}",
            ),
        ),
    ),
    Panel(
        "Retries per operation",
        "short",
        "0 where nothing is repeated.",
        (
            Query(
                per_second(
                    "pymongo_resilience_retries_total",
                    "db_operation_name",
                    of('pymongo_resilience_decision="scheduled"'),
                )
                + " / "
                + per_second(f"{DURATION}_count", "db_operation_name"),
                "{{db_operation_name}}",
            ),
        ),
    ),
    Panel(
        "Outcomes",
        "ops",
        "How calls ended; ok and retried_ok are the good ways. " + ONLY_ALL,
        (
            Query(
                per_second("pymongo_resilience_attempts_count", "pymongo_resilience_outcome"),
                "{{pymongo_resilience_outcome}}",
            ),
        ),
    ),
    slowest(
        "Back-off (p95)",
        "pymongo_resilience_backoff_seconds",
        "pymongo_resilience_reason",
        "{{pymongo_resilience_reason}}",
        description="Delay before an attempt is repeated.",
    ),
    Panel(
        "Retry budget",
        "short",
        "Tokens that a client's retry budget has left, the least of all processes.",
        (
            Query(
                "min by (pymongo_resilience_client) "
                "(pymongo_resilience_retry_budget_tokens"
                + of('pymongo_resilience_client=~"$client"')
                + ")",
                "client {{pymongo_resilience_client}}",
            ),
        ),
    ),
)
SERVERS = (
    Panel(
        "Server states",
        "short",
        "How many clients see a server as what.",
        (
            Query(
                f"sum by ({OF_SERVER}, pymongo_resilience_server_type) "
                f"(pymongo_resilience_server_state{SERVER})",
                SERVER_LEGEND + " {{pymongo_resilience_server_type}}",
            ),
        ),
    ),
    Panel(
        "Circuit breakers",
        "short",
        "How many processes have the breaker of a server in which state.",
        (
            Query(
                f"sum by ({OF_SERVER}, pymongo_resilience_state) "
                f"(pymongo_resilience_circuit_breaker_state{SERVER})",
                SERVER_LEGEND + " {{pymongo_resilience_state}}",
            ),
        ),
    ),
    Panel(
        "Round-trip time",
        "s",
        "Weighted average, and the minimum of the last ten.",
        (
            Query(
                f"max by ({OF_SERVER}) (pymongo_resilience_server_rtt_seconds{SERVER})",
                SERVER_LEGEND,
            ),
            Query(
                f"min by ({OF_SERVER}) (pymongo_resilience_server_rtt_min_seconds{SERVER})",
                SERVER_LEGEND + " minimum",
            ),
        ),
    ),
    slowest(
        "Heartbeats (p95)",
        "pymongo_resilience_heartbeat_duration_seconds",
        OF_SERVER,
        SERVER_LEGEND,
        description="Of the monitors' hellos that ask for an answer at once.",
        labels=of('server_address=~"$server"', 'pymongo_resilience_awaited="false"'),
    ),
    Panel(
        "Failed heartbeats",
        "ops",
        "Hellos of a monitor that failed.",
        (
            Query(
                per_second("pymongo_resilience_heartbeat_failures_total", OF_SERVER, SERVER),
                SERVER_LEGEND,
            ),
        ),
    ),
    slowest(
        "Server selection (p95)",
        "pymongo_resilience_server_selection_duration_seconds",
        "db_operation_name, pymongo_resilience_outcome",
        "{{db_operation_name}} {{pymongo_resilience_outcome}}",
        description="How long operations wait for a server that suits them.",
    ),
)
POOLS = (
    Panel(
        "Connections",
        "short",
        "Of all pools of that name; what is being opened counts as used.",
        (
            Query(
                f"sum by ({OF_POOL}, db_client_connection_state) "
                f"(db_client_connection_count{POOL})",
                POOL_LEGEND + " {{db_client_connection_state}}",
            ),
            Query(f"sum by ({OF_POOL}) (db_client_connection_max{POOL})", POOL_LEGEND + " at most"),
        ),
    ),
    Panel(
        "Waiting for a connection",
        "short",
        "Operations that have asked the pool for a connection and do not have it yet.",
        (Query(f"sum by ({OF_POOL}) (db_client_connection_pending_requests{POOL})", POOL_LEGEND),),
    ),
    Panel(
        "Timeouts",
        "ops",
        "Waits for a connection that ended without one.",
        (Query(per_second("db_client_connection_timeouts_total", OF_POOL, POOL), POOL_LEGEND),),
    ),
    *(
        slowest(
            f"{title} (p95)",
            f"db_client_connection_{name}_seconds",
            OF_POOL,
            POOL_LEGEND,
            description=description,
            labels=POOL,
        )
        for title, name, description in (
            ("Wait time", "wait_time", "Until the pool gave a connection. " + ONLY_ALL),
            (
                "Use time",
                "use_time",
                "From taking a connection to giving it back. " + ONLY_ALL,
            ),
            ("Create time", "create_time", "TCP, TLS, hello and authentication."),
        )
    ),
)
ROWS = {"Operations": OPERATIONS, "Retries": RETRIES, "Servers": SERVERS, "Pools": POOLS}
