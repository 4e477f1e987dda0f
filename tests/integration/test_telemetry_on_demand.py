"""What nobody wants is not made, and whoever wants it, however late, gets all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pymongo
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, Sampler
from pymongo.cursor import CursorType
from pymongo.monitoring import CommandListener, ConnectionPoolListener
from pymongo_resilience_instrumentation.telemetry import listeners
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.child_programs import run
from support.clients import Side
from support.telemetry import Instrument, Telemetry

import pymongo_resilience
from pymongo_resilience import Config
from pymongo_resilience.testbed import ReplicaSet

OWN = ("server_connection_id", "driver_connection_id", "lsid", "cursor_id")


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


class Heard(CommandListener, ConnectionPoolListener):
    """The application's own listener: the names of the events that it was told."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name in dir(CommandListener) + dir(ConnectionPoolListener) and name[0] != "_":
            return lambda event: self.events.append(type(event).__name__)
        return super().__getattribute__(name)


def _shown(telemetry: Telemetry) -> list[tuple[str, dict[str, Any]]]:
    """Names and attributes of the spans, without what each client has of its own."""
    return [
        (
            span.name,
            {
                name: "known" if name.endswith(OWN) else value
                for name, value in (span.attributes or {}).items()
            },
        )
        for span in telemetry.spans()
    ]


def test_the_same_is_shown_with_and_without_a_listener_of_the_application(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry, heard = instrument(metrics="all"), Heard()
    shown, used = [], []

    def uses() -> int:
        points = telemetry.points("db.client.connection.use_time")
        return int(sum(point.count for _, point in points))

    for own in ([], [heard]):
        client = side.do(side.client, proxy.uri, event_listeners=own)
        coll = client[database].coll
        side.do(coll.insert_many, [{"n": n} for n in range(3)])
        telemetry.clear()
        before = uses()
        side.do(coll.update_one, {"n": 1}, {"$set": {"m": 1}})
        side.documents(coll.find({}, batch_size=2))
        with pytest.raises(pymongo.errors.OperationFailure):
            side.do(coll.find_one, {"$no": 1})
        shown.append(_shown(telemetry))
        used.append(uses() - before)
        side.do(client.drop_database, database)
        side.do(client.close)
    assert shown[0] == shown[1]
    assert [name for name, _ in shown[0]][:3] == ["update", f"update {database}.coll", "find"]
    assert used == [4, 4]
    assert heard.events.count("CommandStartedEvent") == heard.events.count(
        "CommandSucceededEvent"
    ) + heard.events.count("CommandFailedEvent")
    assert {"ConnectionCheckedOutEvent", "ConnectionCheckedInEvent"} <= {*heard.events}


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
