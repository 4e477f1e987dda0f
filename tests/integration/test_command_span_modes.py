"""The option ``command_spans``: which commands have their own span, what shows the others."""

from __future__ import annotations

import itertools

import pymongo
import pytest
from opentelemetry.trace import StatusCode
from support.clients import Side
from support.telemetry import Instrument

from pymongo_resilience.testbed import CutAfter, CutAtHandshake, ReplicaSet

OF_A_COMMAND = {
    "db.command.name", "db.query.summary", "server.address", "server.port", "network.transport",
    "db.mongodb.server_connection_id", "db.mongodb.driver_connection_id", "db.mongodb.lsid",
    "db.mongodb.txn_number",
}  # fmt: skip

pytestmark = pytest.mark.oldest


@pytest.mark.parametrize("mode", ["on_retry", "never"])
def test_a_healthy_operation_is_one_span_that_shows_its_command(
    mode: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(command_spans=mode)
    coll = side.do(side.client, proxy.uri)[database].coll
    side.do(coll.insert_one, {})
    (span,) = telemetry.spans()
    assert span.attributes.keys() >= OF_A_COMMAND
    assert span.attributes["db.operation.name"] == "insert"
    assert span.attributes["server.port"] == proxy.members[0].address[1]
    assert span.attributes["pymongo_resilience.attempts"] == 1
    telemetry.clear()
    side.documents(coll.find({}, batch_size=1))
    assert {span.name.partition(" ")[0] for span in telemetry.spans()} <= {"find", "getMore"}


@pytest.mark.parametrize(("mode", "commands"), [("always", 3), ("on_retry", 3), ("never", 0)])
def test_once_an_attempt_fails_each_has_its_span(
    mode: str, commands: int,
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument,
) -> None:  # fmt: skip
    telemetry = instrument(command_spans=mode, timeout_ms=20_000)
    coll = side.do(side.client, proxy.uri)[database].coll
    proxy.inject(CutAfter("insert", times=2))
    side.do(coll.insert_one, {"_id": 1})
    (operation,) = telemetry.operations()
    drawn = telemetry.commands_of(operation)
    assert [span.name for span in drawn] == ["insert"] * commands
    assert operation.attributes["pymongo_resilience.attempts"] == 3
    assert operation.attributes["pymongo_resilience.outcome"] == "retried_ok"
    assert operation.attributes["pymongo_resilience.deadline"] == 20.0
    assert 0 < operation.attributes["pymongo_resilience.backoff.total"] < 0.01
    assert operation.status.status_code is StatusCode.UNSET
    assert ("db.command.name" in operation.attributes) is (mode == "never")
    assert "error.type" not in operation.attributes
    failed = [span for span in drawn if span.status.status_code is StatusCode.ERROR]
    assert len(failed) == max(0, commands - 1)
    for span in failed:
        # pymongo 4.17 reports what the socket raised.
        assert span.attributes["error.type"] in {"pymongo.errors.AutoReconnect", "OSError"}
    for before, after in itertools.pairwise(drawn):
        assert before.start_time <= before.end_time <= after.start_time
    for span in drawn:
        assert operation.start_time <= span.start_time <= span.end_time <= operation.end_time
    assert len({span.attributes["db.mongodb.txn_number"] for span in drawn}) == min(1, commands)


def test_an_attempt_that_came_to_send_nothing_is_a_failed_one(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(command_spans="on_retry", timeout_ms=20_000)
    coll = side.do(side.client, proxy.uri)[database].coll
    proxy.inject(CutAtHandshake(times=1))
    side.do(coll.find_one)
    (operation,) = telemetry.operations()
    assert [span.name for span in telemetry.commands_of(operation)] == ["find"]


def test_of_several_commands_the_first_has_its_true_times(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(command_spans="on_retry")
    coll = side.do(side.client, proxy.uri)[database].coll
    side.do(coll.bulk_write, [pymongo.InsertOne({}), pymongo.UpdateMany({}, {"$set": {"a": 1}})])
    (operation,) = telemetry.operations()
    first, second = telemetry.commands_of(operation)
    assert (first.name, second.name) == ("insert", "update")
    assert first.start_time < first.end_time <= second.start_time < second.end_time
    assert "db.command.name" not in operation.attributes


def test_a_refused_command_has_its_span(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(command_spans="on_retry")
    coll = side.do(side.client, proxy.uri)[database].coll
    with pytest.raises(pymongo.errors.OperationFailure):
        side.do(coll.find_one, {"$no": 1})
    (operation,) = telemetry.operations()
    (find,) = telemetry.commands_of(operation)
    assert find.attributes["error.type"] == find.attributes["db.response.status_code"] == "2"
    # The command succeeded, and said what went wrong.
    side.do(coll.insert_one, {"_id": 1})
    telemetry.clear()
    with pytest.raises(pymongo.errors.DuplicateKeyError):
        side.do(coll.insert_one, {"_id": 1})
    (operation,) = telemetry.operations()
    assert [span.name for span in telemetry.commands_of(operation)] == ["insert"]


@pytest.mark.parametrize("mode", ["always", "on_retry", "never"])
def test_query_text_is_on_the_span_that_shows_the_command(
    mode: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(command_spans=mode)
    client = side.do(side.client, proxy.uri, tracing={"query_text_max_length": 1000})
    side.do(client[database].coll.find_one, {"a": 17})
    (shown,) = [span for span in telemetry.spans() if "db.query.text" in span.attributes]
    assert '"a": 17' in shown.attributes["db.query.text"]
    assert ("db.operation.name" in shown.attributes) is (mode != "always")
