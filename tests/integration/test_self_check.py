"""A pymongo that lacks what the library uses leaves telemetry alone, or nothing, and says so."""

from __future__ import annotations

import gc
import logging
from importlib import import_module
from typing import Any

import pymongo
import pytest
from pymongo.errors import OperationFailure
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.self_check import Part, State, missing
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import Side, fail_command, retry_loops
from support.telemetry import Instrument

from pymongo_resilience.testbed import ReplicaSet
from pymongo_resilience.testing import is_active

pytestmark = pytest.mark.oldest


def _errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]


def test_the_installed_pymongo_has_everything() -> None:
    parts = [*driver.private_names.parts(), *driver.private_names.parts_of_gridfs()]
    assert missing(parts) == {}


@pytest.mark.parametrize(
    "name",
    [
        "pymongo.synchronous.mongo_client:_ClientConnectionRetryable.run",
        "pymongo.asynchronous.client_session:AsyncClientSession._unpin",
        "pymongo._csot.RTT",
        "pymongo.asynchronous.mongo_client:AsyncMongoClient._ensure_session",
        "pymongo.synchronous.monitor:Monitor.cancel_check",
        "pymongo.asynchronous.mongo_client:AsyncMongoClient._clients",
    ],
)
def test_each_missing_name_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(name.replace(":", "."))
    lacking = missing(driver.private_names.parts())
    assert {state: {*names} for state, names in lacking.items()} == {State.TELEMETRY: {name}}


def test_other_parameters_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def checkout(self: object, server: object) -> object:
        return server

    monkeypatch.setattr("pymongo.synchronous.mongo_client.MongoClient._checkout", checkout)
    name = "pymongo.synchronous.mongo_client:MongoClient._checkout(self, server, session)"
    assert missing(driver.private_names.parts()) == {State.TELEMETRY: [name]}


def test_connected_objects_of_the_installed_pymongo_have_every_attribute(
    side: Side, proxy: ReplicaSet, database: str
) -> None:
    client = side.client(proxy.uri)
    coll, session = client[database].coll, client.start_session()
    cursor = coll.find()
    side.documents(cursor)
    stream = side.do(coll.watch, max_await_time_ms=1)
    side.do(stream.try_next)
    half, prefix = ("synchronous", "") if side.runner is None else ("asynchronous", "Async")
    bulks = import_module(f"pymongo.{half}.bulk"), import_module(f"pymongo.{half}.client_bulk")
    held = [
        session, cursor, getattr(bulks[0], f"_{prefix}Bulk")(coll, True, False),
        getattr(bulks[1], f"_{prefix}ClientBulk")(client, client.write_concern),
        OperationFailure(""),
    ]  # fmt: skip
    for part in driver.private_names.attributes():
        module, _, name = part.place.partition(":")
        is_async = "asynchronous" in module or name.startswith(("Async", "PyMongoProtocol"))
        if part.names and is_async is bool(prefix):
            cls: Any = getattr(import_module(module), name)
            instance = next(each for each in gc.get_objects() if issubclass(type(each), cls))
            assert [each for each in part.names if not hasattr(instance, each)] == [], part.place
    assert held


def _lacking(monkeypatch: pytest.MonkeyPatch, part: Part) -> None:
    parts = [*driver.private_names.parts(), part]
    monkeypatch.setattr(driver.private_names, "parts", lambda: iter(parts))


def test_telemetry_alone_leaves_the_rest_to_the_driver(
    side: Side, server: EmbeddedServer, database: str, control: Any, instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    before = retry_loops()
    _lacking(monkeypatch, Part("pymongo._csot", ("no_such_name",)))
    caplog.clear()
    telemetry = instrument(timeout_ms=5000, metrics="all", circuit_breaker="on")
    (line,) = _errors(caplog)
    assert pymongo.version in line
    assert "pymongo._csot.no_such_name" in line
    assert State.TELEMETRY.value in line
    assert retry_loops() == before
    client = side.do(side.client, server.uri)
    with fail_command(control, "find", closeConnection=True, times=1):
        assert side.do(client[database].coll.find_one) is None
    (root,) = telemetry.operations(f"find {database}.coll")
    assert len(telemetry.commands_of(root)) == 2
    assert "pymongo_resilience.deadline" not in root.attributes
    assert telemetry.decisions.events == []
    assert telemetry.points("db.client.operation.duration")
    assert _errors(caplog) == [line]


def test_without_what_telemetry_needs_it_stays_off(
    instrument: Instrument, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _lacking(monkeypatch, Part("pymongo.monitoring", ("NoListener",), State.OFF))
    caplog.clear()
    instrument()
    (line,) = _errors(caplog)
    assert State.OFF.value in line
    assert not is_active()
