"""The rows of the dashboard, with their panels and queries.

Every query uses the variables ``$job`` and ``$instance``, by which Prometheus distinguishes
processes, and may use ``$client``, ``$server`` and ``$namespace``.
"""

from __future__ import annotations

from typing import NamedTuple

RATE = "[$__rate_interval]"


class Query(NamedTuple):
    """One line in a chart, or one line for each combination of labels."""

    expression: str
    legend: str
    exemplars: bool = False
    """Whether its points link to traces."""


class Panel(NamedTuple):
    """A chart over time."""

    title: str
    unit: str
    """Grafana's name of the unit."""
    description: str
    queries: tuple[Query, ...]


def of(*matchers: str) -> str:
    """Return a selector for the series of the chosen processes with these labels."""
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
    """Return the values of the labels that a query is grouped by, followed by ``more``."""
    values = " ".join(f"{{{{{each}}}}}" for each in by.split(", "))
    return values.replace("address}} {{server", "address}}:{{server") + more


def per_second(counter: str, by: str, labels: str = ALL) -> str:
    return f"sum by ({by}) (rate({counter}{labels}{RATE}))"


def total(labels: str) -> str:
    """Return a query for all operations per second."""
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
            "Error ratio", "percentunit", "Share of operations that raised an error.",
            Query(f"({total(FAILED)} or 0 * {total(OPERATION)}) / ({total(OPERATION)} > 0)",
                  "errors"),
        ),
        panel(
            "Duration (p99)", "s", "99 % of operations are faster than this.",
            Query(quantile(0.99, OPERATIONS, labels=OPERATION), "p99", True),
        ),
        panel(
            "Retries per operation", "short", "0 if nothing is retried.",
            Query(
                per_second(RETRIES, "db_operation_name", SCHEDULED)
                + " / " + per_second(f"{OPERATIONS}_count", "db_operation_name"),
                legend("db_operation_name"),
            ),
        ),
    ),
    "Operations": (
        panel(
            "Operations", "ops",
            "Operations of the public API. An operation with retries counts once.",
            rate(f"{OPERATIONS}_count", "db_operation_name", OPERATION),
        ),
        panel(
            "Duration", "s",
            "Duration of operations, including retries. The points are exemplars, which link to "
            "traces.",
            *(Query(quantile(share, OPERATIONS, labels=OPERATION), f"p{share * 100:g}", True)
              for share in (0.5, 0.95, 0.99)),
        ),
        panel(
            "Errors", "ops",
            "Failed operations by the server's name of the error code, or by exception class.",
            rate(f"{OPERATIONS}_count", "error_type", FAILED),
        ),
        panel(
            "Duration by collection (p95)", "s",
            "Grouped by database only, if PYMONGO_RESILIENCE_METRICS=by_database.",
            p95(OPERATIONS, "db_namespace, db_collection_name", OPERATION,
                "{{db_namespace}}.{{db_collection_name}}"),
        ),
    ),
    "Retries": (
        panel(
            "Retries by reason", "ops",
            "Failed attempts that were retried. For dead_peer, interrupted and attempt_timeout, "
            "the library itself closed the connection.",
            rate(RETRIES, "pymongo_resilience_reason", SCHEDULED),
        ),
        panel(
            "Declined by rule", "ops",
            "Failed attempts that were not retried, by the rule that declined.",
            rate(RETRIES, "pymongo_resilience_decision, pymongo_resilience_reason", DECLINED,
                 "{{pymongo_resilience_decision}}: {{pymongo_resilience_reason}}"),
        ),
        panel(
            "Outcomes", "ops",
            "How operations ended. ok and retried_ok are successes. " + ONLY_ALL,
            rate("pymongo_resilience_attempts_count", "pymongo_resilience_outcome"),
        ),
        panel(
            "Back-off (p95)", "s", "Delay before a retry.",
            p95("pymongo_resilience_backoff_seconds", "pymongo_resilience_reason"),
        ),
        panel(
            "Retry budget", "short",
            "Tokens left in a client's retry budget: the minimum of all processes.",
            Query(
                "min by (pymongo_resilience_client) (pymongo_resilience_retry_budget_tokens"
                + of('pymongo_resilience_client=~"$client"') + ")",
                "client {{pymongo_resilience_client}}",
            ),
        ),
    ),
    "Servers": (
        panel(
            "Server states", "short", "Number of clients that see a server in each state.",
            now("sum", "pymongo_resilience_server_state",
                f"{BY_SERVER}, pymongo_resilience_server_type", SERVER),
        ),
        panel(
            "Circuit breakers", "short",
            "Number of processes in which a server's breaker is in each state.",
            now("sum", "pymongo_resilience_circuit_breaker_state",
                f"{BY_SERVER}, pymongo_resilience_state", SERVER),
        ),
        panel(
            "Round-trip time", "s", "Weighted average, and minimum of the last ten.",
            now("max", "pymongo_resilience_server_rtt_seconds", BY_SERVER, SERVER),
            now("min", "pymongo_resilience_server_rtt_min_seconds", BY_SERVER, SERVER, " minimum"),
        ),
        panel(
            "Heartbeats (p95)", "s",
            "Duration of the monitors' hellos that are answered immediately, without streaming.",
            p95("pymongo_resilience_heartbeat_duration_seconds", BY_SERVER,
                of('server_address=~"$server"', 'pymongo_resilience_awaited="false"')),
        ),
        panel(
            "Failed heartbeats", "ops", "Failed hellos of the monitors.",
            rate("pymongo_resilience_heartbeat_failures_total", BY_SERVER, SERVER),
        ),
        panel(
            "Server selection (p95)", "s",
            "How long operations wait for a suitable server.",
            p95("pymongo_resilience_server_selection_duration_seconds",
                "db_operation_name, pymongo_resilience_outcome"),
        ),
    ),
    "Pools": (
        panel(
            "Connections", "short",
            "Connections of all pools with the same name. Connections that are being opened count "
            "as used.",
            now("sum", "db_client_connection_count", f"{BY_POOL}, db_client_connection_state",
                POOL),
            now("sum", "db_client_connection_max", BY_POOL, POOL, " at most"),
        ),
        panel(
            "Waiting for a connection", "short",
            "Operations that are waiting for a connection from the pool.",
            now("sum", "db_client_connection_pending_requests", BY_POOL, POOL),
        ),
        panel(
            "Timeouts", "ops", "Timed-out waits for a connection.",
            rate("db_client_connection_timeouts_total", BY_POOL, POOL),
        ),
        panel(
            "Wait time (p95)", "s", "Time until the pool provided a connection. " + ONLY_ALL,
            p95("db_client_connection_wait_time_seconds", BY_POOL, POOL),
        ),
        panel(
            "Use time (p95)", "s", "Time for which connections are in use. " + ONLY_ALL,
            p95("db_client_connection_use_time_seconds", BY_POOL, POOL),
        ),
        panel(
            "Create time (p95)", "s",
            "Time to open a connection: TCP, TLS, hello and authentication.",
            p95("db_client_connection_create_time_seconds", BY_POOL, POOL),
        ),
    ),
    "Overload": (
        panel(
            "Rejected as overloaded", "ops",
            "attempts: all rejected attempts. handshakes: rejected new connections, whether for "
            "an operation or for minPoolSize.",
            Query(f"sum(rate({RETRIES}{OVERLOADED}{RATE}))", "attempts"),
            Query(f"sum(rate({REJECTED}{POOL}{RATE}))", "handshakes"),
        ),
        panel(
            "Balance of retry budgets", "short",
            "Tokens left in the clients' retry budgets: average and minimum. At 0, rejected "
            "operations are not retried until successes refill the budget.",
            Query("avg(pymongo_resilience_retry_budget_tokens"
                  + of('pymongo_resilience_client=~"$client"') + ")", "average"),
            Query("min(pymongo_resilience_retry_budget_tokens"
                  + of('pymongo_resilience_client=~"$client"') + ")", "least"),
        ),
        panel(
            "Overloaded or gone", "short",
            "Tells overload from an outage. Rejections mean that servers are up but overloaded: "
            "reduce the load. Servers in the state Unknown and failed heartbeats mean that servers "
            "are unreachable: check the servers and the network.",
            Query(f"sum(rate({RETRIES}{OVERLOADED}{RATE}))", "overloaded: rejections"),
            Query("sum(pymongo_resilience_server_state"
                  + of('server_address=~"$server"', 'pymongo_resilience_server_type="Unknown"')
                  + ")", "gone: clients that see it as Unknown"),
            Query(f"sum(rate(pymongo_resilience_heartbeat_failures_total{SERVER}{RATE}))",
                  "gone: failed heartbeats"),
        ),
    ),
}  # fmt: skip
