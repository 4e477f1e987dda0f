"""A client that cannot be read while gauges are observed."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from pymongo.server_description import ServerDescription
from pymongo.topology_description import TopologyDescription
from pymongo_resilience_instrumentation.clients.client_registry import Clients
from pymongo_resilience_instrumentation.telemetry.server_gauges import ServerGauges

from pymongo_resilience.rules.budget import UNLIMITED

ADDRESS = ("db1.example", 27017)


class Client:
    """What the gauges read of a client that has one pool."""

    def __init__(self, description: Any) -> None:
        options = SimpleNamespace(max_pool_size=7, min_pool_size=0)
        pool = SimpleNamespace(closed=False, pid=os.getpid(), opts=options)
        server = SimpleNamespace(pool=pool)
        self.topology_description = description
        self._topology = SimpleNamespace(
            description=description, get_server_by_address=lambda _: server
        )


def test_a_client_that_cannot_be_read_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    reader = InMemoryMetricReader()
    gauges = ServerGauges(MeterProvider([reader], shutdown_on_exit=False).get_meter("test"))
    servers = {ADDRESS: ServerDescription(ADDRESS)}
    description = TopologyDescription(0, servers, None, None, None, None)  # type: ignore[arg-type]  # asked for types alone
    clients, made = Clients(), [Client(None), Client(description)]
    for client in made:
        clients.of(client).limits = SimpleNamespace(budget=UNLIMITED, breakers=None)
    gauges.show(clients)
    data = reader.get_metrics_data()
    assert data is not None
    (scope,) = data.resource_metrics[0].scope_metrics
    counts = {metric.name: len(metric.data.data_points) for metric in scope.metrics}
    assert counts["pymongo_resilience.server.state"] == 1
    assert counts["db.client.connection.max"] == 1
    assert "while looking for a client's pools" in caplog.text
    del made
