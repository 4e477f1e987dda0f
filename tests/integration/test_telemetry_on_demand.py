"""What nobody wants is not made, and whoever wants it, however late, gets all of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pymongo
import pymongo_resilience_instrumentation.driver.publishing as driver_events
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
)
from pymongo.cursor import CursorType
from pymongo.monitoring import CommandListener, ConnectionPoolListener
from pymongo_resilience_instrumentation.clients.pool_state import Pool
from pymongo_resilience_instrumentation.telemetry.commands.command_spans import CommandSpans
from pymongo_resilience_instrumentation.telemetry.sdk import spans as sdk_spans
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.child_programs import run
from support.clients import SentCommands, Side
from support.command_listeners import OnCommands
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
        "told": [False, False, True, True],
        "spans": [["find", name], [name, None]] * 2,
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

    for listeners in ([], [heard]):
        client = side.do(side.client, proxy.uri, event_listeners=listeners)
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


def test_another_pymongo_makes_its_events(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """One whose methods take something that is not known yet."""
    telemetry = instrument()
    monkeypatch.setattr(driver_events, "_is_as_known", lambda name: False)
    client = side.do(side.client, proxy.uri)
    assert not any(name.startswith("publish") for name in vars(client._event_listeners))
    side.do(client[database].coll.find_one)
    assert [span.name for span in telemetry.spans()] == ["find", f"find {database}.coll"]


@pytest.fixture
def record(side: Side, proxy: ReplicaSet, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of an SRV record that names the proxy."""

    def answer(result: Any) -> Callable[..., Any]:
        async def later(*_: Any) -> Any:
            return result

        return (lambda *_: result) if side.runner is None else later

    half = "synchronous" if side.runner is None else "asynchronous"
    resolver = f"pymongo.{half}.srv_resolver._SrvResolver"
    monkeypatch.setattr(f"{resolver}.get_hosts", answer([proxy.address]))
    monkeypatch.setattr(f"{resolver}.get_options", answer(None))
    return "mongodb+srv://shop.test.example/"


def test_a_client_of_an_srv_record_makes_no_events_once_it_is_connected(
    side: Side, record: str, database: str, instrument: Instrument
) -> None:
    """It makes its listeners anew with the options of the record. The first operation connects."""
    telemetry = instrument()
    client = side.do(side.client, record, tls=False, connect=False)
    told = []
    for _ in range(3):
        side.do(client[database].coll.find_one)
        told.append(any(name.startswith("publish") for name in vars(client._event_listeners)))
    assert told == [True, True, True]
    assert [span.name for span in telemetry.spans()] == ["find", f"find {database}.coll"] * 3


@pytest.mark.parametrize("given", [{}, {"event_listeners": [SentCommands()]}], ids=["none", "one"])
def test_a_client_of_an_srv_record_shows_only_the_applications_own_listeners(
    given: Any, side: Side, record: str, database: str, instrument: Instrument
) -> None:
    plain = side.do(side.client, record, tls=False, connect=False, **given)
    side.do(plain[database].coll.find_one)
    instrument(server_selection="least_loaded")
    client = side.do(side.client, record, tls=False, connect=False, **given)
    for _ in range(2):
        assert client.options.event_listeners == plain.options.event_listeners
        assert client.options.server_selector is plain.options.server_selector
        assert ("event_listeners" in repr(client)) is bool(given)
        assert "server_selector" not in repr(client)
        side.do(client[database].coll.find_one)


class OnlyCommands(Sampler):
    """Of the application: draws commands and no operations, whatever is around them."""

    def should_sample(
        self, parent_context: Any, trace_id: int, name: str, *_: Any, **__: Any
    ) -> SamplingResult:
        drawn = " " not in name
        return SamplingResult(Decision.RECORD_AND_SAMPLE if drawn else Decision.DROP)

    def get_description(self) -> str:
        return "AlwaysOffSampler"


