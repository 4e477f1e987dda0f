"""What panels and queries are made of.

Every query uses the dashboard's variables ``$job`` and ``$instance``, by which Prometheus
distinguishes processes, and may use ``$client``, ``$server`` and ``$namespace``.
"""

from __future__ import annotations

from dataclasses import dataclass

RATE = "[$__rate_interval]"


def of(*matchers: str) -> str:
    """The series of the chosen processes that have these labels."""
    return "{" + ", ".join(('job=~"$job"', 'instance=~"$instance"', *matchers)) + "}"


ALL = of()
OPERATION = of('db_namespace=~"$namespace"', 'server_address=~"$server"')
FAILED = of('db_namespace=~"$namespace"', 'server_address=~"$server"', 'error_type!=""')
SERVER = of('server_address=~"$server"')
POOL = of('db_client_connection_pool_name=~"($server)(:[0-9]+)?#($client)"')
OF_POOL = "db_client_connection_pool_name"
OF_SERVER = "server_address, server_port"
SERVER_LEGEND = "{{server_address}}:{{server_port}}"
POOL_LEGEND = "{{" + OF_POOL + "}}"
DURATION = "db_client_operation_duration_seconds"


@dataclass(frozen=True, slots=True)
class Query:
    """One line, or one for each combination of labels."""

    expression: str
    legend: str
    exemplars: bool = False
    """Whether its points may lead to traces."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart over time."""

    title: str
    unit: str
    """Grafana's name of it."""
    description: str
    queries: tuple[Query, ...]


def per_second(counter: str, by: str, labels: str = ALL) -> str:
    """The rate of a counter's increase."""
    return f"sum by ({by}) (rate({counter}{labels}{RATE}))"


def quantile(share: float, histogram: str, by: str = "", labels: str = ALL) -> str:
    """Of a histogram."""
    buckets = per_second(f"{histogram}_bucket", f"le, {by}" if by else "le", labels)
    return f"histogram_quantile({share:g}, {buckets})"


def slowest(
    title: str, histogram: str, by: str, legend: str, *, description: str, labels: str = ALL
) -> Panel:
    """The 95th percentile."""
    return Panel(title, "s", description, (Query(quantile(0.95, histogram, by, labels), legend),))
