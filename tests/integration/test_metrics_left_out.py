"""``disabled_metrics``: an instrument that is left out is neither made nor recorded."""

from __future__ import annotations

from typing import Any

import pymongo
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from pymongo_resilience_instrumentation.clients.client_registry import Clients
from pymongo_resilience_instrumentation.telemetry.metrics.server_gauges import server_gauges
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import Side, fail_command
from support.metrics_table import metrics_table
from support.telemetry import Instrument, Telemetry

from pymongo_resilience.options.metric_names import METRICS, OF_EACH_OPERATION

COUNT = "db.client.connection.count"
DURATION = "db.client.operation.duration"
RECORDED = {DURATION, *OF_EACH_OPERATION}


def _measured(telemetry: Telemetry) -> set[str]:
    data: Any = telemetry.reader.get_metrics_data()
    return {
        metric.name
        for resource in (() if data is None else data.resource_metrics)
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_the_names_are_those_of_the_document() -> None:
    assert {*METRICS} == {*metrics_table()}


def _operate(side: Side, server: EmbeddedServer, control: pymongo.MongoClient[Any], db: str) -> Any:
    client = side.do(side.client, server.uri, adaptiveRetries=True)
    side.do(client[db].coll.insert_one, {})
    with fail_command(control, "find", errorCode=11600, times=1):
        side.do(client[db].coll.find_one)
    return client


@pytest.mark.parametrize("without", [*((name,) for name in sorted(RECORDED)), (), METRICS])
def test_what_is_left_out_is_not_measured(
    side: Side, server: EmbeddedServer, control: pymongo.MongoClient[Any], database: str,
    instrument: Instrument, without: tuple[str, ...],
) -> None:  # fmt: skip
    telemetry = instrument(timeout_ms=20_000, metrics="all", disabled_metrics=without)
    client = _operate(side, server, control, database)
    measured = _measured(telemetry)
    assert not measured & {*without}
    if without == METRICS:
        assert measured == set()
    else:
        assert measured >= (RECORDED | {COUNT, "pymongo_resilience.retries"}) - {*without}
        states = {attributes["db.client.connection.state"]: point.value
                  for attributes, point in telemetry.points(COUNT)}  # fmt: skip
        assert states == {"idle": 1, "used": 0}
    assert len(telemetry.operations(f"find {database}.coll")) == 1
    side.do(client.close)


@pytest.mark.parametrize(("metrics", "measured"), [(True, {DURATION}), ("all", RECORDED)])
def test_a_healthy_operation_is_one_record_of_the_standard_set(
    metrics: Any, measured: set[str],
    side: Side, server: EmbeddedServer, database: str, instrument: Instrument,
) -> None:  # fmt: skip
    telemetry = instrument(metrics=metrics)
    client = side.do(side.client, server.uri)
    side.do(client[database].coll.find_one)

    def counts() -> dict[str, int]:
        return {
            name: sum(point.count for _, point in points)
            for name in METRICS
            if (points := telemetry.points(name)) and hasattr(points[0][1], "bucket_counts")
        }

    before = counts()
    side.do(client[database].coll.find_one)
    # Heartbeats are recorded by monitors, whatever operations do.
    grown = {name for name, count in counts().items() if count > before.get(name, 0)}
    assert grown - {"pymongo_resilience.heartbeat.duration"} == measured
    assert telemetry.points(COUNT)
    side.do(client.close)


def test_a_gauge_comes_and_goes_with_what_is_said_of_it() -> None:
    """The SDK keeps an instrument for good, so each ``instrument()`` says anew what is shown."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    meter = provider.get_meter("test")
    clients = Clients()
    client = type("Client", (), {"options": None, "_topology": None})()
    state = clients.add(client)
    state.server(("a", 1)).pool.created(1)

    def shown() -> bool:
        data: Any = reader.get_metrics_data()
        return data is not None and any(
            metric.name == COUNT and list(metric.data.data_points)
            for metric in data.resource_metrics[0].scope_metrics[0].metrics
        )

    others = [name for name in METRICS if name != COUNT]
    for without in (METRICS, others, METRICS, others):
        gauges = server_gauges(meter, provider, without)
        gauges.show(clients, None, without)
        assert shown() == (COUNT not in without)
        gauges.show(None)
        assert not shown()
