"""What secondaries, routers and a standalone execute, and what they refuse."""

from __future__ import annotations

from typing import Any

import pymongo
import pytest
from bson import Int64
from pymongo.errors import ConfigurationError, OperationFailure
from support.clients import SentCommands, Side, wait_until
from support.raw_client import ask

from pymongo_resilience.testbed import EmbeddedServer, ReplicaSet, ShardedCluster, Standalone

Document = dict[str, Any]
HELLO: Document = {"hello": 1}
WRITES: dict[str, Document] = {
    "insert": {"documents": [{}]},
    "update": {"updates": [{"q": {}, "u": {"$set": {"n": 1}}}]},
    "delete": {"deletes": [{"q": {}, "limit": 1}]},
    "findAndModify": {"query": {}, "remove": True},
    "create": {},
    "createIndexes": {"indexes": [{"key": {"n": 1}, "name": "n"}]},
    "drop": {},
}
READS: dict[str, Document] = {
    "find": {},
    "count": {},
    "distinct": {"key": "_id"},
    "aggregate": {"pipeline": [], "cursor": {}},
}


@pytest.mark.parametrize("name", WRITES)
def test_a_secondary_refuses_writes(
    replica_set: ReplicaSet, control: pymongo.MongoClient[Any], database: str, name: str
) -> None:
    control[database].coll.insert_one({"_id": 1})
    address = replica_set.members[1].address
    version = ask(address, HELLO)["topologyVersion"]
    command: Document = {name: "coll", **WRITES[name], "$db": database}
    retryable = {"txnNumber": Int64(1)}
    for more, labels in [
        ({}, None),
        (retryable, ["RetryableWriteError"]),
        ({**retryable, "autocommit": False}, ["TransientTransactionError"]),
    ]:
        reply = ask(address, {**command, **more})
        assert (reply["ok"], reply["code"]) == (0, 10107)
        assert reply["codeName"] == "NotWritablePrimary"
        assert reply.get("errorLabels") == labels
        # Nothing has changed: clients that know this version need not look again.
        assert reply["topologyVersion"] == version == ask(address, HELLO)["topologyVersion"]
    assert list(control[database].coll.find()) == [{"_id": 1}]
    assert list(control[database].coll.index_information()) == ["_id_"]


@pytest.mark.parametrize("name", ["commitTransaction", "abortTransaction"])
def test_a_secondary_refuses_to_end_transactions(replica_set: ReplicaSet, name: str) -> None:
    body = {name: 1, "txnNumber": Int64(1), "autocommit": False}
    reply = ask(replica_set.members[2].address, body)
    assert (reply["code"], reply["errorLabels"]) == (10107, ["RetryableWriteError"])


@pytest.mark.parametrize("name", READS)
def test_a_secondary_serves_reads_that_allow_it(
    replica_set: ReplicaSet, control: pymongo.MongoClient[Any], database: str, name: str
) -> None:
    control[database].coll.insert_one({"_id": 1})
    command: Document = {name: "coll", **READS[name], "$db": database}
    secondary = replica_set.members[1].address
    for preference in ({}, {"$readPreference": {"mode": "primary"}}):
        reply = ask(secondary, {**command, **preference})
        assert (reply["code"], reply["codeName"]) == (13435, "NotPrimaryNoSecondaryOk")
    for mode in ("secondary", "secondaryPreferred", "primaryPreferred", "nearest"):
        reply = ask(secondary, {**command, "$readPreference": {"mode": mode}})
        assert reply["ok"] == 1


def test_routers_share_the_work_and_the_data(
    side: Side, cluster: ShardedCluster, database: str
) -> None:
    sent = SentCommands()
    client = side.client(cluster.uri, event_listeners=[sent], localThresholdMS=1000)
    wait_until(lambda: side.do(client.admin.command, "ping") and len(client.nodes) == 2)
    for number in range(30):
        side.do(client[database].coll.insert_one, {"_id": number})
    inserts = [event for event in sent.started_events if event.command_name == "insert"]
    assert {event.connection_id for event in inserts} == {
        member.address for member in cluster.members
    }
    assert all("txnNumber" in event.command for event in inserts)
    assert side.do(client[database].coll.count_documents, {}) == 30
    side.do(client.close)


def test_a_standalone_refuses_transaction_numbers(
    side: Side, server: EmbeddedServer, database: str
) -> None:
    with Standalone(server.address) as standalone:
        insert = {"insert": "coll", "documents": [{}], "$db": database, "txnNumber": Int64(1)}
        reply = ask(standalone.address, insert)
        assert (reply["code"], reply["codeName"]) == (20, "IllegalOperation")

        client = side.client(standalone.uri)

        async def asynchronous() -> None:
            async with client.start_session() as session, await session.start_transaction():
                await client[database].coll.insert_one({}, session=session)

        def synchronous() -> None:
            with client.start_session() as session, session.start_transaction():
                client[database].coll.insert_one({}, session=session)

        with pytest.raises((OperationFailure, ConfigurationError)):
            side.do(synchronous if side.runner is None else asynchronous)
        side.do(client[database].coll.insert_one, {"_id": 1})
        assert side.documents(client[database].coll.find()) == [{"_id": 1}]
        side.do(client.close)
