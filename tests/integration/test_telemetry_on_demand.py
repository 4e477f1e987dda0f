"""What nobody wants is not made, and whoever wants it, however late, gets all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, Sampler
from pymongo.cursor import CursorType
from pymongo_resilience_instrumentation.telemetry import listeners
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.child_programs import run
from support.clients import Side
from support.telemetry import Instrument

import pymongo_resilience
from pymongo_resilience import Config
from pymongo_resilience.testbed import ReplicaSet


@pytest.mark.parametrize("half", ["sync", "async"])
def test_an_sdk_that_comes_late_gets_everything_from_then_on(
    half: str, server: EmbeddedServer, database: str
) -> None:
    answer, _ = run("late_sdk", server.uri, database, half)
    name = f"find {database}.coll"
    assert answer == {
        "spans": [[name, None]] * 2,
        "durations": {str(server.address[1]): 2},
        "idle": {"idle": 1, "used": 0},
    }


Drawn = Callable[..., tuple[InMemorySpanExporter, list[str]]]


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Drawn]:
    """``sampled(sampler, **options)``: instruments; gives the spans, and all names asked
    for."""
    asked: list[str] = []

    def start(sampler: Sampler, **options: Any) -> tuple[InMemorySpanExporter, list[str]]:
        exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        ask = type(provider.get_tracer("test")).start_span

        def start_span(tracer: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            asked.append(name)
            return ask(tracer, name, *args, **kwargs)

        monkeypatch.setattr(type(provider.get_tracer("test")), "start_span", start_span)
        pymongo_resilience.instrument(Config(**options), tracer_provider=provider)
        return exporter, asked

    yield start
    pymongo_resilience.uninstrument()


@pytest.mark.parametrize("sampler", [ALWAYS_OFF, ParentBased(ALWAYS_OFF)])
@pytest.mark.parametrize("mode", ["always", "on_retry"])
def test_no_command_is_shown_below_an_operation_that_is_not_sampled(
    side: Side, proxy: ReplicaSet, database: str, sampled: Drawn, sampler: Sampler, mode: str
) -> None:
    exporter, asked = sampled(sampler, command_spans=mode)
    client = side.do(side.client, proxy.uri)
    side.do(client[database].coll.find_one)
    assert (exporter.get_finished_spans(), asked) == ((), [f"find {database}.coll"])


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


def test_a_fault_of_ours_in_a_listener_is_logged_once(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("broken")

    instrument(metrics=False)
    client = side.do(side.client, proxy.uri)
    monkeypatch.setattr(listeners, "SentCommand", broken)
    listeners.faulty.clear()
    for _ in range(3):
        assert side.do(client[database].coll.find_one) is None
    faults = [each for each in caplog.messages if "internal error" in each]
    assert faults == ["internal error in pymongo-resilience in Commands.started"]
