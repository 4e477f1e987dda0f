"""What nobody wants is not made, and whoever wants it, however late, gets all of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from pymongo.cursor import CursorType
from support.clients import SentCommands, Side, wait_until
from support.telemetry import Instrument

import pymongo_resilience
from pymongo_resilience import Config
from pymongo_resilience.testbed import ReplicaSet


class Never(Sampler):
    """Samples nothing, and keeps the names that it was asked about."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def should_sample(
        self, parent_context: Any, trace_id: int, name: str, *_: Any, **__: Any
    ) -> Any:
        self.asked.append(name)
        return SamplingResult(Decision.DROP)

    def get_description(self) -> str:
        return "never"


@pytest.mark.parametrize("mode", ["always", "on_retry"])
def test_no_command_is_shown_below_an_operation_that_is_not_sampled(
    mode: str, side: Side, proxy: ReplicaSet, database: str
) -> None:
    sampler = Never()
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    pymongo_resilience.instrument(Config(command_spans=mode), tracer_provider=provider)
    try:
        client = side.do(side.client, proxy.uri)
        side.do(client[database].coll.find_one)
    finally:
        pymongo_resilience.uninstrument()
    assert sampler.asked == [f"find {database}.coll"]


@pytest.mark.parametrize("strategy", ["fast_fail", "driver"])
def test_durations_know_their_server_without_spans(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument, strategy: str
) -> None:
    """Also those of a cursor that keeps its connection, whose batches do not enter the loop."""
    telemetry = instrument(traces=False, config_strategy=strategy)
    client = side.do(side.client, proxy.uri)
    # Where pymongo's own loop decides, nothing but an event tells which server it was.
    assert bool(client._event_listeners.enabled_for_commands) == (strategy == "driver")
    coll = client[database].coll
    side.do(coll.insert_many, [{"n": n} for n in range(5)])
    cursor = coll.find({}, batch_size=2, cursor_type=CursorType.EXHAUST)
    assert len(side.documents(cursor)) == 5
    assert telemetry.spans() == []
    durations = telemetry.points("db.client.operation.duration")
    assert {each["db.operation.name"] for each, _ in durations} >= {"insert", "find", "getMore"}
    of_the_server = dict(zip(("server.address", "server.port"), proxy.address, strict=True))
    for attributes, _ in durations:
        assert attributes.items() >= of_the_server.items(), attributes


def publishes(client: Any) -> bool:
    """Whether pymongo builds the events of the client's commands."""
    return bool(client._event_listeners.enabled_for_commands)


@pytest.fixture
def late_sdk(monkeypatch: pytest.MonkeyPatch) -> Callable[[], InMemorySpanExporter]:
    """Sets up an SDK for spans, as an application does, but for one test."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def set_up() -> InMemorySpanExporter:
        # trace.set_tracer_provider() cannot be undone.
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
        return exporter

    return set_up


@pytest.fixture
def no_sdk() -> Any:
    """Instruments the process without a provider."""
    yield pymongo_resilience.instrument
    pymongo_resilience.uninstrument()


@pytest.mark.parametrize("mode", ["on_retry", "always"])
def test_commands_are_published_once_an_sdk_is_there(
    mode: str, side: Side, proxy: ReplicaSet, database: str, no_sdk: Any,
    late_sdk: Callable[[], InMemorySpanExporter],
) -> None:  # fmt: skip
    """Also by a client that was made before, whose own listeners hear of everything meanwhile."""
    sent = SentCommands()
    no_sdk(Config(command_spans=mode))
    client = side.do(side.client, proxy.uri)
    listening = side.do(side.client, proxy.uri, event_listeners=[sent])
    find = [partial(side.do, each[database].coll.find_one) for each in (client, listening)]
    for each in find:
        each()
    assert (publishes(client), publishes(listening)) == (False, True)
    options = client.options, listening.options
    shown = repr(client), [each.event_listeners for each in options]

    exporter = late_sdk()
    # Looking for an SDK takes time, so the library does not do it for every operation.
    wait_until(lambda: side.do(client[database].coll.find_one) or publishes(client))
    exporter.clear()
    for each in find:
        each()
    spans = exporter.get_finished_spans()
    assert len([span for span in spans if span.name == f"find {database}.coll"]) == 2
    named = [span for span in spans if span.attributes.get("db.command.name") == "find"]
    assert len(named) == 2
    assert shown == (repr(client), [each.event_listeners for each in options])
    assert len(sent.named("find")) == 2
    new = side.do(side.client, proxy.uri)
    side.do(new[database].coll.find_one)
    assert publishes(new)

    pymongo_resilience.uninstrument()
    assert [publishes(each) for each in (client, new, listening)] == [False, False, True]


@pytest.mark.parametrize("strategy", ["fast_fail", "driver"])
def test_an_sdk_for_metrics_alone_reads_no_events(
    strategy: str, side: Side, proxy: ReplicaSet, database: str, no_sdk: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Unless they alone show which server pymongo's own retry loop went to."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    no_sdk(Config(strategy=strategy), meter_provider=provider)
    client = side.do(side.client, proxy.uri)
    side.do(client[database].coll.find_one)
    assert publishes(client) == (strategy == "driver")
    data = reader.get_metrics_data()
    assert data is not None
    (duration,) = [
        point
        for each in data.resource_metrics[0].scope_metrics[0].metrics
        if each.name == "db.client.operation.duration"
        for point in each.data.data_points
        if dict(point.attributes or {})["db.operation.name"] == "find"
    ]
    assert dict(duration.attributes)["server.port"] == proxy.address[1]


def test_a_slow_operation_names_its_server_without_an_sdk(
    side: Side, proxy: ReplicaSet, database: str, no_sdk: Any, caplog: pytest.LogCaptureFixture
) -> None:
    no_sdk(Config(strategy="driver", slow_ms=0))
    client = side.do(side.client, proxy.uri)
    side.do(client[database].coll.find_one)
    (line,) = [each.getMessage() for each in caplog.records if each.name.endswith(".slow")]
    assert f" on {proxy.address[0]}:{proxy.address[1]} " in line
