"""Transactions and cursors through a deployment, and what failovers do to them."""

from __future__ import annotations

from typing import Any

import pymongo
import pytest
from bson import Int64
from pymongo.errors import CursorNotFound, NotPrimaryError, OperationFailure
from pymongo.read_preferences import Secondary
from support.clients import SentCommands, Side
from support.raw_client import ask, new_session

from pymongo_resilience.testbed import Election, ReplicaSet, Restart, ShardedCluster

Document = dict[str, Any]
TRANSIENT = "TransientTransactionError"


@pytest.fixture
def stored(control: pymongo.MongoClient[Any], database: str) -> Any:
    """The identifiers in the collection, read past all members; one document at first."""
    control[database].coll.insert_one({"_id": 0, "n": 0})
    return lambda: sorted(each["_id"] for each in control[database].coll.find())


def begun(side: Side, client: Any, database: str) -> Any:
    """A session whose transaction has inserted a document with the identifier 1."""
    session = client.start_session()
    side.do(session.start_transaction)
    side.do(client[database].coll.insert_one, {"_id": 1}, session=session)
    return session


def test_an_election_aborts_an_open_transaction(
    side: Side, replica_set: ReplicaSet, database: str, stored: Any
) -> None:
    client = side.client(replica_set.uri)
    coll = client[database].coll
    session = begun(side, client, database)
    replica_set.inject(Election(60))
    with pytest.raises(NotPrimaryError) as in_the_gap:
        side.do(coll.insert_one, {"_id": 2}, session=session)
    assert in_the_gap.value.has_error_label(TRANSIENT)
    replica_set.clear()
    for work, arguments in [
        (coll.insert_one, {"document": {"_id": 2}, "session": session}),
        (session.commit_transaction, {}),
    ]:
        with pytest.raises(OperationFailure) as afterwards:
            side.do(work, **arguments)
        assert (afterwards.value.code, afterwards.value.has_error_label(TRANSIENT)) == (251, True)
    side.do(session.end_session)
    assert stored() == [0]
    # Aborted, and not merely forgotten: what it had inserted can be inserted.
    side.do(coll.insert_one, {"_id": 1})
    side.do(client.close)


def test_another_router_commits_what_a_recovery_token_names(
    cluster: ShardedCluster, database: str, stored: Any
) -> None:
    envelope: Document = {"lsid": new_session(), "txnNumber": Int64(1), "autocommit": False}
    insert = {"insert": "coll", "documents": [{"_id": 1}], "$db": database}
    first, second = (member.address for member in cluster.members)
    assert ask(first, {**insert, **envelope, "startTransaction": True})["ok"] == 1
    commit = {"commitTransaction": 1, **envelope, "recoveryToken": {"recoveryShardId": "shard0"}}
    assert stored() == [0]
    assert ask(second, commit)["ok"] == 1
    assert stored() == [0, 1]


@pytest.fixture
def many(control: pymongo.MongoClient[Any], database: str) -> list[Document]:
    documents = [{"_id": number} for number in range(50)]
    control[database].coll.insert_many(documents)
    return documents


def test_a_cursor_lives_on_its_member_until_that_restarts(
    side: Side, replica_set: ReplicaSet, database: str, many: list[Document]
) -> None:
    sent = SentCommands()
    client = side.client(replica_set.uri, event_listeners=[sent])
    preference = Secondary(tag_sets=[{"member": "2"}])
    coll = client[database].get_collection("coll", read_preference=preference)
    assert side.documents(coll.find(batch_size=10)) == many
    events = [event for event in sent.started_events if event.command_name in {"find", "getMore"}]
    assert len(events) > 4
    assert {event.connection_id for event in events} == {replica_set.members[2].address}

    cursor = coll.find(batch_size=10)
    first = [side.do(cursor.next) for _ in range(10)]
    assert first == many[:10]
    elsewhere = {"getMore": cursor.cursor_id, "collection": "coll", "$db": database}
    assert ask(replica_set.members[1].address, elsewhere)["codeName"] == "CursorNotFound"
    # Who has not opened it does not close it: the cursor goes on.
    assert [side.do(cursor.next) for _ in range(10)] == many[10:20]

    replica_set.inject(Restart(0.05), on=2).result(5)
    side.do(coll.find_one)  # is repeated, and so leaves a connection that works
    with pytest.raises(CursorNotFound) as raised:
        side.do(cursor.next)
    assert raised.value.code == 43
    assert side.documents(coll.find(batch_size=10)) == many
    side.do(client.close)
