"""Every command the driver can send, against an overloaded server: how often, and what it sends."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from pymongo import DeleteMany, DeleteOne, IndexModel, InsertOne, ReplaceOne, UpdateMany, UpdateOne
from pymongo.errors import PyMongoError
from support.clients import SentCommands, Side
from support.supported_reads import READS, fill
from support.telemetry import Instrument, Telemetry

from pymongo_resilience.events import RetryScheduled
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.rules.strategy import NAMED
from pymongo_resilience.testbed import Fail, Overload, ReplicaSet

INC = {"$inc": {"n": 1}}
NUMBERS = itertools.count()
Command = tuple[str, Callable[[Side, Any], Any], str]
"""What is sent, by which call, and which options of a client must be on for it to be repeated."""


def _on(method: str, *args: Any, **kwargs: Any) -> Callable[[Side, Any], Any]:
    return lambda side, db: side.do(getattr(db.coll, method), *args, **kwargs)


def _get_more(side: Side, db: Any) -> Any:
    found = side.documents(db.coll.find(batch_size=2))
    assert len(found) == 3
    return found


def _get_more_of_a_command_cursor(side: Side, db: Any) -> None:
    cursor = side.do(db.coll.aggregate, [{"$match": {}}], batchSize=2)
    assert len(side.documents(cursor)) == 3


def _client_bulk(*models: Any) -> Callable[[Side, Any], Any]:
    def call(side: Side, db: Any) -> Any:
        for model in models:
            model._namespace = f"{db.name}.coll"
        return side.do(db.client.bulk_write, list(models))

    return call


READ, WRITE, BOTH = "retryReads", "retryWrites", "both"
COMMANDS: dict[str, Command] = {
    **{
        name: (read.command, lambda side, db, read=read: read.call(side, db), READ)
        for name, read in READS.items()
        if read.collection is None
    },
    "getMore": ("getMore", _get_more, READ),
    "getMore of an aggregate": ("getMore", _get_more_of_a_command_cursor, READ),
    "getMore of a change stream": ("getMore", READS["Collection.watch"].call, READ),
    "insert_one": ("insert", _on("insert_one", {}), WRITE),
    "insert_many": ("insert", lambda side, db: side.do(db.coll.insert_many, [{}, {}]), WRITE),
    "update_one": ("update", _on("update_one", {}, INC), WRITE),
    "update_many": ("update", _on("update_many", {}, INC), WRITE),
    "replace_one": ("update", _on("replace_one", {}, {}), WRITE),
    "delete_one": ("delete", _on("delete_one", {}), WRITE),
    "delete_many": ("delete", _on("delete_many", {}), WRITE),
    "find_one_and_update": ("findAndModify", _on("find_one_and_update", {}, INC), WRITE),
    "find_one_and_replace": ("findAndModify", _on("find_one_and_replace", {}, {}), WRITE),
    "find_one_and_delete": ("findAndModify", _on("find_one_and_delete", {}), WRITE),
    "bulk_write": ("update", _on("bulk_write", [UpdateOne({}, INC)]), WRITE),
    "bulk_write, mixed": (
        "insert",
        _on("bulk_write", [ReplaceOne({"_id": 1}, {}), InsertOne({}), DeleteOne({})]),
        WRITE,
    ),
    "bulk_write, many": (
        "delete", _on("bulk_write", [UpdateMany({}, INC), DeleteMany({"a": 1})]), WRITE,
    ),
    "client bulk_write": (
        "bulkWrite",
        _client_bulk(UpdateOne({}, INC, namespace="-"), DeleteOne({}, namespace="-")),
        WRITE,
    ),
    "client bulk_write, many": (
        "bulkWrite", _client_bulk(UpdateMany({}, INC, namespace="-")), WRITE,
    ),
    "aggregate, $out": (
        "aggregate", lambda side, db: side.do(db.coll.aggregate, [{"$out": "other"}]), WRITE,
    ),
    "aggregate, $merge": (
        "aggregate", lambda side, db: side.do(db.coll.aggregate, [{"$merge": "other"}]), WRITE,
    ),
    "create_collection": (
        "create", lambda side, db: side.do(db.create_collection, f"new{next(NUMBERS)}"), WRITE,
    ),
    "create_index": ("createIndexes", _on("create_index", "b"), WRITE),
    "create_indexes": (
        "createIndexes", lambda side, db: side.do(db.coll.create_indexes, [IndexModel("b")]), WRITE,
    ),
    "drop_index": ("dropIndexes", _on("drop_index", "a_1"), WRITE),
    "rename": ("renameCollection", _on("rename", "renamed"), WRITE),
    "drop": ("drop", _on("drop"), WRITE),
    # pymongo sends this one with its command runner, which is neither a read nor a write.
    "drop_database": (
        "dropDatabase", lambda side, db: side.do(db.client.drop_database, db.name), BOTH,
    ),
    "command": ("ping", lambda side, db: side.do(db.command, "ping"), BOTH),
    "command, a read": ("count", lambda side, db: side.do(db.command, "count", "coll"), BOTH),
    "cursor_command": (
        "find", lambda side, db: side.documents(side.do(db.cursor_command, "find", "coll")), READ,
    ),
    "explain": ("explain", lambda side, db: side.do(db.coll.find().explain), READ),
    "server_info": ("buildinfo", lambda side, db: side.do(db.client.server_info), BOTH),
    "validate_collection": (
        "validate", lambda side, db: side.do(db.validate_collection, "coll"), BOTH,
    ),
}  # fmt: skip


@pytest.fixture
def filled(control: Any, database: str) -> str:
    fill(control, database)
    return database


def delays(telemetry: Telemetry) -> list[float]:
    """Of the retries; fails if one was declined."""
    events = telemetry.decisions.events
    assert all(isinstance(event, RetryScheduled) for event in events), events
    return [event.delay for event in events]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_rejected_command_is_repeated_five_times(
    name: str, side: Side, proxy: ReplicaSet, filled: str, instrument: Instrument
) -> None:
    telemetry = instrument(base_backoff_ms=1, max_backoff_ms=1, timeout_ms=20_000)
    sent = SentCommands()
    command, call, _ = COMMANDS[name]
    overload = Overload(command, times=5)
    proxy.inject(overload)
    call(side, side.client(proxy.uri, event_listeners=[sent])[filled])
    assert overload.injected == len(delays(telemetry)) == 5
    first = sent.named(command)[:6]
    assert len(first) == 6
    numbers = {None if each.get("txnNumber") is None else int(each["txnNumber"]) for each in first}
    assert len(numbers) == 1


ONCE = {"drop_index", "rename"}
"""These cannot be executed a second time."""


@pytest.mark.parametrize("name", [each for each in COMMANDS if each not in ONCE])
def test_the_options_of_the_client_gate_it(
    name: str, side: Side, proxy: ReplicaSet, filled: str, instrument: Instrument
) -> None:
    """Without an option that it needs the error is raised, and without the other it is repeated."""
    telemetry = instrument(base_backoff_ms=1)
    command, call, needs = COMMANDS[name]
    for option in ("retryReads", "retryWrites"):
        db = side.client(proxy.uri, **{option: False})[filled]
        telemetry.clear()
        proxy.inject(Overload(command))
        if needs in (option, BOTH):
            with pytest.raises(PyMongoError):
                call(side, db)
            assert [event.rule for event in telemetry.decisions.events] == [Rule.SWITCHED_OFF]
        else:
            call(side, db)
            assert len(delays(telemetry)) == 1


@pytest.mark.parametrize("strategy", ["fast_fail", "mongodb"])
def test_the_delays_grow_from_the_base_that_the_error_names(
    strategy: str, side: Side, proxy: ReplicaSet, filled: str, instrument: Instrument
) -> None:
    """``baseBackoffMS`` replaces the base of the configuration, which none would survive here."""
    telemetry = instrument(
        strategy=NAMED[strategy], base_backoff_ms=60_000, max_backoff_ms=60_000, timeout_ms=20_000
    )
    proxy.inject(Overload("insert", times=5, base_backoff=0.002))
    side.do(side.client(proxy.uri)[filled].coll.insert_one, {})
    made = delays(telemetry)
    assert len(made) == 5
    assert all(0 <= delay < 0.002 * 2**number for number, delay in enumerate(made, 1))


def test_a_read_is_repeated_after_what_a_router_or_a_newer_server_says(
    side: Side, proxy: ReplicaSet, filled: str, instrument: Instrument
) -> None:
    """473 has the label of overload alone."""
    telemetry = instrument(base_backoff_ms=1, retry_budget="off")
    coll = side.client(proxy.uri)[filled].coll
    codes = (90, 133, 175, 202, 407, 453)
    faults = [Fail("find", code=code) for code in codes]
    for fault in (*faults, Overload("find", code=462), Overload("find", code=473)):
        telemetry.clear()
        proxy.inject(fault)
        assert side.do(coll.find_one)
        assert len(delays(telemetry)) == 1
