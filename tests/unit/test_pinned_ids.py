"""Which filters at most one document can match, whatever else is in the collection."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from types import MappingProxyType
from typing import Any

import pytest
from bson import SON, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex
from bson.raw_bson import RawBSONDocument
from pymongo_resilience_instrumentation.features.single_documents import pins_id

ID = ObjectId("6b02f1f90396ad67fa76ec1e")
NOW = dt.datetime(2026, 11, 1, tzinfo=dt.UTC)


class OwnStr(str):
    """What a codec of the application's own may encode as anything."""

    __slots__ = ()


@pytest.mark.parametrize(
    "criteria",
    [
        {"_id": ID},
        {"_id": "text"},
        {"_id": "$text"},
        {"_id": 1},
        {"_id": Int64(1)},
        {"_id": 1.5},
        {"_id": True},
        {"_id": b"bytes"},
        {"_id": Decimal128("1")},
        {"_id": uuid.UUID(int=7)},
        {"_id": NOW},
        {"_id": {"a": 1, "b": 2}},
        {"_id": SON([("a", 1)])},
        {"_id": {}},
        SON([("_id", 1)]),
        {"_id": {"$eq": 1}},
        {"_id": {"$eq": {"a": 1}}},
        {"_id": {"$in": [ID]}},
        {"_id": {"$in": (ID,)}},
        {"state": "new", "_id": ID, "tags": {"$in": ["a", "b"]}},
        {"_id": ID, "$or": [{"a": 1}, {"b": 2}]},
        {"$and": [{"a": 1}, {"_id": ID}]},
        {"$and": [{"$and": [{"_id": ID}]}], "a": 1},
    ],
    ids=lambda each: str(each)[:60],
)
def test_what_pins_id(criteria: Any) -> None:
    assert pins_id(criteria)


@pytest.mark.parametrize(
    "criteria",
    [
        None,
        "text",
        {},
        {"a": ID},
        {"_id.a": 1},
        {"_id": None},
        {"_id": {"$eq": None}},
        {"_id": [1, 2]},
        {"_id": (1, 2)},
        {"_id": re.compile("^a")},
        {"_id": Regex("^a")},
        {"_id": {"$regex": "^a"}},
        {"_id": {"$eq": Regex("^a")}},
        {"_id": {"$in": []}},
        {"_id": {"$in": [1, 2]}},
        {"_id": {"$in": (1, 2)}},
        {"_id": {"$in": {1}}},
        {"_id": {"$in": [Regex("^a")]}},
        {"_id": {"$in": [None]}},
        {"_id": {"$in": [[1]]}},
        {"_id": {"$gt": 1}},
        {"_id": {"$ne": 1}},
        {"_id": {"$not": {"$eq": 1}}},
        {"_id": {"$elemMatch": {"$eq": 1}}},
        {"_id": {"$eq": {"$gt": 1}}},
        {"_id": {"a": 1, "$gt": 1}},
        {"_id": {1: 1}},
        {"_id": DBRef("a", 1)},
        {"_id": MinKey()},
        {"_id": MaxKey()},
        {"_id": Code("a")},
        {"_id": OwnStr("a")},
        {"$or": [{"_id": 1}, {"_id": 2}]},
        {"$or": [{"_id": 1}]},
        {"$nor": [{"_id": 1}]},
        {"$and": []},
        {"$and": {"_id": 1}},
        {"$expr": {"$eq": ["$_id", 1]}},
        {"$where": "this._id == 1"},
        MappingProxyType({"_id": 1}),
        RawBSONDocument(b"\x0e\x00\x00\x00\x10_id\x00\x01\x00\x00\x00\x00"),
    ],
    ids=lambda each: str(each)[:60],
)
def test_what_does_not(criteria: Any) -> None:
    assert not pins_id(criteria)
