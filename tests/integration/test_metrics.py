"""Metric points compared whole: what an operation did, and the state of servers and pools."""

from __future__ import annotations

from typing import Any

import pymongo
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pymongo_resilience_instrumentation.tools.testbed import CutAfter, CutAtHandshake
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import Side, wait_until
from support.telemetry import Instrument, Telemetry

import pymongo_resilience
from pymongo_resilience import Config
from pymongo_resilience.testbed import ReplicaSet
from pymongo_resilience.testing import RecordingListener


def test_the_duration_of_every_operation_is_recorded_once(
    side: Side, server: EmbeddedServer, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    client = side.do(side.client, server.uri)
    coll = client[database].coll
    side.do(coll.insert_one, {"_id": 1})
    for _ in range(3):
        side.do(coll.find_one)
    with pytest.raises(pymongo.errors.DuplicateKeyError):
        side.do(coll.insert_one, {"_id": 1})
    side.do(client[database].command, "ping")
    common = {
        "db.system.name": "mongodb",
        "db.namespace": database,
        "server.address": "127.0.0.1",
        "server.port": server.address[1],
    }
    points = {
        (attributes["db.operation.name"], attributes.get("error.type")): (attributes, point)
        for attributes, point in telemetry.points("db.client.operation.duration")
    }
    insert = common | {"db.operation.name": "insert", "db.collection.name": "coll"}
    failed = ("insert", "pymongo.errors.DuplicateKeyError")
    assert {key: attributes for key, (attributes, _) in points.items()} == {
        ("insert", None): insert,
        failed: insert | {"error.type": failed[1]},
        ("find", None): common | {"db.operation.name": "find", "db.collection.name": "coll"},
        ("runCommand", None): common | {"db.operation.name": "runCommand"},
    }
    assert {key: point.count for key, (_, point) in points.items()} == {
        ("insert", None): 1,
        failed: 1,
        ("find", None): 3,
        ("runCommand", None): 1,
    }
    boundaries = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)
    assert all(point.explicit_bounds == boundaries for _, point in points.values())
    assert all(0 < point.sum < 5 for _, point in points.values())


def test_retries_and_attempts_are_counted_by_reason_and_outcome(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000, metrics="all")
    coll = side.do(side.client, proxy.uri)[database].coll
    side.do(coll.insert_one, {"_id": 0})
    proxy.inject(CutAfter("insert", times=2))
    side.do(coll.insert_one, {"_id": 1})
    proxy.inject(CutAfter("update", times=1))
    with pytest.raises(pymongo.errors.AutoReconnect):
        side.do(coll.update_many, {}, {"$inc": {"n": 1}})
    ((attributes, delays),) = telemetry.points("pymongo_resilience.backoff")
    assert attributes == {"pymongo_resilience.reason": "socket_closed_while_in_flight"}
    assert delays.count == 2
    assert delays.sum == pytest.approx(
        sum(getattr(event, "delay", 0) for event in telemetry.decisions.events)
    )
    retries = {
        (
            attributes["db.operation.name"],
            attributes["pymongo_resilience.reason"],
            attributes["pymongo_resilience.decision"],
        ): point.value
        for attributes, point in telemetry.points("pymongo_resilience.retries")
    }
    assert retries == {
        ("insert", "socket_closed_while_in_flight", "scheduled"): 2,
        ("update", "socket_closed_while_in_flight", "not_safe"): 1,
    }
    attempts = {
        (attributes["db.operation.name"], attributes["pymongo_resilience.outcome"]): (
            point.count,
            point.sum,
        )
        for attributes, point in telemetry.points("pymongo_resilience.attempts")
    }
    assert attempts == {
        ("insert", "ok"): (1, 1),
        ("insert", "retried_ok"): (1, 3),
        ("update", "not_retryable"): (1, 1),
    }


def test_the_server_of_an_attempt_that_came_to_send_nothing_is_told(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(base_backoff_ms=1)
    coll = side.do(side.client, proxy.uri)[database].coll
    proxy.inject(CutAtHandshake(times=1000))
    with pytest.raises(pymongo.errors.AutoReconnect):
        side.do(coll.insert_one, {})
    ((attributes, _),) = telemetry.points("db.client.operation.duration")
    address = attributes["server.address"], attributes["server.port"]
    assert address == proxy.members[0].address
    proxy.clear()


def test_a_command_that_enters_without_a_wrapper_is_not_named_as_the_application_named_it(
    side: Side, server: EmbeddedServer, database: str, instrument: Instrument
) -> None:
    """Of a method that was bound before ``instrument()`` only the driver's loop is seen."""
    bound = side.do(side.client, server.uri)[database].command
    telemetry = instrument()
    with pytest.raises(pymongo.errors.OperationFailure):
        side.do(bound, "anything at all")
    ((attributes, _),) = telemetry.points("pymongo_resilience.retries")
    assert attributes["db.operation.name"] == "runCommand"
    assert [event.operation for event in telemetry.decisions.events] == ["runCommand"]


@pytest.mark.parametrize("mode", ["stream", "poll"])
def test_servers_have_a_state_and_a_round_trip_time(
    mode: str, side: Side, server: EmbeddedServer, database: str, instrument: Instrument
) -> None:
    """All heartbeats but the first are awaited while they stream, and no round trips."""
    telemetry = instrument()
    client = side.do(side.client, server.uri, serverMonitoringMode=mode)
    address = {"server.address": "127.0.0.1", "server.port": server.address[1]}

    def primary() -> bool:
        side.do(client[database].coll.find_one)
        return [
            attributes for attributes, _ in telemetry.points("pymongo_resilience.server.state")
        ] == [
            address
            | {
                "pymongo_resilience.server.type": "RSPrimary",
                "pymongo_resilience.topology.type": "ReplicaSetWithPrimary",
            }
        ]

    wait_until(primary)

    def minimum_known() -> list[Any]:
        side.do(client[database].coll.find_one)
        return telemetry.points("pymongo_resilience.server.rtt.min")

    ((_, minimum),) = wait_until(minimum_known)
    ((attributes, average),) = telemetry.points("pymongo_resilience.server.rtt")
    assert attributes == address
    assert 0 < minimum.value <= average.value < 1


def test_a_later_instrument_shows_its_clients_through_the_same_provider(
    side: Side, server: EmbeddedServer, database: str
) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)

    telemetry = Telemetry(InMemorySpanExporter(), reader, RecordingListener())
    for _ in range(3):
        assert telemetry.points("pymongo_resilience.server.state") == []
        pymongo_resilience.instrument(Config(traces=False), meter_provider=provider)
        try:
            client = side.do(side.client, server.uri)
            side.do(client[database].coll.find_one)
            assert len(telemetry.points("pymongo_resilience.server.state")) == 1
        finally:
            pymongo_resilience.uninstrument()


def test_durations_by_database_and_awaited_heartbeats_are_told_apart(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(metrics="by_database")
    client = side.do(side.client, proxy.uri, serverMonitoringMode="stream")
    for name in ("one", "two"):
        side.do(client[database][name].find_one)
    ((attributes, point),) = telemetry.points("db.client.operation.duration")
    assert "db.collection.name" not in attributes
    assert point.count == 2

    def kinds() -> set[bool]:
        points = telemetry.points("pymongo_resilience.heartbeat.duration")
        return {attributes["pymongo_resilience.awaited"] for attributes, _ in points}

    side.wait_until(lambda: kinds() == {True, False})
