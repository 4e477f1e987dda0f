"""instrument() where the library is on: by OpenTelemetry's loader, in a cell that runs twice."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pymongo
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from pymongo_resilience_instrumentation.instrumentor import PymongoResilienceInstrumentor
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import Side, fail_command
from support.patched_places import Places, differences, patched_places
from support.telemetry import Instrument, Telemetry

import pymongo_resilience
from pymongo_resilience import Config, ConfigurationError, Policy
from pymongo_resilience.strategies import BestEffort
from pymongo_resilience.testing import RecordingListener, is_active

pytestmark = pytest.mark.oldest
FIRST: dict[str, Any] = {"timeout_ms": 20_000}
REPLACE = {"replace": True}


@pytest.fixture
def plain() -> Iterator[Places]:
    """pymongo's own methods, which must be there again once the library is off."""
    places = patched_places()
    yield places
    if is_active():
        pymongo_resilience.uninstrument()
    assert differences(places, patched_places()) == set()


def _load() -> None:
    """As OpenTelemetry's loader does it."""
    PymongoResilienceInstrumentor().instrument(skip_dep_check=True)


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


def _points(telemetry: Telemetry, metric: str) -> int:
    return sum(point.count for _, point in telemetry.points(metric))


@pytest.mark.usefixtures("plain")
def test_the_application_wins_over_the_loader_for_clients_that_exist_too(
    side: Side,
    server: EmbeddedServer,
    database: str,
    control: pymongo.MongoClient[Any],
    instrument: Instrument,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _load()
    early = side.client(server.uri)
    side.do(early[database].coll.find_one)
    telemetry = instrument(**FIRST)
    # The loader has told of those that it found: none that was made since is told of.
    assert len({each for each in _warnings(caplog) if "created before" in each}) <= 1
    for client in (early, side.client(server.uri)):
        telemetry.clear()
        with fail_command(control, "insert", closeConnection=True, times=3):
            side.do(client[database].coll.insert_one, {})
        assert len(telemetry.decisions.events) == 3
        (operation,) = telemetry.operations(f"insert {database}.coll")
        assert len(telemetry.commands_of(operation)) == 4
    assert _points(telemetry, "db.client.operation.duration") == 2
    assert len(telemetry.points("db.client.connection.count")) >= 2


def test_the_loader_after_the_application_changes_nothing(
    plain: Places, instrument: Instrument, caplog: pytest.LogCaptureFixture
) -> None:
    instrument(**FIRST)
    before = patched_places()
    assert differences(plain, patched_places())
    caplog.clear()
    _load()
    assert differences(before, patched_places()) == set()
    assert _warnings(caplog) == []


@pytest.mark.parametrize("by_loader", [False, True])
def test_a_second_call_with_the_same_arguments_changes_nothing(
    by_loader: bool, plain: Places
) -> None:
    listener = RecordingListener()

    def cell() -> None:
        pymongo_resilience.instrument(
            Config(timeout_ms=500),
            strategy=BestEffort(),
            policies={"shop.*": Policy(strategy=BestEffort(), data={"team": 1})},
            listeners=[listener],
        )

    if by_loader:
        _load()
    cell()
    before = patched_places()
    assert differences(plain, patched_places())
    cell()
    assert differences(before, patched_places()) == set()


DIFFERENT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "timeout_ms: 500 is active, but 2000 was given": (
        {"config": Config(timeout_ms=500)},
        {"config": Config(timeout_ms=2000)},
    ),
    "enabled: True is active, but False was given": ({}, {"config": Config(enabled=False)}),
    "strategy: none is active, but BestEffort was given": ({}, {"strategy": BestEffort()}),
    r"listeners: \[RecordingListener\] is active, but another object of the same type": (
        {"listeners": [RecordingListener()]},
        {"listeners": [RecordingListener()]},
    ),
    r"policies: {} is active, but {'a.\*': Policy": (
        {},
        {"policies": {"a.*": Policy(data={"secret": "canary"})}},
    ),
    "request_hook: print is active, but none was given": ({"request_hook": print}, {}),
    "meter_provider: MeterProvider is active, but none": ({"meter_provider": MeterProvider()}, {}),
}


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("text", DIFFERENT)
def test_a_second_call_with_others_is_refused_with_both(text: str) -> None:
    first, second = DIFFERENT[text]
    pymongo_resilience.instrument(**first)
    before = patched_places()
    with pytest.raises(ConfigurationError, match=text) as refused:
        pymongo_resilience.instrument(**second)
    assert "replace=True" in str(refused.value)
    assert "canary" not in str(refused.value)
    assert len(refused.value.problems) == 2
    assert differences(before, patched_places()) == set()
    assert is_active()


