"""What the dashboard shows: rows of panels, each with its queries.

Every query uses the dashboard's variables ``$job`` and ``$instance``, by which Prometheus
distinguishes processes, and may use ``$client``, ``$server`` and ``$namespace``.
"""

from __future__ import annotations

from typing import NamedTuple

RATE = "[$__rate_interval]"


class Query(NamedTuple):
    """One line, or one for each combination of labels."""

    expression: str
    legend: str
    exemplars: bool = False
    """Whether its points may lead to traces."""


class Panel(NamedTuple):
    """A chart over time."""

    title: str
    unit: str
    """Grafana's name of it."""
    description: str
    queries: tuple[Query, ...]


def of(*matchers: str) -> str:
    """The series of the chosen processes that have these labels."""
    return "{" + ", ".join(('job=~"$job"', 'instance=~"$instance"', *matchers)) + "}"


ALL = of()
OPERATION = of('db_namespace=~"$namespace"', 'server_address=~"$server"')
FAILED = of('db_namespace=~"$namespace"', 'server_address=~"$server"', 'error_type!=""')
SERVER = of('server_address=~"$server"')
POOL = of('db_client_connection_pool_name=~"($server)(:[0-9]+)?#($client)"')
SCHEDULED = of('pymongo_resilience_decision="scheduled"')
DECLINED = of('pymongo_resilience_decision!="scheduled"')
OVERLOADED = of('pymongo_resilience_reason="overloaded"')
REJECTED = "pymongo_resilience_rejected_handshakes_total"
BY_POOL = "db_client_connection_pool_name"
BY_SERVER = "server_address, server_port"
OPERATIONS = "db_client_operation_duration_seconds"
RETRIES = "pymongo_resilience_retries_total"
ONLY_ALL = "Empty unless PYMONGO_RESILIENCE_METRICS=all."


def legend(by: str, more: str = "") -> str:
    """The values of the labels that a query sums by, and ``more``."""
    values = " ".join(f"{{{{{each}}}}}" for each in by.split(", "))
    return values.replace("address}} {{server", "address}}:{{server") + more


def per_second(counter: str, by: str, labels: str = ALL) -> str:
    return f"sum by ({by}) (rate({counter}{labels}{RATE}))"


def total(labels: str) -> str:
    """Operations per second, of all together."""
    return f"sum(rate({OPERATIONS}_count{labels}{RATE}))"


def rate(counter: str, by: str, labels: str = ALL, shown: str = "") -> Query:
    return Query(per_second(counter, by, labels), shown or legend(by))


def now(aggregation: str, gauge: str, by: str, labels: str, more: str = "") -> Query:
    return Query(f"{aggregation} by ({by}) ({gauge}{labels})", legend(by, more))


def quantile(share: float, histogram: str, by: str = "", labels: str = ALL) -> str:
    buckets = per_second(f"{histogram}_bucket", f"le, {by}" if by else "le", labels)
    return f"histogram_quantile({share:g}, {buckets})"


def p95(histogram: str, by: str, labels: str = ALL, shown: str = "") -> Query:
    return Query(quantile(0.95, histogram, by, labels), shown or legend(by))


def panel(title: str, unit: str, description: str, *queries: Query) -> Panel:
    return Panel(title, unit, description, queries)


