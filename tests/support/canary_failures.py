"""Failures of every kind, each provoked with canaries in what the server or the driver quotes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import bson.errors
from bson import CodecOptions, Int64
from bson.codec_options import TypeRegistry
from pymongo import InsertOne, UpdateOne, errors
from support.canaries import MARK, NUMBER, document, text
from support.canary_operations import Operation, Place


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


def prepare(p: Place) -> None:
    """A document that is in the way, and a collection that refuses documents."""
    p.do(p.coll.insert_one, {**document("a document in the way"), **TAKEN})
    p.do(p.coll.create_index, "email", unique=True, sparse=True, name=f"{MARK}-unique")
    p.do(p.coll.insert_one, {"email": text("an address"), "number": 1})
    states = {"properties": {"state": {"enum": [text("a state"), NUMBER]}}}
    p.do(p.database.create_collection, "strict", validator={"$jsonSchema": states})
    p.do(p.database.strict.insert_one, {"_id": 1, "state": text("a state")})


def _twice_in_a_transaction(p: Place) -> None:
    session = p.client.start_session()
    p.do(session.start_transaction)
    try:
        p.do(p.coll.insert_one, dict(TAKEN), session=session)
    finally:
        p.do(session.end_session)


def _read_from_a_killed_cursor(p: Place) -> None:
    cursor = p.coll.find({"number": NUMBER}, batch_size=1, comment=text("a comment"))
    p.do(cursor.next)
    p.do(p.database.command, "killCursors", p.coll.name, cursors=[cursor.cursor_id])
    p.side.documents(cursor)


def _again(p: Place) -> dict[str, Any]:
    return {"namespace": f"{p.database.name}.{p.coll.name}"}


DUPLICATES = {
    "insert_one": Failure(
        lambda p: p.do(p.coll.insert_one, {"email": text("an address")}),
        errors.DuplicateKeyError, 11000,
    ),
    "insert_many": Failure(
        lambda p: p.do(p.coll.insert_many, [TAKEN, document("a bulk"), TAKEN], ordered=False),
        errors.BulkWriteError, 65,
    ),
    "bulk_write": Failure(
        lambda p: p.do(p.coll.bulk_write, [UpdateOne(TAKEN, {"$set": {"x": 1}}), InsertOne(TAKEN)]),
        errors.BulkWriteError, 65,
    ),
    "a client's bulk_write": Failure(
        lambda p: p.do(p.client.bulk_write, [InsertOne(TAKEN, **_again(p))]),
        errors.ClientBulkWriteException, 65,
    ),
    "an upsert": Failure(
        lambda p: p.do(
            p.coll.update_one, {"x": 9}, {"$set": {"email": text("an address")}}, upsert=True
        ),
        errors.DuplicateKeyError, 11000,
    ),
    "find_one_and_replace": Failure(
        lambda p: p.do(
            p.coll.find_one_and_replace, {"x": 9}, {"email": text("an address")}, upsert=True
        ),
        errors.DuplicateKeyError, 11000,
    ),
    "a transaction": Failure(_twice_in_a_transaction, errors.DuplicateKeyError, 11000),
}  # fmt: skip

VALIDATION = {
    "an invalid document": Failure(
        lambda p: p.do(p.database.strict.insert_one, dict(BAD)), errors.WriteError, 121
    ),
    "an invalid update": Failure(
        lambda p: p.do(p.database.strict.update_one, {"_id": 1}, {"$set": BAD}),
        errors.WriteError, 121,
    ),
    "an invalid bulk": Failure(
        lambda p: p.do(p.database.strict.bulk_write, [InsertOne(dict(BAD))]),
        errors.BulkWriteError, 65,
    ),
}  # fmt: skip

EXPRESSIONS = {
    "$divide by zero": Failure(
        lambda p: p.all(
            p.coll.aggregate,
            [{"$match": {"number": NUMBER}}, {"$set": {"x": {"$divide": ["$number", 0]}}}],
        ),
        errors.OperationFailure, 2, quotes=False,
    ),
    "$toInt": Failure(
        lambda p: p.all(p.coll.aggregate, [{"$project": {"x": TO_INT}}]),
        errors.OperationFailure, 241,
    ),
    "$convert": Failure(
        lambda p: p.all(
            p.coll.aggregate, [{"$set": {"x": {"$convert": {"input": MARK, "to": "objectId"}}}}]
        ),
        errors.OperationFailure, 241,
    ),
    "$convert to an unknown type": Failure(
        lambda p: p.all(
            p.coll.aggregate, [{"$set": {"x": {"$convert": {"input": 1, "to": MARK}}}}]
        ),
        errors.OperationFailure, 2,
    ),
    "an update's pipeline": Failure(
        lambda p: p.do(p.coll.update_one, TAKEN, [{"$set": {"x": TO_INT}}]),
        errors.OperationFailure, 241,
    ),
    "$expr": Failure(
        lambda p: p.do(p.coll.find_one, {"$expr": {"$eq": [TO_INT, 1]}}),
        errors.OperationFailure, 241,
    ),
    "a database's pipeline": Failure(
        lambda p: p.all(p.database.aggregate, [{"$documents": [{"x": {"$toInt": MARK}}]}]),
        errors.OperationFailure, 241,
    ),
    "a count": Failure(
        lambda p: p.do(p.coll.count_documents, {"$expr": TO_INT}), errors.OperationFailure, 241
    ),
}  # fmt: skip

SYNTAX = {
    "a filter": Failure(
        lambda p: p.do(p.coll.find_one, {"number": OPERATOR}), errors.OperationFailure, 2
    ),
    "a filter's top level": Failure(
        lambda p: p.do(p.coll.distinct, "text", OPERATOR), errors.OperationFailure, 2
    ),
    "an update": Failure(
        lambda p: p.do(p.coll.update_one, {}, {f"${MARK}": {"x": NUMBER}}), errors.WriteError, 9
    ),
    "an operand": Failure(
        lambda p: p.do(p.coll.update_many, {}, {"$inc": {"number": text("an operand")}}),
        errors.WriteError, 14,
    ),
    "a stage": Failure(
        lambda p: p.all(p.coll.aggregate, [OPERATOR]), errors.OperationFailure, 40324
    ),
    "a watched stage": Failure(
        lambda p: p.do(p.coll.watch, [OPERATOR]), errors.OperationFailure, 40324
    ),
    "a sort": Failure(
        lambda p: p.side.documents(p.coll.find(sort=[("text", text("a sort"))])),
        errors.OperationFailure, 15974,
    ),
    "a hint": Failure(
        lambda p: p.do(p.coll.find_one, {}, hint=text("a hint")), errors.OperationFailure, 2
    ),
    "an index": Failure(
        lambda p: p.do(p.coll.drop_index, text("an index")), errors.OperationFailure, 27
    ),
    "a listing": Failure(
        lambda p: p.do(p.database.list_collection_names, filter=OPERATOR),
        errors.OperationFailure, 2,
    ),
    "a resume token": Failure(
        lambda p: p.do(p.coll.watch, resume_after={"_data": text("a token")}),
        errors.OperationFailure, 9, quotes=False,
    ),
}  # fmt: skip

COMMANDS = {
    "an unknown command": Failure(
        lambda p: p.do(p.database.command, "noSuchCommand", text("a value"), also=NUMBER),
        errors.OperationFailure, 59, quotes=False,
    ),
    "no such cursor": Failure(
        lambda p: p.do(p.database.command, "getMore", Int64(4711), collection="coll", comment=MARK),
        errors.CursorNotFound, 43, quotes=False,
    ),
    "a killed cursor": Failure(
        _read_from_a_killed_cursor, errors.CursorNotFound, 43, quotes=False
    ),
    "a cursor's id that is none": Failure(
        lambda p: p.do(p.database.command, "getMore", text("an id"), collection="coll"),
        errors.OperationFailure, 14, quotes=False,
    ),
    "a transaction number that is none": Failure(
        lambda p: p.do(
            p.database.command, "aggregate", "coll",
            pipeline=[OPERATOR], cursor={}, txnNumber=text("a number"),
        ),
        errors.OperationFailure, 40324,
    ),
    "no such user": Failure(
        lambda p: p.do(p.database.command, "dropUser", text("a user")), errors.OperationFailure, 11
    ),
    "a user that exists": Failure(
        lambda p: [
            p.do(p.database.command, "createUser", text("a twin"), pwd=MARK, roles=[])
            for _ in range(2)
        ],
        errors.OperationFailure, 51003,
    ),
}  # fmt: skip


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


DRIVER = {
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
}

FAILURES: dict[str, dict[str, Failure]] = {
    "duplicate key": DUPLICATES,
    "validation": VALIDATION,
    "expression": EXPRESSIONS,
    "syntax": SYNTAX,
    "command": COMMANDS,
    "driver": DRIVER,
}