Drawn = Callable[..., tuple[InMemorySpanExporter, list[str]]]


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Drawn]:
    """``sampled(sampler, **hooks)``: instruments; gives the spans, and the names of those that were
    asked for."""
    asked: list[str] = []
    assert sdk_spans.works()  # checked once, by spans of its own

    def start(
        sampler: Sampler, *, command_comment: bool = False, **hooks: Any
    ) -> tuple[InMemorySpanExporter, list[str]]:
        exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        ask = type(provider.get_tracer("test")).start_span

        def start_span(tracer: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            asked.append(name)
            return ask(tracer, name, *args, **kwargs)

        monkeypatch.setattr(type(provider.get_tracer("test")), "start_span", start_span)
        config = Config(command_comment=command_comment)
        pymongo_resilience.instrument(config, tracer_provider=provider, **hooks)
        return exporter, asked

    yield start
    pymongo_resilience.uninstrument()


def _names(spans: Sequence[ReadableSpan]) -> list[str]:
    return [span.name for span in spans]


@pytest.mark.parametrize(
    ("sampler", "operations"),
    [(ALWAYS_OFF, 0), (ParentBased(ALWAYS_OFF), 1), (ParentBased(OnlyCommands()), 1)],
    ids=["off", "parent, off", "parent, commands"],
)
def test_no_span_is_asked_for_below_one_that_the_sampler_dropped(
    side: Side, proxy: ReplicaSet, database: str, sampled: Drawn, sampler: Sampler,
    operations: int,
) -> None:  # fmt: skip
    exporter, asked = sampled(sampler)
    client = side.do(side.client, proxy.uri)
    side.do(client[database].coll.find_one)
    assert (_names(exporter.get_finished_spans()), asked) == (
        [],
        [f"find {database}.coll"] * operations,
    )


@pytest.mark.parametrize(
    ("sampler", "flags", "asked_for"),
    [
        (ParentBased(ALWAYS_ON), 0, 0),
        (ParentBased(ALWAYS_ON), 1, 1),
        (ParentBased(ALWAYS_ON, local_parent_not_sampled=ALWAYS_ON), 0, 1),
        (ALWAYS_ON, 0, 1),
    ],
)
def test_nothing_is_asked_for_in_a_trace_that_was_not_sampled(
    side: Side, proxy: ReplicaSet, database: str, sampled: Drawn, sampler: Sampler, flags: int,
    asked_for: int,
) -> None:  # fmt: skip
    exporter, asked = sampled(sampler)
    client = side.do(side.client, proxy.uri)
    above = trace.NonRecordingSpan(
        trace.SpanContext(17, 18, is_remote=False, trace_flags=trace.TraceFlags(flags))
    )

    def find() -> Any:
        with trace.use_span(above):
            found = client[database].coll.find_one()
            assert trace.get_current_span() is above
            return found

    async def async_find() -> Any:
        with trace.use_span(above):
            found = await client[database].coll.find_one()
            assert trace.get_current_span() is above
            return found

    side.do(find if side.runner is None else async_find)
    assert asked.count(f"find {database}.coll") == asked_for
    drawn = [span for span in exporter.get_finished_spans() if span.context.trace_id == 17]
    assert len(drawn) == 2 * asked_for


@pytest.mark.parametrize(
    ("sampler", "drawn", "of_the_command"),
    [
        (OnlyCommands(), ["find"], ["find"]),
        (ParentBased(ALWAYS_OFF, local_parent_not_sampled=ALWAYS_ON), ["find"], ["find"]),
        # What it would answer is known.
        (ParentBased(ALWAYS_ON), ["find", "find {}.coll"], []),
    ],
    ids=["commands", "parent or on", "parent, on"],
)
def test_a_sampler_that_may_draw_the_command_is_asked(
    side: Side, proxy: ReplicaSet, database: str, sampled: Drawn, sampler: Sampler,
    drawn: list[str], of_the_command: list[str],
) -> None:  # fmt: skip
    exporter, asked = sampled(sampler)
    client = side.do(side.client, proxy.uri)
    side.do(client[database].coll.find_one)
    names = [name.format(database) for name in drawn]
    assert (_names(exporter.get_finished_spans()), asked) == (
        names,
        [f"find {database}.coll", *of_the_command],
    )


def test_inside_of_an_operation_that_is_never_drawn_the_callers_span_is_the_current_one(
    side: Side, proxy: ReplicaSet, database: str, sampled: Drawn
) -> None:
    """Who draws with another provider inside, from a listener say, draws below it."""
    sampled(ALWAYS_OFF)
    inside: list[Any] = []
    listener = OnCommands(started=lambda _: inside.append(trace.get_current_span()))
    client = side.do(side.client, proxy.uri, event_listeners=[listener])
    with (
        TracerProvider(shutdown_on_exit=False)
        .get_tracer("test")
        .start_as_current_span("own") as own
    ):
        side.do(client[database].coll.find_one)
    assert inside == [own]


def test_a_comment_leads_to_the_trace_of_an_operation_that_is_never_drawn(
    side: Side, proxy: ReplicaSet, database: str, sampled: Drawn
) -> None:
    """The trace may be drawn elsewhere; that the span was not sampled stands at its end."""
    sampled(ALWAYS_OFF, command_comment=True)
    sent = SentCommands()
    client = side.do(side.client, proxy.uri, event_listeners=[sent])
    side.do(client[database].coll.find_one)
    (command,) = sent.named("find")
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[02]", command["comment"]["traceparent"])


def test_a_hook_sees_the_commands_that_are_not_drawn(
    side: Side, proxy: ReplicaSet, database: str, sampled: Drawn
) -> None:
    seen: list[tuple[str, bool]] = []
    sampled(
        ALWAYS_OFF,
        request_hook=lambda span, event: seen.append((event.command_name, span.is_recording())),
    )
    client = side.do(side.client, proxy.uri)
    side.do(client[database].coll.find_one)
    assert seen == [("find", False)]


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


def test_a_fault_of_ours_in_what_stands_in_for_an_event_is_logged_once(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("broken")

    instrument(metrics="all")
    client = side.do(side.client, proxy.uri)
    for owner, method in ((CommandSpans, "start"), (CommandSpans, "succeed"), (Pool, "checked_in")):
        monkeypatch.setattr(owner, method, broken)
    for _ in range(3):
        assert side.do(client[database].coll.find_one) is None
    faults = [each for each in caplog.messages if "internal error in pymongo-resilience" in each]
    assert sorted(faults) == [f"internal error in pymongo-resilience in {each}" for each in
                              ("Commands", "Pools")]  # fmt: skip
