"""A pymongo that lacks a private name loses the features that need it, loudly, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pymongo
import pytest
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.self_check import Feature, Part, missing
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import Side, fail_command, retry_loops
from support.telemetry import Instrument

from pymongo_resilience import OperationTimeoutError

pytestmark = pytest.mark.oldest

Lacking = dict[Feature, list[str]]

KNOWN_TO_LACK: Lacking = missing(
    [*driver.private_names.parts(), *driver.private_names.parts_of_gridfs()]
)


def test_the_installed_pymongo_has_every_private_name() -> None:
    # pymongo 4.17 has no one place where a command is sent and its end is reported: there are five.
    of_the_oldest = {Feature.INTERRUPTIONS} if pymongo.version_tuple < (4, 18) else set()
    assert set(KNOWN_TO_LACK) == of_the_oldest


def _newly_lacking() -> Lacking:
    found = {
        feature: [name for name in names if name not in KNOWN_TO_LACK.get(feature, ())]
        for feature, names in missing(driver.private_names.parts()).items()
    }
    return {feature: names for feature, names in found.items() if names}


def _errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    return [line for line in lines if not any(each.value in line for each in KNOWN_TO_LACK)]


REMOVABLE = {
    "pymongo.synchronous.mongo_client:_ClientConnectionRetryable.run": {Feature.RETRIES},
    "pymongo.asynchronous.mongo_client:_ClientConnectionRetryable.run": {Feature.RETRIES},
    "pymongo.asynchronous.client_session:AsyncClientSession._unpin": {Feature.RETRIES},
    "pymongo.synchronous.mongo_client:_ClientConnectionRetryable._get_server": {
        Feature.BREAKERS,
        Feature.SELECTION,
    },
    "pymongo._csot.get_rtt": {Feature.RETRIES},
    "pymongo.synchronous.mongo_client:MongoClient._run_operation": {Feature.CURSORS},
    "pymongo.asynchronous.mongo_client:AsyncMongoClient._end_sessions": {Feature.CLEANUP},
    "pymongo._csot.DEADLINE": {Feature.CLEANUP, Feature.TIMEOUT, Feature.WAITS},
    "pymongo.asynchronous.pool._async_cond_wait": {Feature.WAITS},
    "pymongo.asynchronous.pool._configured_protocol_interface": {
        Feature.DEAD_PEERS,
        Feature.WAITS,
    },
    "pymongo.synchronous.monitor:Monitor.cancel_check": {Feature.FAST_FAIL, Feature.RECOVERY},
    "pymongo.asynchronous.pool:AsyncConnection._raise_connection_failure": {Feature.DEAD_PEERS},
    "pymongo.asynchronous.mongo_client:AsyncMongoClient._clients": {Feature.EXISTING_CLIENTS},
    "pymongo.synchronous.topology:Topology.handle_error": {Feature.INTERRUPTIONS},
    "pymongo._csot.TIMEOUT": {Feature.TIMEOUT, Feature.TIME_LIMITS, Feature.WAITS},
    "pymongo.asynchronous.client_session._within_time_limit": {Feature.WHOLE_TIMEOUTS},
}


@pytest.mark.parametrize("name", REMOVABLE)
def test_each_missing_name_is_noticed_with_its_features(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(name.replace(":", "."))
    assert _newly_lacking() == {feature: [name] for feature in REMOVABLE[name]}


def test_a_client_that_does_not_look_its_loop_up_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would never find ours."""
    monkeypatch.setattr(pymongo.MongoClient, driver.retry_loop.LOOKING_UP, lambda _: None)
    name = f"pymongo.synchronous.mongo_client:MongoClient.{driver.retry_loop.LOOP}"
    assert _newly_lacking() == {Feature.RETRIES: [name]}


def test_a_local_variable_of_another_name_is_noticed() -> None:
    place = "pymongo_resilience_instrumentation.self_check:missing"
    part = Part(Feature.INTERRUPTIONS, place, ("lacking", "telemetry"))
    assert missing([part]) == {Feature.INTERRUPTIONS: [f"{place}.telemetry"]}


