"""The shape of a command: what it shows, that no value passes, and that it is bounded."""

from __future__ import annotations

import json
import re
import threading
import time
from typing import Any

import bson
import pytest
from bson import SON, Code, DBRef, MinKey, Regex
from bson.raw_bson import RawBSONDocument
from hypothesis import given, settings, strategies as st
from pymongo_resilience_instrumentation.telemetry import query_text
from pymongo_resilience_instrumentation.telemetry.query_text import MAX_TEXT, shape_of
from support.canaries import (
    BINARY,
    DATE,
    DECIMAL,
    FLOAT,
    MARK,
    NUMBER,
    OBJECT_ID,
    TIMESTAMP,
    UUID,
    leaks,
    text,
)
from support.examples import scaled

SHAPES: dict[str, tuple[dict[str, Any], Any]] = {
    # name: (the command, its shape)
    "a filter": (
        {"find": "orders", "filter": {"status": "paid", "total": {"$gt": 12}}, "limit": 1},
        {"find": "orders", "filter": {"status": "?", "total": {"$gt": "?"}}, "limit": "?"},
    ),
    "everything": ({"find": "orders", "filter": {}}, {"find": "orders", "filter": {}}),
    "a list of values": (
        {"find": "orders", "filter": {"n": {"$in": [1, 2, 3]}, "tags": ["a", "b"]}},
        {"find": "orders", "filter": {"n": {"$in": "?"}, "tags": "?"}},
    ),
    "branches": (
        {"count": "orders", "query": {"$or": [{"a": 1}, {"a": 2}, {"b": {"$not": {"$gt": 1}}}]}},
        {"count": "orders", "query": {"$or": [{"a": "?"}, {"b": {"$not": {"$gt": "?"}}}]}},
    ),
    "a sort order and hints": (
        {"find": "orders", "sort": SON([("a", 1), ("b", -1.0), ("c", {"$meta": "textScore"})]),
         "hint": {"$natural": 1}, "projection": {"a": 1, "b.c": 0}},
        {"find": "orders", "sort": {"a": 1, "b": -1, "c": "?"}, "hint": {"$natural": 1},
         "projection": {"a": "?", "b.?": "?"}},
    ),
    "an update": (
        {"update": "orders", "ordered": True, "updates": [
            {"q": {"_id": 1}, "u": {"$set": {"a": 1, "b.c": 2}, "$inc": {"n": 3}}, "multi": False},
        ]},
        {"update": "orders", "updates": [
            {"q": {"_id": "?"}, "u": {"$set": {"a": "?", "b.?": "?"}, "$inc": {"n": "?"}}},
        ]},
    ),
    "a bulk write of one shape": (
        {"delete": "orders", "deletes": [{"q": {"_id": n}, "limit": 1} for n in range(7)]},
        {"delete": "orders", "deletes": [{"q": {"_id": "?"}, "limit": "?"}]},
    ),
    "a long bulk write": (
        {"update": "orders", "updates": [{"q": {"_id": n}, "u": {"a": n}} for n in range(1000)]},
        {"update": "orders", "updates": [{"q": {"_id": "?"}, "u": "?"}, "?"]},
    ),
    "a bulk write of a client": (
        {"bulkWrite": 1, "nsInfo": [{"ns": "shop.orders"}], "ops": [
            {"insert": 0, "document": {"a": 1}},
            {"update": 0, "filter": {"a": 1}, "updateMods": {"$set": {"a": 2}}},
        ]},
        {"bulkWrite": "?", "ops": [
            {"insert": "?", "document": "?"},
            {"update": "?", "filter": {"a": "?"}, "updateMods": {"$set": {"a": "?"}}},
        ]},
    ),
    "findAndModify": (
        {"findAndModify": "orders", "query": {"a": 1}, "update": [{"$set": {"a": "$b"}}]},
        {"findAndModify": "orders", "query": {"a": "?"}, "update": [{"$set": {"a": "?"}}]},
    ),
    "a replacement": (
        {"findAndModify": "orders", "query": {"a": 1}, "update": {"a": 1}, "sort": {"a": 1}},
        {"findAndModify": "orders", "query": {"a": "?"}, "update": "?", "sort": {"a": 1}},
    ),
    "an aggregation": (
        {"aggregate": "orders", "cursor": {}, "pipeline": [
            {"$match": {"a": {"$regex": "x", "$options": "i"}}},
            {"$group": {"_id": "$customer", "n": {"$sum": 1}}},
            {"$lookup": {"from": "items", "as": "items", "pipeline": [{"$match": {"a": 1}}]}},
            {"$facet": {"top": [{"$sort": {"n": -1}}, {"$limit": 1}], "all": [{"$count": "n"}]}},
            {"$unwind": "$items"}, {"$unwind": "$tags"},
        ]},
        {"aggregate": "orders", "pipeline": [
            {"$match": {"a": {"$regex": "?", "$options": "?"}}},
            {"$group": {"_id": "?", "n": "?"}},
            {"$lookup": {"pipeline": [{"$match": {"a": "?"}}]}},
            {"$facet": {"top": [{"$sort": {"n": -1}}, {"$limit": "?"}], "all": [{"$count": "?"}]}},
            {"$unwind": "?"}, {"$unwind": "?"},
        ]},
    ),
    "of a database": (
        {"aggregate": 1, "pipeline": [{"$currentOp": {"allUsers": True}}]},
        {"aggregate": "?", "pipeline": [{"$currentOp": "?"}]},
    ),
    "documents": (
        {"insert": "orders", "documents": [{"a": 1}], "comment": "mine"},
        {"insert": "orders", "documents": "?", "comment": "?"},
    ),
    "an index": (
        {"createIndexes": "orders", "indexes": [
            {"key": SON([("a", 1), ("b", "text")]), "name": "mine",
             "partialFilterExpression": {"a": {"$exists": True}}},
        ]},
        {"createIndexes": "orders", "indexes": [
            {"key": {"a": 1, "b": "?"}, "partialFilterExpression": {"a": {"$exists": "?"}}},
        ]},
    ),
    "distinct": (
        {"distinct": "orders", "key": "customer.name", "query": {"größe": 1}},
        {"distinct": "orders", "key": "customer.?", "query": {"größe": "?"}},
    ),
    "code": (
        {"find": "orders", "filter": {"$where": "a", "$expr": {"$eq": ["$a", 1]}, "$text": {}}},
        {"find": "orders", "filter": {"$where": "?", "$expr": {"$eq": "?"}, "$text": "?"}},
    ),
    "documents that are values": (
        {"find": "orders", "filter": {
            "attributes": {"color": "red"}, "equal": {"$eq": {"$usd": 1}},
            "reference": {"$ref": "other", "$id": 1}, "items": {"$elemMatch": {"sku": 1}},
            "empty": {}, "mixed": {"$gt": 1, "color": 1},
        }},
        {"find": "orders", "filter": {
            "attributes": "?", "equal": {"$eq": "?"}, "reference": "?",
            "items": {"$elemMatch": "?"}, "empty": "?", "mixed": {"$gt": "?", "?": "?"},
        }},
    ),
    "fields whose names may be data": (
        {"find": "orders", "filter": {
            "votes.alice": 1, "votes.bob": 2, "john@example.com": 1, "4111 1111": 1, "2024": 1,
            "5a9c3e7d1f2b4a6c8e0d9b7f": 1, "a" * 41: 1, "": 1, "$unknown": 1, "sha256": 1,
        }},
        {"find": "orders", "filter": {"votes.?": "?", "?": "?", "sha256": "?"}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_values_are_replaced_and_names_are_kept(name: str) -> None:
    command, shape = SHAPES[name]
    framed = {**command, "lsid": {"id": 1}, "$db": "shop", "txnNumber": 1, "maxTimeMS": 2}
    assert shape_of(framed) == json.dumps(shape, ensure_ascii=False)


@pytest.mark.parametrize(
    "command",
    [{}, {"usersInfo": "john"}, {"ping": 1, "filter": {"a": 1}}, {"getMore": 1, "collection": "c"},
     RawBSONDocument(bson.encode({"find": "orders"})), {"find": "orders", "filter": {1: 2}}],
)  # fmt: skip
def test_another_command_has_none(command: Any) -> None:
    assert shape_of(command) is None


# Everything that may be a value, with canaries. A name that looks like one of a field is a canary
# as well, except where fields of the top level are named.
SCALARS = st.sampled_from([
    text("a value"), NUMBER, FLOAT, DECIMAL, OBJECT_ID, BINARY, UUID, DATE, TIMESTAMP,
    re.compile(MARK), Regex(f"^{MARK}", "i"), Code(f"'{MARK}'"), Code("x", {MARK: 1}),
    DBRef(MARK, OBJECT_ID, MARK), MARK.encode(), MinKey(), None, True, 1, -1,
])  # fmt: skip
UNLIKE_NAMES = (
    f"{MARK}@example.com", f"{MARK} x", str(OBJECT_ID), str(UUID), str(NUMBER), f"${MARK}",
    f"{MARK}\n", f'"{MARK}', f"{MARK}-field", MARK * 4, f"{MARK}.name", "",
)  # fmt: skip
NESTED_KEYS = st.sampled_from([*UNLIKE_NAMES[:-2], MARK, f"${MARK}", "$gt", "$set", "$match", "a"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(NESTED_KEYS, inner, max_size=3)
        | st.dictionaries(NESTED_KEYS, inner, max_size=3).map(SON)
    ),
    max_leaves=6,
)
NAMES = ("status", "_id", "address2")
KEYS = st.sampled_from([
    *NAMES,
    *(key for key in UNLIKE_NAMES if not key.startswith(f"{MARK}.")),
    *(f"{name}.{secret}" for name in NAMES for secret in (MARK, *UNLIKE_NAMES)),
])  # fmt: skip
NAMING = ("$addFields", "$group", "$project", "$set", "$sort", *query_text._CHANGES)
"""Operators whose documents name fields of the top level."""
OPERATORS = st.sampled_from([
    f"${MARK}",
    *query_text._OPERATORS.keys() - {*NAMING, "$match", "$facet", "$and", "$or", "$nor"},
])  # fmt: skip


def documents(keys: Any, values: Any) -> Any:
    return st.dictionaries(keys, values, max_size=4)


CONDITIONS = documents(OPERATORS, VALUES)
FILTERS = st.recursive(
    documents(KEYS | OPERATORS, VALUES | CONDITIONS | st.fixed_dictionaries({"$not": CONDITIONS})),
    lambda inner: documents(
        st.sampled_from(["$and", "$or", "$nor"]), st.lists(inner, max_size=3) | SCALARS
    ),
    max_leaves=4,
)
FIELDS = documents(KEYS, VALUES)
STAGES = st.recursive(
    documents(st.sampled_from(NAMING), FIELDS | SCALARS)
    | documents(OPERATORS, VALUES)
    | documents(st.just("$match"), FILTERS),
    lambda inner: (
        st.fixed_dictionaries({"$facet": documents(KEYS, st.lists(inner, max_size=2) | SCALARS)})
        | st.fixed_dictionaries({
            "$lookup": st.fixed_dictionaries({
                "from": SCALARS, "pipeline": st.lists(inner, max_size=2) | SCALARS,
            })
        })
    ),
    max_leaves=3,
)  # fmt: skip
PIPELINES = st.lists(STAGES | SCALARS, max_size=3)
UPDATES = documents(st.sampled_from(NAMING), FIELDS | SCALARS) | FIELDS | PIPELINES
ARGUMENTS = {
    **dict.fromkeys(("filter", "query", "q", "partialFilterExpression"), FILTERS),
    **dict.fromkeys(("update", "u", "updateMods"), UPDATES),
    **dict.fromkeys(("sort", "hint", "projection", "fields"), FIELDS),
    "pipeline": PIPELINES,
    "key": st.sampled_from([f"status.{MARK}", *UNLIKE_NAMES[:-2], ""]) | FIELDS,
    **dict.fromkeys(("documents", "document", "let", "comment", "collation"), VALUES),
    **dict.fromkeys(("limit", "arrayFilters", "min", "max", MARK, "lsid", "insert"), VALUES),
}
STATEMENTS = st.fixed_dictionaries({}, optional=ARGUMENTS)
COMMANDS = st.tuples(
    st.sampled_from(sorted(query_text._COMMANDS)),
    st.fixed_dictionaries(
        {},
        optional={
            **ARGUMENTS,
            **dict.fromkeys(
                ("updates", "deletes", "ops", "indexes"),
                st.lists(STATEMENTS | VALUES, max_size=3) | VALUES,
            ),
        },
    ),
).map(lambda made: {made[0]: "orders", **{k: v for k, v in made[1].items() if k != made[0]}})


@settings(max_examples=scaled(400), deadline=None)
@given(command=COMMANDS)
def test_no_value_passes(command: dict[str, Any]) -> None:
    shape = shape_of(command)
    assert shape is not None
    assert leaks("shape", [shape]) == []
    assert len(shape) <= MAX_TEXT
    if len(shape) < MAX_TEXT:
        names = {*NAMES, *(f"{name}.?" for name in NAMES), "?"}
        known = {*names, *query_text._OPERATORS, *command, *ARGUMENTS} - {MARK, "lsid"}
        known |= {"updates", "deletes", "ops", "indexes"}
        assert _keys(json.loads(shape)) <= known
        assert _values(json.loads(shape)) <= {"orders", "?", 1, -1, *names}


def _keys(shape: Any) -> set[str]:
    if isinstance(shape, dict):
        return {*shape}.union(*map(_keys, shape.values()))
    return set().union(*map(_keys, shape)) if isinstance(shape, list) else set()


def _values(shape: Any) -> set[Any]:
    if isinstance(shape, dict | list):
        inner = shape.values() if isinstance(shape, dict) else shape
        return set().union(*map(_values, inner))
    return {shape}


def nested(depth: int) -> dict[str, Any]:
    document: dict[str, Any] = {"a": 1}
    for _ in range(depth):
        document = {"$and": [document, {"b": 1}]}
    return document


@pytest.mark.parametrize(
    "argument",
    [
        {"filter": {f"{'abcdefghij'[n % 10] * 30}_{n % 900}": {"$gt": n} for n in range(10_000)}},
        {"filter": {"$or": [{f"f{n % 900}_{n}": n} for n in range(10_000)]}},
        {"filter": nested(90)},
        {"filter": {"x" * 1_000_000: 1}},
        {"pipeline": [{"$facet": {f"f{n}": [nested(5)] * 100}} for n in range(1000)]},
        {"updates": [{"q": nested(5), "u": {"$set": {f"f{n % 900}": 1}}} for n in range(10_000)]},
    ],
    ids=["fields", "branches", "depth", "a long name", "stages", "statements"],
)
def test_it_is_bounded_whatever_the_command(argument: dict[str, Any]) -> None:
    command = {"find": "orders", **argument}
    started = time.thread_time()
    shape = shape_of(command)
    assert time.thread_time() - started < 0.05
    assert shape is not None
    assert len(shape) <= MAX_TEXT
    assert shape.count("{") <= query_text.MAX_FIELDS * 2


def test_a_filter_that_another_thread_changes_is_no_error() -> None:
    changed: dict[str, Any] = {"a": {"$gt": 1}}
    over = threading.Event()

    def change() -> None:
        while not over.is_set():
            for n in range(100):
                changed[f"f{n}"] = {"$gt": 1}
            for n in range(100):
                del changed[f"f{n}"]

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(300):
            shape_of({"find": "orders", "filter": changed})
    finally:
        over.set()
        thread.join()
