"""Failures of every kind, each provoked with canaries in what the server or the driver quotes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import bson.errors
from bson import CodecOptions
from bson.codec_options import TypeRegistry
from pymongo import InsertOne, UpdateOne, errors
from support.canaries import MARK, NUMBER, document, text
from support.canary_operations import Operation
from support.every_operation import Scene
from support.servers import mongod_version


@dataclass(frozen=True)
class Failure:
    """What is done, and how the application learns that it failed."""

    call: Operation
    kind: type[BaseException]
    code: int | None = None
    quotes: bool = True
    """The application's error says a canary: there was something to leak."""


TAKEN = {"_id": text("a taken id")}
BAD = {"text": text("a bad document"), "state": text("no such state"), "number": NUMBER}
OPERATOR = {f"${MARK}": text("an operand")}
TO_INT = {"$toInt": {"$concat": ["$text", text("an expression")]}}


def prepare(p: Scene) -> None:
    """A document that is in the way, and a collection that refuses documents."""
    p.do(p.coll.insert_one, {**document("a document in the way"), **TAKEN})
    p.do(p.coll.create_index, "email", unique=True, sparse=True, name=f"{MARK}-unique")
    p.do(p.coll.insert_one, {"email": text("an address"), "number": 1})
    states = {"properties": {"state": {"enum": [text("a state"), NUMBER]}}}
    p.do(p.db.create_collection, "strict", validator={"$jsonSchema": states})
    p.do(p.db.strict.insert_one, {"_id": 1, "state": text("a state")})


def _twice_in_a_transaction(p: Scene) -> None:
    session = p.client.start_session()
    p.do(session.start_transaction)
    try:
        p.do(p.coll.insert_one, dict(TAKEN), session=session)
    finally:
        p.do(session.end_session)


def _read_from_a_killed_cursor(p: Scene) -> None:
    cursor = p.coll.find({"number": NUMBER}, batch_size=1, comment=text("a comment"))
    p.do(cursor.next)
    p.do(p.db.command, "killCursors", p.coll.name, cursors=[cursor.cursor_id])
    p.side.documents(cursor)


class Secret:
    """A value of the application that BSON does not know."""

    def __repr__(self) -> str:
        return text("an object's repr")


class ApplicationError(Exception):
    """With the field that the driver's errors have, and a canary in it."""

    code = NUMBER
    details = {"codeName": text("a code's name")}  # noqa: RUF012 - as the driver's errors have it


def _broken_source() -> Iterator[dict[str, Any]]:
    yield document("a source")
    raise ApplicationError(text("an application's error"))


def _refuse(value: Any) -> Any:
    raise ApplicationError(text("a codec's error"), value)


def _encoding(coll: Any) -> Any:
    """With a codec of the application, which runs inside of the driver's retry loop."""
    return coll.with_options(
        codec_options=CodecOptions(type_registry=TypeRegistry(fallback_encoder=_refuse))
    )


FAILURES = {
    "insert_one": Failure(
        lambda p: p.do(p.coll.insert_one, {"email": text("an address")}),
        errors.DuplicateKeyError, 11000,
    ),
    "bulk_write": Failure(
        lambda p: p.do(p.coll.bulk_write, [UpdateOne(TAKEN, {"$set": {"x": 1}}), InsertOne(TAKEN)]),
        errors.BulkWriteError, 65,
    ),
    "a client's bulk_write": Failure(
        lambda p: p.do(p.client.bulk_write, [InsertOne(TAKEN, namespace=p.coll.full_name)]),
        errors.ClientBulkWriteException, 65,
    ),
    "a transaction": Failure(_twice_in_a_transaction, errors.DuplicateKeyError, 11000),
    "an invalid document": Failure(
        lambda p: p.do(p.db.strict.insert_one, dict(BAD)), errors.WriteError, 121
    ),
    "$toInt": Failure(
        lambda p: p.all(p.do(p.coll.aggregate, [{"$project": {"x": TO_INT}}])),
        errors.OperationFailure, 241,
    ),
    "a database's pipeline": Failure(
        lambda p: p.all(p.do(p.db.aggregate, [{"$documents": [{"x": {"$toInt": MARK}}]}])),
        errors.OperationFailure, 241,
    ),
    "a filter": Failure(
        lambda p: p.do(p.coll.find_one, {"number": OPERATOR}), errors.OperationFailure, 2
    ),
    "an update": Failure(
        lambda p: p.do(p.coll.update_one, {}, {f"${MARK}": {"x": NUMBER}}), errors.WriteError, 9
    ),
    "a stage": Failure(
        lambda p: p.all(p.do(p.coll.aggregate, [OPERATOR])), errors.OperationFailure, 40324
    ),
    "a hint": Failure(
        lambda p: p.do(p.coll.find_one, {}, hint=text("a hint")), errors.OperationFailure, 2,
        quotes=(mongod_version() or ()) < (9,),  # MongoDB 9.0 does not quote it any more
    ),
    "an unknown command": Failure(
        lambda p: p.do(p.db.command, "noSuchCommand", text("a value"), also=NUMBER),
        errors.OperationFailure, 59, quotes=False,
    ),
    "a killed cursor": Failure(
        _read_from_a_killed_cursor, errors.CursorNotFound, 43, quotes=False
    ),
    "a transaction number that is none": Failure(
        lambda p: p.do(
            p.db.command, "aggregate", "coll",
            pipeline=[OPERATOR], cursor={}, txnNumber=text("a number"),
        ),
        errors.OperationFailure, 40324,
    ),
    "a value BSON does not know": Failure(
        lambda p: p.do(p.coll.insert_one, {"text": Secret()}), bson.errors.InvalidDocument
    ),
    "an update without operators": Failure(
        lambda p: p.do(p.coll.update_one, {}, {MARK: NUMBER}), ValueError, quotes=False
    ),
    "a replacement with operators": Failure(
        lambda p: p.do(p.coll.replace_one, {}, OPERATOR), ValueError, quotes=False
    ),
    "a bulk of something else": Failure(
        lambda p: p.do(p.coll.bulk_write, [text("no request")]), TypeError
    ),
    "a source that raises": Failure(
        lambda p: p.do(p.coll.insert_many, _broken_source()), ApplicationError, NUMBER
    ),
    "a codec that raises": Failure(
        lambda p: p.do(_encoding(p.coll).insert_one, {"text": Secret()}), ApplicationError, NUMBER
    ),
}  # fmt: skip
