"""Others that draw spans of the same commands: nothing is drawn twice, and one warning says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pymongo
import pytest
from opentelemetry.instrumentation.pymongo import PymongoInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from pymongo import common
from pymongo_resilience_instrumentation.driver import clients
from pymongo_resilience_instrumentation.telemetry.client_tracing import ENABLED_VARIABLE
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import SentCommands, Side
from support.telemetry import Instrument, Telemetry

import pymongo_resilience


def _warnings(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.message for record in caplog.records)


@pytest.fixture
def telemetry(instrument: Instrument) -> Telemetry:
    return instrument()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove what a test registers for all clients, for which pymongo has no function."""
    listeners = pymongo.monitoring._LISTENERS
    kept = type(listeners)(*(list(each) for each in listeners))
    monkeypatch.setattr(pymongo.monitoring, "_LISTENERS", kept)


@pytest.mark.usefixtures("registry")
def test_listeners_of_all_clients_may_be_registered_before(
    side: Side, server: EmbeddedServer, database: str, instrument: Instrument
) -> None:
    sent = SentCommands()
    pymongo.monitoring.register(sent)
    # As in a process in which no client of the library existed before.
    clients._command_attributes.cache_clear()
    telemetry = instrument()
    client = side.client(server.uri)
    side.do(client[database].coll.find_one)
    find = f"find {database}.coll"
    assert _tree(telemetry) == [("find", find), (find, None)]
    assert len(sent.named("find")) == 1
    pymongo_resilience.uninstrument()
    telemetry.clear()
    side.do(client[database].coll.find_one)
    assert (len(sent.named("find")), telemetry.spans()) == (2, [])


@pytest.fixture
def contrib(telemetry: Telemetry, registry: None) -> Iterator[Any]:
    """It registers a listener for good; the test takes that off again."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(telemetry.exporter))
    instrumentor = PymongoInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    yield instrumentor
    if instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()
    instrumentor._commandtracer_instance = None


def _tree(telemetry: Telemetry) -> list[tuple[str, str | None]]:
    names = {span.context.span_id: span.name for span in telemetry.spans()}
    return [
        (span.name, None if span.parent is None else names.get(span.parent.span_id))
        for span in telemetry.spans()
    ]


def test_the_other_instrumentation_draws_the_commands_while_it_is_active(
    side: Side, server: EmbeddedServer, database: str, telemetry: Telemetry, contrib: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    find = f"find {database}.coll"
    for _ in range(2):
        client = side.do(side.client, server.uri)
        side.do(client[database].coll.find_one)
    assert _tree(telemetry) == [(f"{database}.find", find), (find, None)] * 2
    assert _warnings(caplog, "opentelemetry-instrumentation-pymongo is active") == 1
    (point,) = (attributes for attributes, _ in telemetry.points("db.client.operation.duration"))
    assert point["server.port"] == server.address[1]
    contrib.uninstrument()
    telemetry.clear()
    side.do(client[database].coll.find_one)
    assert _tree(telemetry) == [("find", find), (find, None)]


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A driver that knows the option, as one to come does: this one looks at it and goes on."""
    seen: list[Any] = []

    def validate(_: str, value: Any) -> Any:
        seen.append(value)
        return value

    monkeypatch.setitem(common.VALIDATORS, "tracing", validate)
    return seen


@pytest.mark.parametrize(
    ("option", "variable", "ours"),
    [
        (None, None, True),
        (None, "true", False),
        ({"enabled": True}, None, False),
        ({"enabled": True}, "false", False),
        ({"enabled": False}, "true", False),
        ({"query_text_max_length": 5}, None, True),
    ],
)
def test_a_driver_that_draws_itself_draws_alone(
    option: Any, variable: str | None, ours: bool, side: Side, server: EmbeddedServer,
    database: str, telemetry: Telemetry, native: list[Any], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    if variable is not None:
        monkeypatch.setenv(ENABLED_VARIABLE, variable)
    options = {} if option is None else {"tracing": option}
    for _ in range(2):
        client = side.do(side.client, server.uri, **options)
        side.do(client[database].coll.find_one)
    assert [span.name for span in telemetry.spans()] == ["find", f"find {database}.coll"] * 2 * ours
    assert bool(native) == (option is not None)
    off = option is not None and option.get("enabled") is False
    assert _warnings(caplog, "pymongo records the spans of this client itself") == (
        not ours and not off
    )
