"""A command as text: extended JSON without what identifies its session, cut at a length."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import bson
from bson import (
    Binary,
    Code,
    DBRef,
    Decimal128,
    Int64,
    MinKey,
    ObjectId,
    Regex,
    Timestamp,
    json_util,
)
from bson.raw_bson import RawBSONDocument
from pymongo_resilience_instrumentation.telemetry.query_text import text_of

DOCUMENT: dict[str, Any] = {
    "_id": ObjectId("5a9c3e7d1f2b4a6c8e0d9b7f"),
    "text": 'é"\\ \n' * 3,
    "numbers": [1, 2**40, Int64(5), 1.5, float("nan"), Decimal128("1.5"), True, None],
    "date": dt.datetime(2020, 1, 2, tzinfo=dt.UTC),
    "binary": Binary(b"123"),
    "bytes": b"ab",
    "uuid": Binary.from_uuid(uuid.UUID(int=1)),
    "pattern": Regex("a", "i"),
    "raw": RawBSONDocument(bson.encode({"a": {"b": [1]}})),
    "code": Code("x", {"y": 1}),
    "reference": DBRef("c", 1),
    "timestamp": Timestamp(1, 2),
    "least": MinKey(),
    "empty": [{}, [], ""],
}
COMMAND = {"insert": "coll", "ordered": True, "documents": [DOCUMENT, DOCUMENT]}
WHOLE = json_util.dumps(COMMAND, json_options=json_util.RELAXED_JSON_OPTIONS)


def test_it_is_relaxed_extended_json() -> None:
    assert text_of(COMMAND, 10_000) == WHOLE


def test_it_is_cut_at_every_length() -> None:
    for length in range(1, len(WHOLE) + 2):
        assert text_of(COMMAND, length) == WHOLE[:length]


def test_what_identifies_session_and_cluster_is_left_out() -> None:
    hidden = {"lsid": {"id": 1}, "$db": "db", "$clusterTime": {"signature": 1}, "signature": 2}
    assert text_of({"find": "coll", **hidden, "filter": {"lsid": 3}}, 99) == (
        '{"find": "coll", "filter": {"lsid": 3}}'
    )


def test_a_type_of_the_applications_own_is_named() -> None:
    class Money:
        def __repr__(self) -> str:
            raise AssertionError

    assert text_of({"insert": "c", "documents": [{"price": Money(), 1: 2}]}, 99) == (
        '{"insert": "c", "documents": [{"price": "<Money>", "1": 2}]}'
    )


def test_the_work_is_bounded_by_the_length_and_not_by_the_command() -> None:
    class Endless(list[Any]):
        seen = 0

        def __iter__(self) -> Any:
            while True:
                self.seen += 1
                yield {}

    documents = Endless()
    assert len(text_of({"insert": "c", "documents": documents}, 100)) == 100
    assert documents.seen <= 100
