"""Calls by kind, each with the command of it that is worth interrupting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pymongo import CursorType, InsertOne, UpdateOne
from support.clients import Side

Act = tuple[Any, ...]
"""A function and its arguments."""


def _find(side: Side, coll: Any) -> Act:
    return (coll.find_one, {})


def _get_more(side: Side, coll: Any) -> Act:
    cursor = coll.find({}, batch_size=2)
    for _ in range(2):
        side.do(cursor.next)
    return (cursor.next,)


def _exhaust(side: Side, coll: Any) -> Act:
    cursor = coll.find({}, batch_size=2, cursor_type=CursorType.EXHAUST)
    for _ in range(2):
        side.do(cursor.next)
    return (cursor.next,)


def _kill_cursors(side: Side, coll: Any) -> Act:
    cursor = coll.find({}, batch_size=2)
    side.do(cursor.next)
    return (cursor.close,)


def _insert(side: Side, coll: Any) -> Act:
    return (coll.insert_one, {"_id": "new"})


def _aggregate(side: Side, coll: Any) -> Act:
    async def consume() -> None:
        await coll.aggregate([{"$match": {}}])

    return (consume,) if side.name == "async" else (coll.aggregate, [{"$match": {}}])


def _command(side: Side, coll: Any) -> Act:
    return (coll.database.command, {"count": coll.name})


def _bulk_write(side: Side, coll: Any) -> Act:
    return (coll.bulk_write, [InsertOne({"_id": "new"}), UpdateOne({}, {"$inc": {"n": 1}})])


def _client_bulk_write(side: Side, coll: Any) -> Act:
    namespace = f"{coll.database.name}.{coll.name}"
    return (coll.database.client.bulk_write, [InsertOne({"_id": "new"}, namespace=namespace)])


def _in_transaction(side: Side, coll: Any) -> Act:
    session = _transaction(side, coll)
    side.do(coll.find_one, {}, session=session)
    return (lambda: coll.insert_one({"_id": "new"}, session=session),)


def _commit(side: Side, coll: Any) -> Act:
    session = _transaction(side, coll)
    side.do(coll.insert_one, {"_id": "new"}, session=session)
    return (session.commit_transaction,)


def _transaction(side: Side, coll: Any) -> Any:
    session = side.do(coll.database.client.start_session)
    side.do(session.start_transaction)
    return session


def _end_sessions(side: Side, coll: Any) -> Act:
    return (coll.database.client.close,)


CALLS: dict[str, tuple[str, Callable[[Side, Any], Act]]] = {
    "find": ("find", _find),
    "getMore": ("getMore", _get_more),
    "exhaust": ("getMore", _exhaust),
    "killCursors": ("killCursors", _kill_cursors),
    "insert": ("insert", _insert),
    "aggregate": ("aggregate", _aggregate),
    "command": ("count", _command),
    "bulk_write": ("update", _bulk_write),
    "client bulk_write": ("bulkWrite", _client_bulk_write),
    "in a transaction": ("insert", _in_transaction),
    "commit": ("commitTransaction", _commit),
    "endSessions": ("endSessions", _end_sessions),
}
