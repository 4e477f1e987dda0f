"""``db.query.text`` by default: the shape of a command without its values, on spans and in the log
of slow operations."""

from __future__ import annotations

import gc
import json
import logging
import weakref
from typing import Any

import pymongo
import pytest
from bson import SON
from opentelemetry.sdk.trace import ReadableSpan
from pymongo.errors import PyMongoError
from pymongo_resilience_instrumentation.telemetry.client_tracing import LENGTH_VARIABLE
from support.canaries import MARK, leaks
from support.canary_outputs import instrumented
from support.clients import Side
from support.every_operation import BY_CLASS, Scene
from support.servers import has
from support.telemetry import Instrument, Telemetry

import pymongo_resilience
from pymongo_resilience import Config, OperationTimeoutError, override
from pymongo_resilience.testbed import CutAfter, ReplicaSet, Slow

pytestmark = pytest.mark.oldest

TEXT = "db.query.text"
SLOW = "pymongo_resilience.slow"


def texts(telemetry: Telemetry) -> list[Any]:
    return [span.attributes[TEXT] for span in telemetry.spans() if TEXT in span.attributes]


def shape(text: Any) -> Any:
    return json.loads(text)


@pytest.mark.parametrize("mode", ["always", "on_retry", "never"])
def test_the_span_that_shows_a_command_has_its_shape(
    mode: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(command_spans=mode)
    coll = side.do(side.client, proxy.uri)[database].orders
    side.do(coll.find_one, {"status": MARK, "total": {"$gt": 12}}, sort=[("total", -1)])
    (shown,) = [span for span in telemetry.spans() if TEXT in span.attributes]
    assert shape(shown.attributes[TEXT]) == {
        "find": "orders", "filter": {"status": "?", "total": {"$gt": "?"}}, "sort": {"total": -1},
        "limit": "?",
    }  # fmt: skip
    assert ("db.operation.name" in shown.attributes) is (mode != "always")


def test_every_kind_of_command_with_a_filter_or_an_update(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    client = side.do(side.client, proxy.uri)
    coll = client[database].orders
    update = {"$set": {"status": MARK, f"votes.{MARK}": 1}}
    side.do(coll.insert_one, {"_id": 1, "status": MARK})
    side.do(coll.update_one, {"_id": 1}, update, comment=MARK)
    side.do(coll.replace_one, {"_id": 1}, {"status": MARK, "total": 3})
    side.do(coll.find_one_and_update, {"status": MARK}, [{"$set": {"total": MARK}}])
    side.do(coll.distinct, "status", {"total": {"$in": [MARK, 1, 2]}})
    side.do(coll.aggregate, [{"$match": {"status": MARK}}, {"$group": {"_id": "$total"}}])
    side.do(coll.bulk_write, [pymongo.UpdateOne({"_id": n}, update) for n in range(20)])
    side.do(coll.delete_many, {"total": {"$gt": 3}}, hint=SON([("_id", 1)]))
    changed, total = {"$set": {"status": "?", "votes.?": "?"}}, {"total": "?"}
    expected: list[Any] = [
        {"insert": "orders", "documents": "?"},
        {"update": "orders", "comment": "?", "updates": [{"q": {"_id": "?"}, "u": changed}]},
        {"update": "orders", "updates": [{"q": {"_id": "?"}, "u": "?"}]},
        {"findAndModify": "orders", "query": {"status": "?"}, "update": [{"$set": total}]},
        {"distinct": "orders", "key": "status", "query": {"total": {"$in": "?"}}},
        {"aggregate": "orders",
         "pipeline": [{"$match": {"status": "?"}}, {"$group": {"_id": "?"}}]},
        {"update": "orders", "updates": [{"q": {"_id": "?"}, "u": changed}, "?"]},
        {"delete": "orders",
         "deletes": [{"q": {"total": {"$gt": "?"}}, "hint": {"_id": 1}, "limit": "?"}]},
    ]  # fmt: skip
    found = [shape(text) for text in texts(telemetry)]
    for each in found[3:4]:
        assert each.pop("new", None) is None
    found[7]["deletes"] = [dict(sorted(each.items())) for each in found[7]["deletes"]]
    assert found == expected
    assert MARK not in "".join(span.to_json() for span in telemetry.spans())


def test_each_attempt_has_the_same(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    coll = side.do(side.client, proxy.uri)[database].orders
    proxy.inject(CutAfter("update", times=2))
    side.do(coll.update_one, {"_id": 1}, {"$inc": {"n": 1}})
    expected = {"q": {"_id": "?"}, "u": {"$inc": {"n": "?"}}}
    assert list(map(shape, texts(telemetry))) == [{"update": "orders", "updates": [expected]}] * 3


@pytest.mark.parametrize("off", ["option", "variable", "client"])
def test_it_can_be_turned_off(
    off: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """A length of 0 for whole commands means no text of any kind, as for any driver."""
    telemetry = instrument(query_text="off" if off == "option" else "sanitized", slow_ms=0)
    if off == "variable":
        monkeypatch.setenv(LENGTH_VARIABLE, "0")
    tracing = {"tracing": {"query_text_max_length": 0}} if off == "client" else {}
    client = side.do(side.client, proxy.uri, **tracing)
    with caplog.at_level(logging.INFO, SLOW):
        side.do(client[database].orders.find_one, {"status": 1})
    assert texts(telemetry) == []
    (record,) = [each for each in caplog.records if each.name == SLOW]
    assert "status" not in record.getMessage()
    assert "query_text" not in vars(record)["pymongo_resilience"]


def test_beside_whole_commands_the_log_has_the_shape(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    telemetry = instrument(slow_ms=0)
    client = side.do(side.client, proxy.uri, tracing={"query_text_max_length": 1000})
    with caplog.at_level(logging.INFO, SLOW):
        side.do(client[database].orders.find_one, {"status": MARK})
    (text,) = texts(telemetry)
    assert f'"status": "{MARK}"' in text
    (record,) = [each for each in caplog.records if each.name == SLOW]
    assert MARK not in record.getMessage()
    assert '"status": "?"' in record.getMessage()


@pytest.mark.parametrize("sdk", ["spans", "no spans", "no SDK"])
@pytest.mark.parametrize("strategy", ["fast_fail", "driver"])
def test_a_slow_operation_is_logged_with_its_shape(
    strategy: str, sdk: str, side: Side, proxy: ReplicaSet, database: str,
    instrument: Instrument, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Also if no spans are recorded."""
    if sdk == "no SDK":
        pymongo_resilience.instrument(Config(strategy=strategy, slow_ms=0))
    else:
        instrument(config_strategy=strategy, slow_ms=0, traces=sdk == "spans", metrics=False)
    try:
        coll = side.do(side.client, proxy.uri)[database].orders
        with caplog.at_level(logging.INFO, SLOW):
            side.do(coll.update_one, {"_id": MARK}, {"$set": {"status": MARK}})
    finally:
        pymongo_resilience.uninstrument()
    (record,) = [each for each in caplog.records if each.name == SLOW]
    fields: Any = vars(record)["pymongo_resilience"]
    assert shape(fields["query_text"]) == {
        "update": "orders", "updates": [{"q": {"_id": "?"}, "u": {"$set": {"status": "?"}}}],
    }  # fmt: skip
    assert record.getMessage().endswith(f"; {fields['query_text']}")


def test_an_operation_that_timed_out_is_logged_with_its_shape(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    instrument()
    coll = side.do(side.client, proxy.uri)[database].orders
    side.do(coll.find_one)
    proxy.inject(Slow(0.6))
    with (
        caplog.at_level(logging.INFO, SLOW),
        override(timeout_ms=200),
        pytest.raises(OperationTimeoutError),
    ):
        side.do(coll.find_one, {"status": MARK})
    proxy.clear()
    (record,) = [each for each in caplog.records if each.name == SLOW]
    assert record.getMessage().endswith(
        '; {"find": "orders", "filter": {"status": "?"}, "limit": "?"}'
    )


def test_an_operation_that_has_ended_keeps_no_command(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    class Document(dict[str, Any]):
        """One that can be referenced weakly."""

    instrument(slow_ms=60_000)
    coll = side.do(side.client, proxy.uri)[database].orders
    document = Document(status=1)
    kept = weakref.ref(document)
    side.do(coll.find_one, document)
    del document
    gc.collect()
    assert kept() is None


def test_no_canary_of_any_operation_is_in_a_text(
    side: Side, proxy: ReplicaSet, database: str
) -> None:
    """Neither on spans nor in the log."""
    with instrumented(slow_ms=0) as outputs:
        scene = Scene(side, proxy.uri, side.do(side.client, proxy.uri), database)
        scene.prepare()
        for operation in (each for calls in BY_CLASS.values() for each in calls):
            try:
                operation.call(scene)
            except PyMongoError:  # of a server that lacks it
                continue
        channels = outputs.channels()
        described = [span for span in outputs.spans() if TEXT in span.attributes]
    assert leaks("spans", channels["spans"]) == []
    assert leaks("log", channels["log"]) == []
    assert {_command(span) for span in described} >= {
        "aggregate", "count", "createIndexes", "delete", "distinct", "find", "findAndModify",
        "insert", "update", *(["bulkWrite"] if has("8.0") else []),
    }  # fmt: skip
    assert sum("; {" in each for each in channels["log"]) >= len(described) // 2


def _command(span: ReadableSpan) -> str:
    return str(next(iter(shape(span.attributes[TEXT]))))
