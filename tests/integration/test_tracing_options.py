"""What switches the spans of a client: two variables, its own option, and suppression."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pymongo
import pytest
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.trace import StatusCode
from pymongo.errors import ConfigurationError, DuplicateKeyError, OperationFailure
from pymongo_resilience_instrumentation.telemetry.client_tracing import (
    ENABLED_VARIABLE,
    LENGTH_VARIABLE,
)
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import Side
from support.telemetry import Instrument, Telemetry

from pymongo_resilience.testbed import CutAfter, ReplicaSet
from pymongo_resilience.testing import set_active

CANARY = "canary-4711"
Set = Callable[[str, str], None]


@pytest.fixture
def telemetry(instrument: Instrument) -> Telemetry:
    return instrument(timeout_ms=20_000)


def _names(telemetry: Telemetry) -> list[str]:
    return [span.name.partition(" ")[0] for span in telemetry.spans()]


def _insert(side: Side, client: Any, database: str, **document: Any) -> None:
    side.do(client[database].coll.insert_one, {"text": CANARY, **document})


@pytest.mark.parametrize(
    ("text", "drawn"),
    [("1", True), ("true", True), ("YES", True), ("", True), (" ", True),
     ("0", False), ("false", False), ("No", False), ("maybe", False)],
)  # fmt: skip
def test_the_variable_is_read_when_a_client_is_made(
    text: str, drawn: bool, side: Side, server: EmbeddedServer, database: str,
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setenv(ENABLED_VARIABLE, text)
    client = side.do(side.client, server.uri)
    monkeypatch.setenv(ENABLED_VARIABLE, "false" if drawn else "true")
    _insert(side, client, database)
    assert _names(telemetry) == (["insert", "insert"] if drawn else [])
    complaints = [each for each in caplog.messages if ENABLED_VARIABLE in each]
    assert len(complaints) == (text == "maybe")


def test_a_client_that_existed_goes_by_the_variable_as_well(
    side: Side, server: EmbeddedServer, database: str, instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    client = side.do(side.client, server.uri)
    monkeypatch.setenv(ENABLED_VARIABLE, "false")
    telemetry = instrument()
    _insert(side, client, database)
    assert _names(telemetry) == []


@pytest.mark.parametrize("enabled", [True, False])
def test_the_clients_own_option_wins(
    enabled: bool, side: Side, server: EmbeddedServer, database: str, telemetry: Telemetry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv(ENABLED_VARIABLE, "false" if enabled else "true")
    monkeypatch.setenv(LENGTH_VARIABLE, "10")
    tracing = {"enabled": enabled, "query_text_max_length": 0}
    _insert(side, side.do(side.client, server.uri, tracing=tracing), database)
    assert _names(telemetry) == (["insert", "insert"] if enabled else [])
    assert all("db.query.text" not in (span.attributes or {}) for span in telemetry.spans())


@pytest.mark.parametrize("off", ["option", "suppressed"])
def test_a_client_without_spans_is_retried_and_measured(
    off: str, side: Side, proxy: ReplicaSet, database: str, telemetry: Telemetry
) -> None:
    options = {"tracing": {"enabled": False}} if off == "option" else {}
    with suppress_instrumentation() if off == "suppressed" else nullcontext():
        client = side.do(side.client, proxy.uri, **options)
        side.do(client.admin.command, "ping")
        proxy.inject(CutAfter("insert", times=2))
        _insert(side, client, database)
        side.do(client[database].coll.find(batch_size=1).to_list)
        session = client.start_session()
        side.do(session.start_transaction)
        side.do(client[database].coll.find_one, session=session)
        side.do(session.end_session)
    assert telemetry.spans() == []
    assert len(telemetry.decisions.events) == 2
    (point,) = (
        point
        for attributes, point in telemetry.points("db.client.operation.duration")
        if attributes["db.operation.name"] == "insert"
    )
    assert point.count == 1
    side.do(client[database].coll.find_one)
    assert _names(telemetry) == ([] if off == "option" else ["find", "find"])


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (True, "it is of type bool"),
        ({"enabled": 1}, "enabled=1: expected true or false"),
        ({"query_text_max_length": -1}, "query_text_max_length=-1: expected an integer from 0"),
        ({"query_text_max_length": True}, "query_text_max_length=True: expected an integer"),
        ({"enable": True}, "unknown key 'enable'"),
    ],
)
@pytest.mark.parametrize("on", [True, False])
def test_a_bad_value_is_one_clear_error(
    said: Any, complaint: str, on: bool, instrument: Instrument
) -> None:
    instrument()
    for cls in (pymongo.MongoClient, pymongo.AsyncMongoClient):
        with (
            set_active(on),
            pytest.raises(ConfigurationError, match=f"^tracing: expected a dict.*{complaint}"),
        ):
            cls(tracing=said)


def test_the_option_is_no_longer_known_without_the_library(server: EmbeddedServer) -> None:
    with pytest.raises(ConfigurationError, match="tracing"):
        pymongo.MongoClient(server.uri, tracing={"enabled": True})


@pytest.mark.parametrize("way", ["variable", "option"])
def test_text_of_commands_and_of_errors_goes_out_where_it_is_asked_for(
    way: str, side: Side, server: EmbeddedServer, database: str, telemetry: Telemetry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    options: dict[str, Any] = {}
    if way == "variable":
        monkeypatch.setenv(LENGTH_VARIABLE, "1000")
    else:
        options["tracing"] = {"query_text_max_length": 1000}
    client = side.do(side.client, server.uri, **options)
    monkeypatch.delenv(LENGTH_VARIABLE, raising=False)
    _insert(side, client, database, _id=1)
    (insert,) = [span for span in telemetry.spans() if span.name == "insert"]
    text = (insert.attributes or {})["db.query.text"]
    head, _, tail = str(text).partition(', "txnNumber": ')
    assert head == '{"insert": "coll", "ordered": true'
    assert tail.endswith(f'"documents": [{{"text": "{CANARY}", "_id": 1}}]}}')
    telemetry.clear()
    with pytest.raises(DuplicateKeyError) as caught:
        _insert(side, client, database, _id=1)
    operation = telemetry.operations()[0]
    attributes = operation.attributes or {}
    assert operation.status.status_code is StatusCode.ERROR
    assert attributes["exception.message"] == str(caught.value)
    assert str(attributes["exception.stacktrace"]).endswith(str(caught.value))


def test_neither_a_command_with_credentials_nor_its_error_is_shown(
    side: Side, server: EmbeddedServer, database: str, telemetry: Telemetry
) -> None:
    client = side.do(side.client, server.uri, tracing={"query_text_max_length": 1000})
    create = ("createUser", CANARY)
    side.do(client[database].command, *create, pwd=CANARY, roles=["read"])
    with pytest.raises(OperationFailure, match=CANARY):
        side.do(client[database].command, *create, pwd=CANARY, roles=["read"])
    assert _names(telemetry) == ["runCommand", "runCommand"]
    shown = "".join(span.to_json() for span in telemetry.spans())
    assert CANARY not in shown
    assert "OperationFailure, code 51003" in shown
    side.do(client[database].command, "dropUser", CANARY)


def test_a_bad_length_is_told_and_shows_nothing(
    side: Side, server: EmbeddedServer, database: str, telemetry: Telemetry,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setenv(LENGTH_VARIABLE, "lots")
    _insert(side, side.do(side.client, server.uri), database)
    assert CANARY not in "".join(span.to_json() for span in telemetry.spans())
    (complaint,) = [each for each in caplog.messages if LENGTH_VARIABLE in each]
    assert complaint.startswith(f"{LENGTH_VARIABLE}='lots': expected an integer from 0 to 16777216")
