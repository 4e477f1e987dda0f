"""What the test bed answers, held to what a real mongod 4.4.4 answered.

The table has the facts of each kind of reply: command, code, code name, labels, the codes in
``writeErrors`` and in ``writeConcernError``. Each is provoked on the test bed, by itself or by the
fault that stands for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from bson import Int64
from support.raw_client import RawClient, new_session

from pymongo_resilience.testbed import (
    Election,
    EmbeddedServer,
    Fail,
    FailStatement,
    FailWriteConcern,
    ReplicaSet,
)

AGAIN = ("RetryableWriteError",)
WHOLE = ("TransientTransactionError",)
NAMES = {
    91: "ShutdownInProgress",
    112: "WriteConflict",
    189: "PrimarySteppedDown",
    251: "NoSuchTransaction",
    10107: "NotWritablePrimary",
    11600: "InterruptedAtShutdown",
}
STATEMENTS: dict[str, dict[str, Any]] = {
    "update": {"updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}]},
    "insert": {"documents": [{"_id": 9}]},
    "delete": {"deletes": [{"q": {"_id": 1}, "limit": 1}]},
    "findAndModify": {"query": {"_id": 1}, "update": {"$inc": {"n": 1}}},
}


class Facts(NamedTuple):
    command: str
    code: int | None = None
    name: str | None = None
    labels: tuple[str, ...] = ()
    write_errors: tuple[int, ...] = ()
    write_concern: int | None = None


def facts(command: str, reply: dict[str, Any]) -> Facts:
    concern = reply.get("writeConcernError", {})
    inside = tuple(each["code"] for each in reply.get("writeErrors", ()))
    labels = tuple(reply.get("errorLabels", ()))
    code, name = reply.get("code"), reply.get("codeName")
    return Facts(command, code, name, labels, inside, concern.get("code"))


class Bed:
    """A connection to the primary of the test bed, and a collection with some documents."""

    def __init__(self, replica_set: ReplicaSet, client: RawClient, database: str) -> None:
        self.replica_set = replica_set
        self.client = client
        self.database = database
        self.session = new_session()
        for name in ("c", "l"):
            self.ask({"insert": name, "documents": [{"_id": each} for each in range(1, 9)]})

    def ask(self, body: dict[str, Any], **more: Any) -> dict[str, Any]:
        return self.client.ask({**body, "$db": self.database, **more})

    def write(self, command: str, **more: Any) -> dict[str, Any]:
        numbered = {"lsid": self.session, "txnNumber": Int64(1)}
        return self.ask({command: "c", **STATEMENTS[command]}, **{**numbered, **more})

    def cursor(self, name: str = "c", **more: Any) -> dict[str, Any]:
        number = self.ask({"find": name, "batchSize": 2, **more})["cursor"]["id"]
        return {"getMore": number, "collection": name, "batchSize": 2}

    def begin(self, session: Any = None, number: int = 1) -> dict[str, Any]:
        transaction = {
            "lsid": session or self.session,
            "txnNumber": Int64(number),
            "autocommit": False,
        }
        body = {"update": "c", **STATEMENTS["update"], "startTransaction": True}
        self.last = self.ask(body, **transaction)
        return transaction

    def end(self, command: str, transaction: dict[str, Any], **more: Any) -> dict[str, Any]:
        return self.client.ask({command: 1, **transaction, **more, "$db": "admin"})


@pytest.fixture
def bed(replica_set: ReplicaSet, database: str) -> Iterator[Bed]:
    assert replica_set.primary is not None
    with RawClient(replica_set.primary.address) as client:
        yield Bed(replica_set, client, database)


def bounded(**more: Any) -> Callable[[Bed], Any]:
    return lambda bed: bed.ask({"find": "c", "hint": {"_id": 1}, "sort": {"_id": 1}, **more})


def lost_cursor(bed: Bed) -> Any:
    rest = bed.cursor()
    bed.ask({"killCursors": "c", "cursors": [rest["getMore"]]})
    return bed.ask(rest)


def no_transaction(command: str) -> Callable[[Bed], Any]:
    def provoke(bed: Bed) -> Any:
        transaction = bed.begin()
        bed.end("abortTransaction", transaction)
        return bed.end(command, transaction)

    return provoke


def conflict(bed: Bed) -> Any:
    bed.begin()
    bed.begin(new_session())
    return bed.last


def in_a_gap(command: str) -> Callable[[Bed], Any]:
    def provoke(bed: Bed) -> Any:
        bed.replica_set.inject(Election(gap=30.0))
        return bed.write(command)

    return provoke


def struck(fault: Any) -> Callable[[Bed], Any]:
    """By the fault that stands for it."""

    def provoke(bed: Bed) -> Any:
        command = fault()._command
        if command == "commitTransaction":
            transaction = bed.begin()
            bed.replica_set.inject(fault())
            return bed.end(command, transaction)
        bed.replica_set.inject(fault())
        return bed.write(command)

    return provoke


def duplicate(bed: Bed) -> Any:
    return bed.ask(
        {"insert": "c", "documents": [{"_id": 1}], "lsid": bed.session, "txnNumber": Int64(1)}
    )


def fails(command: str, code: int, labels: tuple[str, ...] = ()) -> tuple[Facts, Any]:
    name = NAMES[code]
    made = lambda: Fail(command, code=code, name=name, labels=labels)  # noqa: E731 - two lines less
    return Facts(command, code, name, labels), struck(made)


def concerns(command: str, code: int, labels: tuple[str, ...] = ()) -> tuple[Facts, Any]:
    made = lambda: FailWriteConcern(command, code=code, labels=labels)  # noqa: E731 - as above
    return Facts(command, labels=labels, write_concern=code), struck(made)


def statement(command: str, code: int) -> tuple[Facts, Any]:
    return Facts(command, write_errors=(code,)), struck(lambda: FailStatement(command, code=code))


STEPPED_DOWN = (189, 10107, 11602)
REPLIES: dict[Facts, Callable[[Bed], Any]] = dict([
    (Facts("getMore", 43, "CursorNotFound"), lost_cursor),
    (Facts("find", 51174, "Location51174"), bounded(min={"x": 1})),
    (Facts("find", 2, "BadValue"), bounded(filter={"$bad": 1})),
    (Facts("abortTransaction", 251, NAMES[251], WHOLE), no_transaction("abortTransaction")),
    (Facts("commitTransaction", 251, NAMES[251], WHOLE), no_transaction("commitTransaction")),
    (Facts("update", 112, NAMES[112], WHOLE), conflict),
    (Facts("update", 10107, NAMES[10107], AGAIN), in_a_gap("update")),
    (Facts("insert", 10107, NAMES[10107], AGAIN), in_a_gap("insert")),
    (Facts("insert", write_errors=(11000,)), duplicate),
    (Facts("insert"), lambda bed: bed.write("insert")),
    fails("commitTransaction", 91, AGAIN),
    fails("commitTransaction", 112, WHOLE),
    fails("update", 11600, AGAIN),
    fails("findAndModify", 189, AGAIN),
    fails("findAndModify", 112),
    concerns("commitTransaction", 64),
    concerns("update", 10107, AGAIN),
    concerns("insert", 11602, AGAIN),
    statement("update", 112),
    statement("insert", 189),
])  # fmt: skip


@pytest.mark.parametrize("wanted", REPLIES, ids=lambda each: "-".join(map(str, each[:4])))
def test_it_answers_as_mongod(wanted: Facts, bed: Bed) -> None:
    reply = REPLIES[wanted](bed)
    assert facts(wanted.command, reply) == wanted
    codes = {wanted.code, wanted.write_concern}
    if wanted.labels == AGAIN and not codes.isdisjoint(STEPPED_DOWN):
        assert "topologyVersion" in reply


def test_a_server_with_access_control_answers_as_mongod() -> None:
    with (
        EmbeddedServer(user="root", password="root") as server,
        ReplicaSet(server.address, members=1) as locked,
        RawClient(locked.address) as client,
    ):
        for command in ("listCollections", "update", "delete"):
            body = {command: "c", **STATEMENTS.get(command, {}), "$db": "shop"}
            assert facts(command, client.ask(body)) == Facts(command, 13, "Unauthorized")
