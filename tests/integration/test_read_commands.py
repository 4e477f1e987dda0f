"""The command runner for reads: what of its commands is repeated, and that nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pymongo
import pytest
from pymongo.errors import AutoReconnect
from pymongo_resilience_instrumentation.public_operations import only_reads
from pymongo_resilience_instrumentation.tools.testbed import CutAfter, CutBefore
from support.clients import POLLING, Side
from support.command_listeners import Inside
from support.telemetry import Instrument

from pymongo_resilience.testbed import ReplicaSet

pytestmark = pytest.mark.oldest

MATCH = {"$match": {}}
READS: dict[str, Callable[[Any], Any]] = {
    "find": lambda db: db.cursor_command("find", "coll"),
    "aggregate": lambda db: db.cursor_command("aggregate", "coll", pipeline=[MATCH], cursor={}),
    "listCollections": lambda db: db.cursor_command({"listCollections": 1}),
    "listIndexes": lambda db: db.cursor_command("listIndexes", "coll"),
    "explain": lambda db: db.coll.find().explain(),
}


@pytest.mark.parametrize("name", READS)
def test_a_read_is_repeated(
    name: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    db = side.client(proxy.uri)[database]
    side.do(db.coll.insert_one, {"_id": 1})
    proxy.inject(CutBefore(name, times=3))
    found = side.do(READS[name], db)
    assert name == "explain" or len(side.documents(found)) == 1
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


@pytest.mark.parametrize(
    ("args", "kwargs", "reads"),
    [
        (("find",), {}, True),
        (("find", "c"), {"filter": {}}, True),
        ((), {"command": {"find": "c"}}, True),
        (("aggregate", "c"), {"pipeline": [], "cursor": {}}, True),
        (("aggregate", "c"), {"pipeline": [{"$out": "d"}]}, False),
        (("aggregate", "c"), {}, False),
        (({"aggregate": "c", "pipeline": {"$out": "d"}},), {}, False),
        (({"aggregate": "c", "pipeline": [MATCH]},), {"pipeline": [{"$merge": "d"}]}, False),
        (({"aggregate": "c", "pipeline": ["$out"]},), {}, False),
        (({"mapReduce": "c"},), {}, False),
        (({"FIND": "c"},), {}, False),
        (({},), {}, False),
        ((None,), {}, False),
    ],
)
def test_what_can_only_read(args: tuple[Any, ...], kwargs: dict[str, Any], reads: bool) -> None:
    assert only_reads(args, kwargs) is reads
