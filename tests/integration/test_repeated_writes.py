"""The control on which every ledger stands: which repeated write the server knows again.

A command with an (lsid, txnNumber) that was executed before must be answered and not executed. Only
where that is proven here does a document that is there twice tell of a mistake of the client's.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from bson import Int64
from pymongo import MongoClient
from support.raw_client import ask, new_session

from pymongo_resilience.testbed import Election, ReplicaSet

Document = dict[str, Any]

SEED: list[Document] = [{"_id": number, "kind": "seed"} for number in range(4)]
INC = {"$inc": {"n": 1}}
COMMANDS: dict[str, Document] = {
    # Documents without an _id: executed once more, each would be there once more.
    "insert one": {"insert": "coll", "documents": [{}]},
    "insert many": {"insert": "coll", "documents": [{}, {}, {}]},
    "insert many unordered": {"insert": "coll", "documents": [{}, {}], "ordered": False},
    "update": {"update": "coll", "updates": [{"q": {"_id": 0}, "u": INC}]},
    "update, several statements": {
        "update": "coll",
        "updates": [{"q": {"_id": 0}, "u": INC}, {"q": {"_id": 1}, "u": INC}],
    },
    "update, upsert": {
        "update": "coll",
        "updates": [{"q": {"_id": "new"}, "u": INC, "upsert": True}],
    },
    "update, pipeline": {
        "update": "coll",
        "updates": [{"q": {"_id": 0}, "u": [{"$set": {"kind": {"$concat": ["$kind", "+"]}}}]}],
    },
    # One of four documents that match: executed once more, another one would be gone.
    "delete": {"delete": "coll", "deletes": [{"q": {"kind": "seed"}, "limit": 1}]},
    "delete, several statements": {
        "delete": "coll",
        "deletes": [{"q": {"kind": "seed"}, "limit": 1}, {"q": {"kind": "seed"}, "limit": 1}],
    },
    "findAndModify, update": {"findAndModify": "coll", "query": {"_id": 0}, "update": INC},
    "findAndModify, upsert": {
        "findAndModify": "coll",
        "query": {"_id": "new"},
        "update": INC,
        "upsert": True,
        "new": True,
    },
    "findAndModify, remove": {
        "findAndModify": "coll",
        "query": {"kind": "seed"},
        "remove": True,
    },
}
RESULT = ("ok", "n", "nModified", "upserted", "value", "lastErrorObject")


@pytest.fixture
def documents(control: MongoClient[Any], database: str) -> Callable[[], list[Document]]:
    """What is in the collection, read past all members; four documents at first."""
    control[database].coll.insert_many(SEED)
    return lambda: sorted(control[database].coll.find(), key=lambda each: str(each["_id"]))


def result(reply: Document) -> Document:
    return {name: reply[name] for name in RESULT if name in reply}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_repeat_is_answered_and_not_executed(
    replica_set: ReplicaSet, database: str, documents: Callable[[], list[Document]], name: str
) -> None:
    command = {**COMMANDS[name], "$db": database, "lsid": new_session()}
    before = documents()
    first = result(ask(replica_set.address, {**command, "txnNumber": Int64(1)}))
    once = documents()
    assert once != before

    again = {**command, "txnNumber": Int64(1)}
    assert result(ask(replica_set.address, again)) == first
    # Under a deadline every attempt carries what is left of it.
    for limit in (5000, 4000):
        assert result(ask(replica_set.address, {**again, "maxTimeMS": limit})) == first
    replica_set.inject(Election(gap=0.01)).result(5)
    assert replica_set.primary is not None
    assert result(ask(replica_set.primary.address, again)) == first
    assert documents() == once

    # A new number is a new write: what was compared would have shown an execution.
    ask(replica_set.primary.address, {**command, "txnNumber": Int64(2)})
    assert documents() != once


@pytest.mark.parametrize("name", ["insert one", "update", "delete", "findAndModify, remove"])
def test_repeats_side_by_side_are_executed_once(
    replica_set: ReplicaSet, database: str, documents: Callable[[], list[Document]], name: str
) -> None:
    sessions, attempts = 10, 4
    if COMMANDS[name].get("remove") or "delete" in COMMANDS[name]:
        sessions = len(SEED) // 2
    before = documents()

    def attempt(lsid: Document) -> Document:
        body = {**COMMANDS[name], "$db": database, "lsid": lsid, "txnNumber": Int64(1)}
        return result(ask(replica_set.address, body))

    with ThreadPoolExecutor(attempts) as pool:
        for _ in range(sessions):
            replies = list(pool.map(attempt, [new_session()] * attempts))
            assert replies == replies[:1] * attempts
    after = documents()
    effects = abs(len(after) - len(before)) + sum(each.get("n", 0) for each in after)
    assert effects == sessions


def begin(replica_set: ReplicaSet, database: str) -> Document:
    """The envelope of a transaction that has inserted one document and counted in another."""
    envelope: Document = {"lsid": new_session(), "txnNumber": Int64(1), "autocommit": False}
    insert = {**COMMANDS["insert one"], "$db": database, "startTransaction": True}
    assert ask(replica_set.address, {**insert, **envelope})["ok"] == 1
    update = {**COMMANDS["update"], "$db": database}
    assert ask(replica_set.address, {**update, **envelope})["nModified"] == 1
    return envelope


def test_a_repeated_commit_is_answered_and_commits_once(
    replica_set: ReplicaSet, database: str, documents: Callable[[], list[Document]]
) -> None:
    envelope = begin(replica_set, database)
    assert documents() == SEED
    commit = {"commitTransaction": 1, **envelope}
    assert ask(replica_set.address, commit)["ok"] == 1
    once = documents()
    assert (len(once), once[0]["n"]) == (len(SEED) + 1, 1)

    assert ask(replica_set.address, {**commit, "maxTimeMS": 4000})["ok"] == 1
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda _: ask(replica_set.address, commit), range(4)))
    assert [reply["ok"] for reply in replies] == [1] * 4
    replica_set.inject(Election(gap=0.01)).result(5)
    assert replica_set.primary is not None
    assert ask(replica_set.primary.address, commit)["ok"] == 1
    assert documents() == once
    abort = ask(replica_set.primary.address, {"abortTransaction": 1, **envelope})
    assert abort["codeName"] == "TransactionCommitted"


def test_a_number_older_than_the_last_one_is_too_old(
    replica_set: ReplicaSet, database: str, documents: Callable[[], list[Document]]
) -> None:
    command = {**COMMANDS["insert one"], "$db": database, "lsid": new_session()}
    assert ask(replica_set.address, {**command, "txnNumber": Int64(2)})["ok"] == 1
    once = documents()
    reply = ask(replica_set.address, {**command, "txnNumber": Int64(1)})
    assert (reply["code"], reply["codeName"]) == (225, "TransactionTooOld")
    assert documents() == once


def test_a_number_that_another_write_has_is_refused(
    replica_set: ReplicaSet, database: str, documents: Callable[[], list[Document]]
) -> None:
    """mongod would answer with the record of the other write: this one would be lost, unseen."""
    envelope = {"$db": database, "lsid": new_session(), "txnNumber": Int64(1)}
    assert ask(replica_set.address, {**COMMANDS["insert one"], **envelope})["ok"] == 1
    once = documents()
    reply = ask(replica_set.address, {**COMMANDS["delete"], **envelope})
    assert (reply["code"], reply["codeName"]) == (20, "IllegalOperation")
    assert documents() == once


def test_repeats_are_counted(replica_set: ReplicaSet, database: str) -> None:
    envelope = {"$db": database, "lsid": new_session(), "txnNumber": Int64(1)}
    for _ in range(3):
        assert ask(replica_set.address, {**COMMANDS["insert one"], **envelope})["ok"] == 1
    assert replica_set.repeats == 2
