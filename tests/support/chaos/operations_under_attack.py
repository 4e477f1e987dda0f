"""Operations of the public API, each with the command whose reply is attacked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pymongo import InsertOne, UpdateMany, UpdateOne
from support.clients import Side

SEEDS = [{"_id": number, "n": 0} for number in range(5)]
ONE = {"_id": 1}
CHANGE = {"$inc": {"n": 1}}


@dataclass(frozen=True)
class Operation:
    """``call(side.do, database)`` makes it, and returns what an application would look at.

    :param safe: whether the rules let it be repeated without both overload labels.
    """

    name: str
    command: str
    call: Callable[[Any, Any], Any]
    safe: bool = True

    def run(self, side: Side, client: Any, database: str) -> Any:
        found = self.call(side.do, client[database])
        return side.documents(found) if hasattr(found, "to_list") else found

    def __repr__(self) -> str:
        return f"<{self.name}, attacked in {self.command}>"


def _find(do: Any, db: Any) -> Any:
    return db.seeds.find({}, {"_id": 1}, sort=[("_id", 1)], batch_size=2)


def _aggregate(do: Any, db: Any) -> Any:
    pipeline: list[Any] = [{"$sort": {"_id": 1}}, {"$project": {"_id": 1}}]
    return do(db.seeds.aggregate, pipeline, batchSize=2)


def _bulk_write(do: Any, db: Any) -> Any:
    requests = [InsertOne({}), UpdateOne(ONE, CHANGE), InsertOne({})]
    return do(db.target.bulk_write, requests).bulk_api_result


def _bulk_write_unordered(do: Any, db: Any) -> Any:
    requests: list[Any] = [InsertOne({}), UpdateMany({"_id": {"$gte": 1, "$lte": 1}}, CHANGE)]
    return do(db.target.bulk_write, requests, ordered=False).bulk_api_result


def _client_bulk_write(do: Any, db: Any) -> Any:
    namespace = f"{db.name}.target"
    models = [InsertOne({}, namespace), UpdateOne(ONE, CHANGE, namespace=namespace)]
    result = do(db.client.bulk_write, models, verbose_results=True)
    return result.inserted_count, result.modified_count


def _in_transaction(end: str) -> Callable[[Any, Any], Any]:
    def call(do: Any, db: Any) -> Any:
        session = db.client.start_session()
        try:
            do(session.start_transaction)
            inserted = do(db.inserted.insert_one, {}, session=session).acknowledged
            do(getattr(session, end))
        finally:
            do(session.end_session)
        return inserted

    return call


_commit, _abort = _in_transaction("commit_transaction"), _in_transaction("abort_transaction")

OPERATIONS = [
    Operation("find", "find", _find),
    Operation("cursor", "getMore", _find, safe=False),
    Operation("aggregate", "aggregate", _aggregate),
    Operation("aggregate with $out", "aggregate", lambda do, db: do(
        db.seeds.aggregate, [{"$out": "copy"}]), safe=False),
    Operation("distinct", "distinct", lambda do, db: do(db.seeds.distinct, "n")),
    Operation("list_collections", "listCollections", lambda do, db: do(
        db.list_collection_names, filter={"name": "seeds"})),
    Operation("insert_one", "insert", lambda do, db: do(
        db.inserted.insert_one, {"n": 0}).acknowledged),
    Operation("insert_many", "insert", lambda do, db: len(do(
        db.inserted.insert_many, [{}, {}, {}]).inserted_ids)),
    Operation("update_one", "update", lambda do, db: do(
        db.target.update_one, ONE, CHANGE).raw_result),
    Operation("update_many", "update", lambda do, db: do(
        db.target.update_many, {}, CHANGE).raw_result, safe=False),
    Operation("update_many by _id", "update", lambda do, db: do(
        db.target.update_many, ONE, CHANGE).raw_result),
    Operation("delete_one", "delete", lambda do, db: do(
        db.target.delete_one, {"_id": "nobody"}).raw_result),
    Operation("find_one_and_update", "findAndModify", lambda do, db: do(
        db.target.find_one_and_update, ONE, CHANGE, {"_id": 1})),
    Operation("bulk_write", "insert", _bulk_write),
    Operation("bulk_write, second command", "update", _bulk_write),
    Operation("bulk_write with UpdateMany", "update", _bulk_write_unordered, safe=False),
    Operation("client.bulk_write", "bulkWrite", _client_bulk_write),
    Operation("command", "ping", lambda do, db: do(db.command, "ping"), safe=False),
    Operation("commit", "commitTransaction", _commit),
    Operation("abort", "abortTransaction", _abort),
    Operation("insert in a transaction", "insert", _commit, safe=False),
]  # fmt: skip
