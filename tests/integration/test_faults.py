"""Plain pymongo behind faults of single commands: what it sees, and what the server stored."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from pymongo import InsertOne, MongoClient, UpdateOne, WriteConcern
from pymongo.errors import AutoReconnect, NotPrimaryError
from support.clients import SentCommands, wait_until

from pymongo_resilience.testbed import (
    CutAfter,
    CutAtHandshake,
    CutBefore,
    Election,
    EmbeddedServer,
    NotPrimary,
    ReplicaSet,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pymongo.collection import Collection

IDLE_MS = 50


@pytest.fixture
def client(proxy: ReplicaSet) -> Iterator[MongoClient[dict[str, Any]]]:
    with MongoClient[dict[str, Any]](proxy.uri, maxIdleTimeMS=IDLE_MS) as connected:
        yield connected


@pytest.fixture
def orders(
    client: MongoClient[dict[str, Any]], request: pytest.FixtureRequest
) -> Collection[dict[str, Any]]:
    collection = client.testbed[request.node.name]
    collection.insert_one({"warm": True})
    return collection


def stored(server: EmbeddedServer, orders: Collection[dict[str, Any]]) -> int:
    """Documents of a test, without the warming one, read past the proxy."""
    with MongoClient[dict[str, Any]](server.uri) as direct:
        return direct.testbed[orders.name].count_documents({"warm": {"$exists": False}})


def let_connections_age() -> None:
    """Make the pool open a new connection for the next operation."""
    time.sleep(2 * IDLE_MS / 1000)


def test_a_client_sees_the_proxy_and_not_the_server(
    proxy: ReplicaSet, client: MongoClient[dict[str, Any]]
) -> None:
    hello = client.admin.command("hello")
    address = "{}:{}".format(*proxy.address)
    assert (hello["hosts"], hello["me"], hello["primary"]) == ([address], address, address)
    assert hello["setName"] == "rs0"
    assert hello["topologyVersion"]["counter"] == 1
    assert client.nodes == {proxy.address}


def test_cut_before_leaves_no_trace_of_the_command(
    server: EmbeddedServer, proxy: ReplicaSet, orders: Collection[dict[str, Any]]
) -> None:
    fault = CutBefore("insert", times=2)
    proxy.inject(fault)
    with pytest.raises(AutoReconnect):
        orders.insert_one({})
    assert fault.injected == 2
    assert stored(server, orders) == 0


def test_cut_after_leaves_the_command_executed_once(
    server: EmbeddedServer, proxy: ReplicaSet, orders: Collection[dict[str, Any]]
) -> None:
    fault = CutAfter("insert", times=2)
    proxy.inject(fault)
    with pytest.raises(AutoReconnect):
        orders.insert_one({})
    assert fault.injected == 2
    assert stored(server, orders) == 1


def test_a_cut_aims_at_the_command_it_names(
    proxy: ReplicaSet, orders: Collection[dict[str, Any]]
) -> None:
    fault = CutAfter("update")
    proxy.inject(fault)
    result = orders.bulk_write(
        [InsertOne({}), UpdateOne({"_id": 1}, {"$inc": {"n": 1}}, upsert=True), InsertOne({})]
    )
    assert (result.inserted_count, result.upserted_count, fault.injected) == (2, 1, 1)
    assert (orders.find_one({"_id": 1}) or {})["n"] == 1


def test_not_primary_carries_the_label_and_executes_nothing(
    server: EmbeddedServer, proxy: ReplicaSet, orders: Collection[dict[str, Any]]
) -> None:
    proxy.inject(NotPrimary("insert", times=2))
    with pytest.raises(NotPrimaryError) as raised:
        orders.insert_one({})
    assert raised.value.has_error_label("RetryableWriteError")
    assert stored(server, orders) == 0


def test_a_step_down_is_a_gap_without_a_primary(
    server: EmbeddedServer, proxy: ReplicaSet, orders: Collection[dict[str, Any]]
) -> None:
    gap = 2.5
    fault = Election(gap)
    started = time.monotonic()
    proxy.inject(fault)
    # Plain pymongo sends a write without a transaction number, and raises, if it hears of the
    # step-down between selecting the server and sending.
    wait_until(lambda: not orders.database.client.topology_description.has_writable_server())
    orders.insert_one({})
    assert time.monotonic() - started >= gap
    assert fault.injected == 1
    assert stored(server, orders) == 1


def test_cursors_and_large_batches_pass_unchanged(
    server: EmbeddedServer, proxy: ReplicaSet, orders: Collection[dict[str, Any]]
) -> None:
    documents = [{"n": n, "text": "x" * 1000} for n in range(500)]
    orders.insert_many(documents)
    found = orders.find({"n": {"$exists": True}}, batch_size=100).sort("n").to_list()
    assert found == documents


def test_an_unacknowledged_write_waits_for_no_reply(
    server: EmbeddedServer, proxy: ReplicaSet, orders: Collection[dict[str, Any]]
) -> None:
    unacknowledged = orders.with_options(write_concern=WriteConcern(w=0))
    unacknowledged.insert_one({})
    wait_until(lambda: stored(server, orders) == 1)


def test_pymongo_loses_writes_of_a_mixed_bulk_behind_a_cut_handshake(
    server: EmbeddedServer, proxy: ReplicaSet
) -> None:
    """The defect of pymongo 4.20.0 that the demonstration shows; fails when it is mended."""
    sent = SentCommands()
    with MongoClient[dict[str, Any]](
        proxy.uri, maxIdleTimeMS=IDLE_MS, event_listeners=[sent]
    ) as client:
        orders = client.testbed.mixed_bulk
        orders.insert_one({"warm": True})
        let_connections_age()
        sent.started_events.clear()
        proxy.inject(CutAtHandshake())
        orders.bulk_write(
            [InsertOne({}), UpdateOne({"warm": True}, {"$set": {"n": 1}}), InsertOne({})]
        )
        assert [event.command_name for event in sent.started_events] == ["insert"]
        assert stored(server, orders) == 1