@pytest.mark.usefixtures("plain")
def test_with_replace_everything_goes_by_the_new_arguments(
    side: Side, server: EmbeddedServer, database: str, instrument: Instrument
) -> None:
    first = instrument(**FIRST, retry_budget="tokens")
    client = side.client(server.uri)
    thrifty = side.client(server.uri, adaptiveRetries=True)
    other = side.client(server.uri, adaptiveRetries=False)
    side.do(client[database].coll.find_one)
    assert pymongo_resilience.status(client).retry_tokens == 1000
    first.clear()
    hooked: list[Any] = []
    hook = {"request_hook": lambda _, event: hooked.append(event.command_name)}
    second = instrument(max_retries=4, arguments=REPLACE | hook)
    side.do(client[database].coll.find_one)
    assert first.spans() == []
    assert _points(first, "db.client.operation.duration") == 1
    (operation,) = second.operations()
    assert operation.attributes is not None
    assert "pymongo_resilience.deadline" not in operation.attributes
    assert len(second.commands_of(operation)) == 1
    assert hooked == ["find"]
    tokens = [pymongo_resilience.status(each).retry_tokens for each in (client, thrifty, other)]
    assert tokens == [8, 1000, None]


@pytest.mark.parametrize("replace", [False, True])
def test_the_application_can_switch_off_what_the_loader_switched_on(
    replace: bool, plain: Places
) -> None:
    if replace:
        pymongo_resilience.instrument()
    else:
        _load()
    pymongo_resilience.instrument(Config(enabled=False), replace=replace)
    assert not is_active()
    assert differences(plain, patched_places()) == set()


@pytest.mark.usefixtures("plain")
def test_a_configuration_that_is_refused_leaves_the_one_in_force(
    instrument: Instrument, monkeypatch: pytest.MonkeyPatch
) -> None:
    instrument(**FIRST)
    before = patched_places()
    place = "pymongo_resilience_instrumentation.instrumentor.self_check.refusal"
    with monkeypatch.context() as patch:
        patch.setattr(place, lambda: "refused")
        with pytest.raises(ConfigurationError, match="refused"):
            instrument(timeout_ms=1, arguments=REPLACE)
    assert differences(before, patched_places()) == set()
    with pytest.raises(ConfigurationError, match="timeout_ms: 20000 is active, but 1 was given"):
        instrument(timeout_ms=1)


@pytest.mark.parametrize("replaces", [False, True])
def test_one_that_fails_half_way_leaves_nothing_and_may_be_tried_again(
    replaces: bool, plain: Places, instrument: Instrument, monkeypatch: pytest.MonkeyPatch
) -> None:
    if replaces:
        instrument(**FIRST)

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("broken")

    with monkeypatch.context() as patch:
        place = "pymongo_resilience_instrumentation.instrumentor._reach_existing_clients"
        patch.setattr(place, broken)
        with pytest.raises(RuntimeError, match="broken"):
            instrument(timeout_ms=1, arguments={"replace": replaces})
    assert not is_active()
    assert differences(plain, patched_places()) == set()
    instrument(timeout_ms=2)
    assert is_active()
    assert differences(plain, patched_places())
