"""Plain pymongo behind faults of single commands: what it sees, and what the server stored."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from pymongo import InsertOne, MongoClient, UpdateOne, WriteConcern
from support.clients import SentCommands, wait_until

from pymongo_resilience.testbed import CutAfter, CutAtHandshake, EmbeddedServer, ReplicaSet

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