@pytest.mark.parametrize(
    ("constant", "lost", "left"),
    [
        ("IDLE", Feature.POOLS, {"max"}),
        ("HANDSHAKE", Feature.WAITS, {"max", "count"}),
    ],
)
def test_without_what_counts_them_a_pools_gauges_show_nothing(
    constant: str,
    lost: Feature,
    left: set[str],
    side: Side,
    server: EmbeddedServer,
    database: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(
        f"pymongo_resilience_instrumentation.driver.private_names.{constant}", "_renamed"
    )
    caplog.clear()
    telemetry = instrument()
    (line,) = _errors(caplog)
    assert lost.value in line
    assert side.do(side.client(server.uri)[database].coll.find_one) is None
    gauges = ("count", "pending_requests", "max")
    assert {each for each in gauges if telemetry.points(f"db.client.connection.{each}")} == left


def _rename_the_loop(monkeypatch: pytest.MonkeyPatch) -> str:
    """As if pymongo had another name for it: removing its own would stop pymongo itself."""
    monkeypatch.setattr("pymongo_resilience_instrumentation.driver.private_names.LOOP", "_Renamed")
    return "_Renamed"


def _remove_a_function(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delattr("pymongo._csot.get_rtt")
    return "pymongo._csot.get_rtt"


@pytest.mark.parametrize("remove", [_rename_the_loop, _remove_a_function])
def test_without_the_retry_loop_the_driver_retries_as_ever_and_the_rest_works(
    remove: Callable[[pytest.MonkeyPatch], str],
    side: Side,
    server: EmbeddedServer,
    database: str,
    control: Any,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = retry_loops()
    name = remove(monkeypatch)
    caplog.clear()
    telemetry = instrument(timeout_ms=5000)
    # Who selects, and who breaks, is asked in the loop as well.
    lost = (Feature.SELECTION, Feature.BREAKERS, Feature.LOST_PRIMARIES, Feature.RESUMPTION)
    (line,) = [each for each in _errors(caplog) if not any(f.value in each for f in lost)]
    assert pymongo.version in line
    assert name in line
    assert Feature.RETRIES.value in line
    monkeypatch.undo()
    assert retry_loops() == before

    client = side.do(side.client, server.uri)
    with fail_command(control, "find", closeConnection=True, times=1):
        assert side.do(client[database].coll.find_one) is None
    (root,) = telemetry.operations(f"find {database}.coll")
    assert len(telemetry.commands_of(root)) == 2
    assert root.attributes["pymongo_resilience.deadline"] == 5.0
    assert telemetry.decisions.events == []


def _pretend_to_need(monkeypatch: pytest.MonkeyPatch, feature: Feature, name: str) -> None:
    """As if the feature needed a name that pymongo lacks: the real ones pymongo needs itself."""
    parts = [
        Part(part.feature, part.place, (name,)) if part.feature is feature else part
        for part in driver.private_names.parts()
    ]
    monkeypatch.setattr(driver.private_names, "parts", lambda: iter(parts))


def test_without_the_timeout_context_no_default_timeout_is_set_and_the_rest_works(
    side: Side,
    server: EmbeddedServer,
    database: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _pretend_to_need(monkeypatch, Feature.TIMEOUT, "no_such_name")
    caplog.clear()
    telemetry = instrument(timeout_ms=5000)
    (line,) = _errors(caplog)
    assert "pymongo._csot.no_such_name" in line
    client = side.do(side.client, server.uri)
    assert side.do(client[database].coll.find_one) is None
    (root,) = telemetry.operations()
    assert "pymongo_resilience.deadline" not in root.attributes


def test_without_the_cursor_seam_find_one_still_has_its_span(
    side: Side,
    server: EmbeddedServer,
    database: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _pretend_to_need(monkeypatch, Feature.CURSORS, "_no_such_method")
    caplog.clear()
    telemetry = instrument(timeout_ms=5000)
    assert len(_errors(caplog)) == 1
    coll = side.do(side.client, server.uri)[database].coll
    side.do(coll.insert_one, {"_id": 1})
    telemetry.clear()
    assert side.do(coll.find_one) == {"_id": 1}
    assert side.documents(coll.find()) == [{"_id": 1}]
    assert [span.name for span in telemetry.spans()] == ["find", f"find {database}.coll", "find"]


def test_without_the_drivers_waits_a_deadline_is_still_one(
    side: Side,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    halves = (driver.waits.SYNC_HALF, driver.waits.ASYNC_HALF)
    before = [vars(half.module("pool"))[half.wait] for half in halves]
    _pretend_to_need(monkeypatch, Feature.WAITS, "_no_such_wait")
    caplog.clear()
    instrument(timeout_ms=100, dead_peer_s=0)
    (line,) = _errors(caplog)
    assert Feature.WAITS.value in line
    assert [vars(half.module("pool"))[half.wait] for half in halves] == before
    with pytest.raises(OperationTimeoutError):
        side.do(side.client("mongodb://127.0.0.1:1/").db.coll.find_one)
