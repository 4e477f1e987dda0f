"""What a deployment is to a client: its hellos, awaited ones too, and what its members execute."""

from __future__ import annotations

import socket
import struct
import time
from typing import Any

import bson
import pymongo
import pytest
from bson import Int64, ObjectId
from pymongo.errors import ConfigurationError, OperationFailure
from pymongo_resilience_instrumentation.tools.testbed import wire
from support.clients import Side
from support.raw_client import RawClient, ask
from support.transactions import run, session_of

from pymongo_resilience.testbed import (
    Deployment,
    Election,
    EmbeddedServer,
    ReplicaSet,
    ShardedCluster,
    Standalone,
)

Document = dict[str, Any]
HELLO: Document = {"hello": 1}


def names(deployment: Deployment) -> list[str]:
    return [member.host_and_port for member in deployment.members]


# What hello says


def test_members_of_a_replica_set_introduce_themselves(replica_set: ReplicaSet) -> None:
    hosts = names(replica_set)
    assert len(set(hosts)) == 3
    for index, member in enumerate(replica_set.members):
        hello = ask(member.address, HELLO)
        assert hello["setName"] == "rs0"
        assert hello["setVersion"] == 1
        assert hello["hosts"] == hosts
        assert hello["me"] == hosts[index]
        assert hello["primary"] == hosts[0]
        assert hello["isWritablePrimary"] is (index == 0)
        assert hello["secondary"] is (index != 0)
        assert hello["tags"] == {"member": str(index)}
        assert ("electionId" in hello) is (index == 0)
        assert abs(hello["lastWrite"]["lastWriteDate"].timestamp() - time.time()) < 60
        assert hello["topologyVersion"]["counter"] == 1
        assert "compression" not in hello
        assert "msg" not in hello


def test_a_gap_has_no_primary_and_a_new_term_has_a_greater_election_id(
    replica_set: ReplicaSet,
) -> None:
    before = ask(replica_set.address, HELLO)
    replica_set.inject(Election(60))
    for member in replica_set.members:
        hello = ask(member.address, HELLO)
        assert (hello["isWritablePrimary"], hello["secondary"]) == (False, True)
        assert not {"primary", "electionId"} & hello.keys()
        assert hello["topologyVersion"]["counter"] == 2
    replica_set.clear()
    after = ask(replica_set.members[1].address, HELLO)
    assert after["primary"] == after["me"] == names(replica_set)[1]
    assert after["electionId"] > before["electionId"]
    assert ask(replica_set.address, HELLO)["primary"] == after["me"]


REPLICATION = {
    *("arbiters", "electionId", "hosts", "lastWrite", "me", "passives"),
    *("primary", "secondary", "setName", "setVersion", "tags"),
}


@pytest.mark.parametrize("name", ["isMaster", "ping"])
def test_a_query_is_answered_by_a_reply_of_its_kind(proxy: ReplicaSet, name: str) -> None:
    """A mongod finds itself in its set by ``_isSelf``, which it sends as a query."""
    body = b"\0\0\0\0admin.$cmd\0" + struct.pack("<ii", 0, -1) + bson.encode({name: 1})
    header = struct.pack("<iiii", 16 + len(body), 7, 0, wire.OP_QUERY)
    with socket.create_connection(proxy.address, timeout=5) as connection:
        connection.sendall(header + body)
        reply = connection.makefile("rb").read(36)
    _, _, response_to, opcode = struct.unpack_from("<iiii", reply)
    assert (response_to, opcode) == (7, wire.OP_REPLY)


def test_routers_and_a_standalone_tell_of_no_replication(
    server: EmbeddedServer, cluster: ShardedCluster
) -> None:
    assert len(set(names(cluster))) == 2
    for member in cluster.members:
        hello = ask(member.address, HELLO)
        assert (hello["msg"], hello["isWritablePrimary"]) == ("isdbgrid", True)
        assert not REPLICATION & hello.keys()
    with Standalone(server.address) as standalone:
        hello = ask(standalone.address, HELLO)
        assert hello["isWritablePrimary"] is True
        assert not (REPLICATION | {"msg"}) & hello.keys()
        assert {"topologyVersion", "maxWireVersion"} <= hello.keys()


# Awaiting a hello


def test_an_awaited_hello_waits_for_its_time_or_for_news(replica_set: ReplicaSet) -> None:
    with RawClient(replica_set.members[2].address) as client:
        known = client.ask(HELLO)["topologyVersion"]
        awaiting = {**HELLO, "topologyVersion": known, "maxAwaitTimeMS": 150}
        started = time.monotonic()
        assert client.ask(awaiting)["topologyVersion"] == known
        assert 0.15 <= time.monotonic() - started < 5

        started = time.monotonic()
        client.send({**awaiting, "maxAwaitTimeMS": 10_000})
        replica_set.inject(Election(60))
        reply = client.receive()
        assert time.monotonic() - started < 5
        assert not reply.more_to_come
        news = reply.body["topologyVersion"]
        assert (news["processId"], news["counter"]) == (known["processId"], known["counter"] + 1)

        # What the client knows is no longer true, or of another process: no wait.
        for stale in (known, {"processId": ObjectId(), "counter": Int64(99)}):
            asked = {**HELLO, "topologyVersion": stale, "maxAwaitTimeMS": 10_000}
            assert client.ask(asked)["topologyVersion"] == news
        assert time.monotonic() - started < 5


# What secondaries, routers and a standalone execute, and what they refuse


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


def test_a_standalone_refuses_transaction_numbers(
    side: Side, server: EmbeddedServer, database: str
) -> None:
    with Standalone(server.address) as standalone:
        insert = {"insert": "coll", "documents": [{}], "$db": database, "txnNumber": Int64(1)}
        reply = ask(standalone.address, insert)
        assert (reply["code"], reply["codeName"]) == (20, "IllegalOperation")

        client = side.client(standalone.uri)
        with session_of(side, client) as session:
            with pytest.raises((OperationFailure, ConfigurationError)):
                run(side, session, lambda s: client[database].coll.insert_one({}, session=s))
        side.do(client[database].coll.insert_one, {"_id": 1})
        assert side.documents(client[database].coll.find()) == [{"_id": 1}]
        side.do(client.close)
