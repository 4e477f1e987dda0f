"""Every attempt of a retryable write carries one txnNumber: applied once, however often sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pymongo
import pytest
from pymongo import InsertOne, UpdateOne
from support.clients import SentCommands, Side
from support.servers import cases
from support.telemetry import Instrument

from pymongo_resilience.errors import RetryReason
from pymongo_resilience.events import RetryScheduled
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import CutAfter, CutAtHandshake, CutBefore, Election, ReplicaSet

pytestmark = pytest.mark.oldest


INC = {"$inc": {"n": 1}}
ONCE = {"_id": 1, "n": 1}
WRITES: dict[str, tuple[str, Callable[[Any], tuple[Any, ...]]]] = {
    "insert_one": ("insert", lambda coll: (coll.insert_one, ONCE)),
    "insert_many": ("insert", lambda coll: (coll.insert_many, [ONCE])),
    "bulk_write": ("insert", lambda coll: (coll.bulk_write, [InsertOne(ONCE)])),
    "update_one": ("update", lambda coll: (coll.update_one, {"_id": 1}, INC)),
    "findAndModify": ("findAndModify", lambda coll: (coll.find_one_and_update, {"_id": 1}, INC)),
    # The embedded server does not recognise the repetition of this one.
    "client bulk_write": (
        "bulkWrite",
        lambda coll: (
            coll.database.client.bulk_write,
            [UpdateOne({"_id": 1}, {"$set": {"n": 1}}, namespace=coll.full_name)],
        ),
    ),
}


@pytest.mark.parametrize("method", cases(WRITES, {"client bulk_write": "8.0"}))
@pytest.mark.parametrize("fault", [CutBefore, CutAfter])
def test_after_four_failures_it_is_applied_once_and_had_one_txn_number(
    side: Side, method: str, fault: Any, proxy: ReplicaSet, database: str, control: Any,
    sent: SentCommands, instrument: Instrument,
) -> None:  # fmt: skip
    telemetry = instrument(timeout_ms=20_000)
    client = side.client(proxy.uri, event_listeners=[sent])
    command, call = WRITES[method]
    if command != "insert":
        control[database].coll.insert_one({"_id": 1, "n": 0})
    proxy.inject(fault(command, times=4))
    side.do(*call(client[database].coll))

    assert list(control[database].coll.find()) == [ONCE]
    commands = sent.named(command)
    assert len(commands) == 5
    assert len({int(command["txnNumber"]) for command in commands}) == 1
    assert len({command["lsid"]["id"] for command in commands}) == 1
    assert [event.reason for event in telemetry.decisions.events] == [
        RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT
    ] * 4


def _mixed() -> list[Any]:
    return [
        InsertOne({"_id": "first"}),
        UpdateOne({"_id": "first"}, {"$inc": {"n": 1}}),
        InsertOne({"_id": "last"}),
    ]


MIXED_RESULT = [{"_id": "first", "n": 1}, {"_id": "last"}]


def test_a_mixed_bulk_loses_nothing_when_it_fails_before_it_was_begun(
    side: Side, proxy: ReplicaSet, database: str, control: Any, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    # It polls: the second connection of a streaming monitor would be cut like the application's.
    client = side.client(proxy.uri, serverMonitoringMode="poll")
    side.do(client.admin.command, "ping")
    proxy.inject(CutBefore("ping"))
    with pytest.raises(pymongo.errors.AutoReconnect):
        side.do(client.admin.command, "ping")
    # The monitor's connection was closed, too: the next handshake that is cut must not be its own.
    side.wait_until(lambda: client.nodes)
    proxy.inject(CutAtHandshake())
    telemetry.clear()
    result = side.do(client[database].coll.bulk_write, _mixed())
    # From 4.18 on the driver itself puts the overload labels on a handshake that was cut.
    assert len(telemetry.decisions.events) == 1
    assert telemetry.decisions.events[0].reason in {
        RetryReason.OVERLOADED,
        RetryReason.SOCKET_NOT_AVAILABLE,
    }
    assert (result.inserted_count, result.modified_count) == (2, 1)
    assert list(control[database].coll.find(sort=[("_id", 1)])) == MIXED_RESULT


@pytest.mark.parametrize("cut", [["insert"], ["update"], ["insert", "update"]], ids=str)
def test_a_mixed_bulk_resumes_at_the_command_that_failed_and_each_has_its_own_retry(
    side: Side, cut: list[str], proxy: ReplicaSet, database: str, control: Any,
    sent: SentCommands, instrument: Instrument,
) -> None:  # fmt: skip
    telemetry = instrument()
    client = side.client(proxy.uri, event_listeners=[sent])
    side.do(client.admin.command, "ping")
    for command in cut:
        proxy.inject(CutAfter(command, times=1))
    side.do(client[database].coll.bulk_write, _mixed())
    assert list(control[database].coll.find(sort=[("_id", 1)])) == MIXED_RESULT
    assert [type(event) for event in telemetry.decisions.events] == [RetryScheduled] * len(cut)
    numbers = [int(command["txnNumber"]) for command in sent.named("insert", "update")]
    assert len(numbers) == 3 + len(cut)
    assert len(set(numbers)) == 3


@pytest.mark.parametrize("timeout_ms", [None, 20_000])
def test_a_write_sent_directly_to_a_secondary_gets_the_servers_own_answer(
    timeout_ms: int | None, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """Whoever connects to one server means that one: its type is no surprise to wait out."""
    telemetry = instrument(timeout_ms=timeout_ms)
    proxy.inject(Election(60))
    client = side.client(proxy.uri, directConnection=True)
    with pytest.raises(pymongo.errors.NotPrimaryError) as caught:
        side.do(client[database].coll.insert_one, {"_id": 1})
    assert type(caught.value) is pymongo.errors.NotPrimaryError
    assert caught.value.details["code"] == 10107
    assert [event.rule for event in telemetry.decisions.events] == [Rule.NOT_SAFE]
    proxy.clear()
    # And a database that a secondary takes writes for, like "local", can be written to.
    side.do(client[database].coll.insert_one, {"_id": 1})
