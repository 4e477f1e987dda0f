"""What panels and queries are made of.

A query may use the dashboard's variables: ``$client``, ``$server`` and ``$namespace``.
"""

from __future__ import annotations

from dataclasses import dataclass

RATE = "[$__rate_interval]"
OPERATION = '{db_namespace=~"$namespace", server_address=~"$server"}'
FAILED = '{db_namespace=~"$namespace", server_address=~"$server", error_type!=""}'
SERVER = '{server_address=~"$server"}'
POOL = '{db_client_connection_pool_name=~"($server)(:[0-9]+)?#($client)"}'
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


def per_second(counter: str, by: str, labels: str = "") -> str:
    """The rate of a counter's increase."""
    return f"sum by ({by}) (rate({counter}{labels}{RATE}))"


def quantile(share: float, histogram: str, by: str = "", labels: str = "") -> str:
    """Of a histogram."""
    buckets = per_second(f"{histogram}_bucket", f"le, {by}" if by else "le", labels)
    return f"histogram_quantile({share:g}, {buckets})"


def slowest(
    title: str, histogram: str, by: str, legend: str, *, description: str, labels: str = ""
) -> Panel:
    """The 95th percentile."""
    return Panel(title, "s", description, (Query(quantile(0.95, histogram, by, labels), legend),))
