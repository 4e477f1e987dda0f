"""The command runner for reads: what of its commands is repeated, and that nothing else is."""

from __future__ import annotations

from typing import Any

import pymongo
import pytest
from pymongo.errors import AutoReconnect
from pymongo_resilience_instrumentation import calls
from pymongo_resilience_instrumentation.operations import only_reads
from pymongo_resilience_instrumentation.tools.testbed import CutAfter, CutBefore
from support.clients import POLLING, SentCommands, Side
from support.command_listeners import Inside
from support.telemetry import Instrument

from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import ReplicaSet

pytestmark = pytest.mark.oldest

MATCH = {"$match": {}}
READS: dict[str, dict[str, Any]] = {
    "find": {"find": "coll"},
    "aggregate": {"aggregate": "coll", "pipeline": [MATCH], "cursor": {}},
    "listCollections": {"listCollections": 1},
    "listIndexes": {"listIndexes": "coll"},
}
OUT = {"aggregate": "coll", "pipeline": [MATCH, {"$out": "other"}], "cursor": {}}


@pytest.fixture
def filled(side: Side, proxy: ReplicaSet, database: str) -> Any:
    client = side.client(proxy.uri)
    side.do(client[database].coll.insert_one, {"_id": 1})
    return client


@pytest.mark.parametrize("name", READS)
def test_a_read_is_repeated(
    name: str, side: Side, filled: Any, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    proxy.inject(CutBefore(name, times=3))
    cursor = side.do(filled[database].cursor_command, READS[name])
    assert len(side.documents(cursor)) == 1
    assert len(telemetry.decisions.events) == 3


def test_a_read_is_repeated_with_the_driver_s_strategy(
    side: Side, filled: Any, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """The text's one retry; plain pymongo never repeats a ``cursor_command``."""
    instrument(config_strategy="mongodb")
    proxy.inject(CutBefore("find"))
    cursor = side.do(filled[database].cursor_command, "find", "coll")
    assert side.documents(cursor) == [{"_id": 1}]


@pytest.mark.parametrize("stage", [{"$out": "other"}, {"$merge": "other"}])
def test_a_write_stage_is_never_repeated(
    stage: Any, side: Side, filled: Any, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    proxy.inject(CutBefore("aggregate"))
    with pytest.raises(AutoReconnect):
        side.do(
            filled[database].cursor_command,
            {"aggregate": "coll", "pipeline": [MATCH, stage], "cursor": {}},
        )
    assert [event.rule for event in telemetry.decisions.events] == [Rule.NEVER_REPEATED]


@pytest.mark.parametrize("command", [{"find": "coll"}, {"explain": {"find": "coll"}}])
def test_the_generic_runner_is_never_repeated(
    command: Any, side: Side, filled: Any, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    proxy.inject(CutBefore(next(iter(command))))
    with pytest.raises(AutoReconnect):
        side.do(filled[database].command, command)
    assert [event.rule for event in telemetry.decisions.events] == [Rule.NEVER_REPEATED]


def test_explain_of_a_cursor_is_a_read(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    sent = SentCommands()
    coll = side.client(proxy.uri, event_listeners=[sent])[database].coll
    side.do(coll.insert_one, {"_id": 1})
    proxy.inject(CutBefore("explain", times=3))
    side.do(coll.find().explain)
    assert len(sent.named("explain")) == 4
    assert len(telemetry.decisions.events) == 3


def test_what_a_listener_runs_inside_of_it_is_no_read(
    proxy: ReplicaSet, database: str, control: Any, instrument: Instrument
) -> None:
    instrument(timeout_ms=20_000)
    listener = Inside()
    with pymongo.MongoClient(proxy.uri, event_listeners=[listener], **POLLING) as client:
        client[database].coll.insert_one({"_id": 1, "n": 0})

        def increment() -> None:
            proxy.inject(CutAfter("update"))
            change = {"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}
            with pytest.raises(AutoReconnect):
                client[database].command({"update": "coll", "updates": [change]})

        listener.act = increment
        client[database].cursor_command({"find": "coll"}).to_list()
    assert control[database].coll.find_one({"_id": 1})["n"] == 1


def test_a_command_that_cannot_be_read_leaves_nothing_behind(
    proxy: ReplicaSet, database: str, instrument: Instrument, caplog: pytest.LogCaptureFixture
) -> None:
    telemetry = instrument()

    class Unreadable(dict[str, Any]):
        def __iter__(self) -> Any:
            raise LookupError

    with pymongo.MongoClient(proxy.uri) as client:
        with pytest.raises(LookupError):
            client[database].cursor_command(Unreadable(find="coll"))
        assert calls.current() is None
        assert "internal error" in caplog.text
        client[database].coll.find_one()
        assert [span.name for span in telemetry.operations()] == [f"find {database}.coll"]


def test_retry_reads_switches_it_off(
    side: Side, filled: Any, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    client = side.client(proxy.uri, retryReads=False)
    side.do(client.admin.command, "ping")
    proxy.inject(CutBefore("find"))
    with pytest.raises(AutoReconnect):
        side.do(client[database].cursor_command, "find", "coll")
    assert [event.rule for event in telemetry.decisions.events] == [Rule.SWITCHED_OFF]


@pytest.mark.parametrize(
    ("args", "kwargs", "reads"),
    [
        (({"find": "c"},), {}, True),
        (("find",), {}, True),
        (("find", "c"), {"filter": {}}, True),
        ((), {"command": {"find": "c"}}, True),
        (("aggregate", "c"), {"pipeline": [], "cursor": {}}, True),
        (("aggregate", "c"), {"pipeline": [{"$out": "d"}]}, False),
        (("aggregate", "c"), {"pipeline": [{"$out": "d"}, MATCH]}, False),
        (("aggregate", "c"), {}, False),
        (({"aggregate": "c", "pipeline": {"$out": "d"}},), {}, False),
        (({"aggregate": "c", "pipeline": [MATCH]},), {"pipeline": [{"$merge": "d"}]}, False),
        (({"aggregate": "c", "pipeline": ["$out"]},), {}, False),
        ((OUT,), {}, False),
        (({"mapReduce": "c"},), {}, False),
        (({"getMore": 1},), {}, False),
        (({"FIND": "c"},), {}, False),
        (({},), {}, False),
        ((None,), {}, False),
        ((), {}, False),
    ],
)
def test_what_can_only_read(args: tuple[Any, ...], kwargs: dict[str, Any], reads: bool) -> None:
    assert only_reads(args, kwargs) is reads