ROWS = {
    "At a glance": (
        panel(
            "Error ratio", "percentunit", "The part of operations that raised.",
            Query(f"({total(FAILED)} or 0 * {total(OPERATION)}) / ({total(OPERATION)} > 0)",
                  "errors"),
        ),
        panel(
            "Duration (p99)", "s", "How long all but one in a hundred operations take.",
            Query(quantile(0.99, OPERATIONS, labels=OPERATION), "p99", True),
        ),
        panel(
            "Retries per operation", "short", "0 where nothing is repeated.",
            Query(
                per_second(RETRIES, "db_operation_name", SCHEDULED)
                + " / " + per_second(f"{OPERATIONS}_count", "db_operation_name"),
                legend("db_operation_name"),
            ),
        ),
    ),
    "Operations": (
        panel(
            "Operations", "ops", "Operations of the public API, their retries included.",
            rate(f"{OPERATIONS}_count", "db_operation_name", OPERATION),
        ),
        panel(
            "Duration", "s",
            "How long operations take, their retries included. Points are exemplars: they lead to "
            "traces.",
            *(Query(quantile(share, OPERATIONS, labels=OPERATION), f"p{share * 100:g}", True)
              for share in (0.5, 0.95, 0.99)),
        ),
        panel(
            "Errors", "ops",
            "What raised, by the server's name of the code, else by the exception's class.",
            rate(f"{OPERATIONS}_count", "error_type", FAILED),
        ),
        panel(
            "Duration by collection (p95)", "s",
            "Of each database, where durations have no attribute for the collection.",
            p95(OPERATIONS, "db_namespace, db_collection_name", OPERATION,
                "{{db_namespace}}.{{db_collection_name}}"),
        ),
    ),
    "Retries": (
        panel(
            "Retries by reason", "ops",
            "Failed attempts that were repeated. Of connections that were given up on purpose: "
            "dead_peer, interrupted and attempt_timeout.",
            rate(RETRIES, "pymongo_resilience_reason", SCHEDULED),
        ),
        panel(
            "Declined by rule", "ops",
            "Failed attempts that were final, by the rule that declined to repeat them.",
            rate(RETRIES, "pymongo_resilience_decision, pymongo_resilience_reason", DECLINED,
                 "{{pymongo_resilience_decision}}: {{pymongo_resilience_reason}}"),
        ),
        panel(
            "Outcomes", "ops",
            "How operations ended; ok and retried_ok are the good ways. " + ONLY_ALL,
            rate("pymongo_resilience_attempts_count", "pymongo_resilience_outcome"),
        ),
        panel(
            "Back-off (p95)", "s", "Delay before an attempt is repeated.",
            p95("pymongo_resilience_backoff_seconds", "pymongo_resilience_reason"),
        ),
        panel(
            "Retry budget", "short",
            "Tokens that a client's retry budget has left, the least of all processes.",
            Query(
                "min by (pymongo_resilience_client) (pymongo_resilience_retry_budget_tokens"
                + of('pymongo_resilience_client=~"$client"') + ")",
                "client {{pymongo_resilience_client}}",
            ),
        ),
    ),
    "Servers": (
        panel(
            "Server states", "short", "How many clients see a server as what.",
            now("sum", "pymongo_resilience_server_state",
                f"{BY_SERVER}, pymongo_resilience_server_type", SERVER),
        ),
        panel(
            "Circuit breakers", "short",
            "How many processes have the breaker of a server in which state.",
            now("sum", "pymongo_resilience_circuit_breaker_state",
                f"{BY_SERVER}, pymongo_resilience_state", SERVER),
        ),
        panel(
            "Round-trip time", "s", "Weighted average, and the minimum of the last ten.",
            now("max", "pymongo_resilience_server_rtt_seconds", BY_SERVER, SERVER),
            now("min", "pymongo_resilience_server_rtt_min_seconds", BY_SERVER, SERVER, " minimum"),
        ),
        panel(
            "Heartbeats (p95)", "s", "Of the monitors' hellos that ask for an answer at once.",
            p95("pymongo_resilience_heartbeat_duration_seconds", BY_SERVER,
                of('server_address=~"$server"', 'pymongo_resilience_awaited="false"')),
        ),
        panel(
            "Failed heartbeats", "ops", "Hellos of a monitor that failed.",
            rate("pymongo_resilience_heartbeat_failures_total", BY_SERVER, SERVER),
        ),
        panel(
            "Server selection (p95)", "s",
            "How long operations wait for a server that suits them.",
            p95("pymongo_resilience_server_selection_duration_seconds",
                "db_operation_name, pymongo_resilience_outcome"),
        ),
    ),
    "Pools": (
        panel(
            "Connections", "short",
            "Of all pools of that name; what is being opened counts as used.",
            now("sum", "db_client_connection_count", f"{BY_POOL}, db_client_connection_state",
                POOL),
            now("sum", "db_client_connection_max", BY_POOL, POOL, " at most"),
        ),
        panel(
            "Waiting for a connection", "short",
            "Operations that have asked the pool for a connection and do not have it yet.",
            now("sum", "db_client_connection_pending_requests", BY_POOL, POOL),
        ),
        panel(
            "Timeouts", "ops", "Waits for a connection that ended without one.",
            rate("db_client_connection_timeouts_total", BY_POOL, POOL),
        ),
        panel(
            "Wait time (p95)", "s", "Until the pool gave a connection. " + ONLY_ALL,
            p95("db_client_connection_wait_time_seconds", BY_POOL, POOL),
        ),
        panel(
            "Use time (p95)", "s", "From taking a connection to giving it back. " + ONLY_ALL,
            p95("db_client_connection_use_time_seconds", BY_POOL, POOL),
        ),
        panel(
            "Create time (p95)", "s", "TCP, TLS, hello and authentication.",
            p95("db_client_connection_create_time_seconds", BY_POOL, POOL),
        ),
    ),
    "Overload": (
        panel(
            "Rejected as overloaded", "ops",
            "Attempts that were rejected, and those of them, and of connections for minPoolSize, "
            "whose new connection was.",
            Query(f"sum(rate({RETRIES}{OVERLOADED}{RATE}))", "attempts"),
            Query(f"sum(rate({REJECTED}{POOL}{RATE}))", "handshakes"),
        ),
        panel(
            "Balance of retry budgets", "short",
            "Tokens that clients have left, on average, and the least. At 0 no retry after a "
            "rejection is made; successes fill it.",
            Query("avg(pymongo_resilience_retry_budget_tokens"
                  + of('pymongo_resilience_client=~"$client"') + ")", "average"),
            Query("min(pymongo_resilience_retry_budget_tokens"
                  + of('pymongo_resilience_client=~"$client"') + ")", "least"),
        ),
        panel(
            "Overloaded or gone", "short",
            "Rejections per second of servers that are up: take load away. Clients that see a "
            "server as Unknown, and failed heartbeats per second: it is gone, look at the server "
            "and the network.",
            Query(f"sum(rate({RETRIES}{OVERLOADED}{RATE}))", "overloaded: rejections"),
            Query("sum(pymongo_resilience_server_state"
                  + of('server_address=~"$server"', 'pymongo_resilience_server_type="Unknown"')
                  + ")", "gone: clients that see it as Unknown"),
            Query(f"sum(rate(pymongo_resilience_heartbeat_failures_total{SERVER}{RATE}))",
                  "gone: failed heartbeats"),
        ),
    ),
}  # fmt: skip
