"""Operations of the public API, each with the command whose reply is attacked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pymongo import InsertOne, UpdateMany, UpdateOne
from support.clients import Side

Function = Callable[[Side, Any, str], Any]
SEEDS = [{"_id": number, "n": 0} for number in range(5)]


@dataclass(frozen=True)
class Operation:
    """:param safe: whether the rules let it be repeated without both overload labels."""

    name: str
    command: str
    function: Function
    safe: bool = True

    def run(self, side: Side, client: Any, database: str) -> Any:
        return self.function(side, client, database)

    def __repr__(self) -> str:
        return f"<{self.name}, attacked in {self.command}>"


def find(side: Side, client: Any, database: str) -> Any:
    return side.documents(
        client[database].seeds.find({}, {"_id": 1}, sort=[("_id", 1)], batch_size=2)
    )


def aggregate(side: Side, client: Any, database: str) -> Any:
    pipeline: list[Any] = [{"$sort": {"_id": 1}}, {"$project": {"_id": 1}}]
    return side.documents(side.do(client[database].seeds.aggregate, pipeline, batchSize=2))


def aggregate_out(side: Side, client: Any, database: str) -> Any:
    return side.documents(side.do(client[database].seeds.aggregate, [{"$out": "copy"}]))


def distinct(side: Side, client: Any, database: str) -> Any:
    return side.do(client[database].seeds.distinct, "n")


def list_collections(side: Side, client: Any, database: str) -> Any:
    return len(side.documents(side.do(client[database].list_collections, filter={"name": "seeds"})))


def insert_one(side: Side, client: Any, database: str) -> Any:
    return side.do(client[database].inserted.insert_one, {"n": 0}).acknowledged


def insert_many(side: Side, client: Any, database: str) -> Any:
    return len(side.do(client[database].inserted.insert_many, [{}, {}, {}]).inserted_ids)


def update_one(side: Side, client: Any, database: str) -> Any:
    return side.do(client[database].target.update_one, {"_id": 1}, {"$inc": {"n": 1}}).raw_result


def update_many(side: Side, client: Any, database: str) -> Any:
    return side.do(client[database].target.update_many, {}, {"$inc": {"n": 1}}).raw_result


def update_many_by_id(side: Side, client: Any, database: str) -> Any:
    return side.do(client[database].target.update_many, {"_id": 1}, {"$inc": {"n": 1}}).raw_result


def delete_one(side: Side, client: Any, database: str) -> Any:
    return side.do(client[database].target.delete_one, {"_id": "nobody"}).raw_result


def find_one_and_update(side: Side, client: Any, database: str) -> Any:
    change = {"$inc": {"n": 1}}
    return side.do(client[database].target.find_one_and_update, {"_id": 1}, change, {"_id": 1})


def bulk_write(side: Side, client: Any, database: str) -> Any:
    requests = [InsertOne({}), UpdateOne({"_id": 1}, {"$inc": {"n": 1}}), InsertOne({})]
    return side.do(client[database].target.bulk_write, requests).bulk_api_result


def bulk_write_unordered(side: Side, client: Any, database: str) -> Any:
    one = {"_id": {"$gte": 1, "$lte": 1}}
    requests: list[Any] = [InsertOne({}), UpdateMany(one, {"$inc": {"n": 1}})]
    return side.do(client[database].target.bulk_write, requests, ordered=False).bulk_api_result


def client_bulk_write(side: Side, client: Any, database: str) -> Any:
    namespace = f"{database}.target"
    models = [
        InsertOne({}, namespace),
        UpdateOne({"_id": 1}, {"$inc": {"n": 1}}, namespace=namespace),
    ]
    result = side.do(client.bulk_write, models, verbose_results=True)
    return result.inserted_count, result.modified_count


def command(side: Side, client: Any, database: str) -> Any:
    return side.do(client[database].command, "ping")


def _in_transaction(side: Side, client: Any, database: str, end: str) -> Any:
    session = client.start_session()
    try:
        side.do(session.start_transaction)
        inserted = side.do(client[database].inserted.insert_one, {}, session=session).acknowledged
        side.do(getattr(session, end))
    finally:
        side.do(session.end_session)
    return inserted


def commit(side: Side, client: Any, database: str) -> Any:
    return _in_transaction(side, client, database, "commit_transaction")


def abort(side: Side, client: Any, database: str) -> Any:
    return _in_transaction(side, client, database, "abort_transaction")


OPERATIONS = [
    Operation("find", "find", find),
    Operation("cursor", "getMore", find, safe=False),
    Operation("aggregate", "aggregate", aggregate),
    Operation("aggregate with $out", "aggregate", aggregate_out, safe=False),
    Operation("distinct", "distinct", distinct),
    Operation("list_collections", "listCollections", list_collections),
    Operation("insert_one", "insert", insert_one),
    Operation("insert_many", "insert", insert_many),
    Operation("update_one", "update", update_one),
    Operation("update_many", "update", update_many, safe=False),
    Operation("update_many by _id", "update", update_many_by_id),
    Operation("delete_one", "delete", delete_one),
    Operation("find_one_and_update", "findAndModify", find_one_and_update),
    Operation("bulk_write", "insert", bulk_write),
    Operation("bulk_write, second command", "update", bulk_write),
    Operation("bulk_write with UpdateMany", "update", bulk_write_unordered, safe=False),
    Operation("client.bulk_write", "bulkWrite", client_bulk_write),
    Operation("command", "ping", command, safe=False),
    Operation("commit", "commitTransaction", commit),
    Operation("abort", "abortTransaction", abort),
    Operation("insert in a transaction", "insert", commit, safe=False),
]
