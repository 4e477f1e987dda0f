"""Raw documents without ``_id``, wherever that stands."""

from __future__ import annotations

import datetime as dt
from typing import Any

import bson
import pytest
from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.raw_bson import RawBSONDocument
from pymongo_resilience_instrumentation.driver.finds import without_id

VALUES: dict[str, Any] = {
    "double": 1.5,
    "string": "text\0with a zero",
    "document": {"_id": 1, "a": {"_id": 2}},
    "array": [1, "two", {"_id": 3}],
    "binary": b"\0\1",
    "binary of a subtype": Binary(b"\0\1\2", 128),
    "old binary": Binary(b"\0\1\2", 2),
    "object id": ObjectId(),
    "bool": True,
    "date": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    "null": None,
    "regex": Regex("^a.*b$", "im"),
    "dbref": DBRef("coll", 1),
    "code": Code("return 1"),
    "code with a scope": Code("return x", {"x": 1, "_id": 2}),
    "int32": 7,
    "timestamp": Timestamp(1, 2),
    "int64": Int64(2**40),
    "decimal": Decimal128("1.50"),
    "minkey": MinKey(),
    "maxkey": MaxKey(),
}
OPTIONS = bson.CodecOptions(document_class=RawBSONDocument)


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("at", ["first", "last"])
def test_id_of_each_type_is_cut_out(kind: str, at: str) -> None:
    others = {"_i": 1, **VALUES, "_ida": 2}
    here = {"_id": VALUES[kind]}
    given = bson.encode(here | others if at == "first" else others | here)
    expected = bson.encode(others)
    assert without_id(given, OPTIONS) == expected
    assert without_id(expected, OPTIONS) == expected, "where there is none"
    raw = without_id(RawBSONDocument(given, OPTIONS), OPTIONS)
    assert (type(raw), bytes(raw.raw)) == (RawBSONDocument, expected)


def test_a_stream_is_one_document_after_the_other() -> None:
    several = [bson.encode({"_id": n, "a": "x" * n}) for n in range(5)]
    assert bson.decode_all(without_id(b"".join(several), OPTIONS)) == [
        {"a": "x" * n} for n in range(5)
    ]
    assert without_id(b"", OPTIONS) == b""


def test_a_decoded_document_is_changed_in_place() -> None:
    given = {"_id": 1, "a": {"_id": 2}}
    assert without_id(given, OPTIONS) is given
    assert given == {"a": {"_id": 2}}
