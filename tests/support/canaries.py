"""Values that must not get out, and a search that finds them in every guise they may take.

Each text canary begins with ``MARK``, so a guise that is cut off is found as well. Names of
databases, collections and commands are no secrets (see SECURITY.md), so none of them is a canary.
"""

from __future__ import annotations

import base64
import datetime as dt
import re
import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bson import Binary, Code, Decimal128, Int64, ObjectId, Timestamp

MARK = "Zq7xKanarie"
USER = f"{MARK}+user@"
PASSWORD = f"{MARK}/p@ss:wörd%"
WRONG_PASSWORD = f"{MARK}/wrong%"
NUMBER = Int64(7340918265534417)
FLOAT = 8675.309417263
DECIMAL = Decimal128("90417.55302817")
OBJECT_ID = ObjectId("5a9c3e7d1f2b4a6c8e0d9b7f")
BINARY = Binary(bytes.fromhex("9ce1f04d8ab7c35e66a1"))
UUID = uuid.UUID("c4f1d7a0-93be-4d58-8a6e-b1720f5ec9d3")
DATE = dt.datetime(1987, 6, 5, 4, 3, 21, 987000, tzinfo=dt.UTC)
TIMESTAMP = Timestamp(611223344, 3344556677)


def text(where: str) -> str:
    """A canary that says where it was put: a leak names its source."""
    return f"{MARK} in {where}"


def document(where: str, **more: Any) -> dict[str, Any]:
    """A document with a canary of every type, in values, nested, and in the names of fields."""
    return {
        f"{MARK}-field": 1,
        "text": text(where),
        "number": NUMBER,
        "float": FLOAT,
        "decimal": DECIMAL,
        "reference": OBJECT_ID,
        "binary": BINARY,
        "uuid": Binary.from_uuid(UUID),
        "date": DATE,
        "timestamp": TIMESTAMP,
        "code": Code(f"function() {{ return '{MARK}' }}", {"scope": text(where)}),
        "list": [NUMBER, text(where), {"nested": text(where)}],
        **more,
    }


def matching(where: str) -> dict[str, Any]:
    """A filter with canaries of every type that compares."""
    return {
        "$or": [
            {"text": {"$in": [text(where), re.compile(MARK)]}},
            {"number": {"$gt": NUMBER}, "float": FLOAT, "decimal": DECIMAL},
            {"reference": OBJECT_ID, "binary": BINARY, "date": {"$lt": DATE}},
            {f"{MARK}-field": 1, "uuid": Binary.from_uuid(UUID), "timestamp": TIMESTAMP},
        ]
    }


def _bytes(value: bytes) -> dict[str, str]:
    """Bytes as text; in base64 a value looks different for each offset modulo three."""

    def in_base64(offset: int) -> str:
        whole = base64.b64encode(bytes(offset) + value).decode()
        # Six bits a character; those at both ends depend on the neighbours as well.
        return whole[-(-8 * offset // 6) : 8 * (offset + len(value)) // 6]

    return {
        "hex": value.hex(),
        "repr": repr(value)[2:-1],
        "latin-1": value.decode("latin-1"),
        "integers": ", ".join(map(str, value)),
        **{f"base64 +{offset}": in_base64(offset) for offset in range(3)},
    }


def _number(value: int) -> dict[str, str]:
    return {
        "decimal": str(value),
        "grouped": f"{value:_}",
        "hexadecimal": f"{value:x}",
        "float": repr(float(value)),
        "scientific": f"{value:.6e}"[:8],
        **_bytes(value.to_bytes(8, "little")),
    }


def _date(value: dt.datetime) -> dict[str, str]:
    milliseconds = round(value.timestamp() * 1000)
    return {
        **_bytes(milliseconds.to_bytes(8, "little")),
        "ISO": value.isoformat()[:19],
        "ISO, with a space": value.isoformat(" ")[:19],
        "basic ISO": f"{value:%Y%m%dT%H%M%S}",
        "constructor": repr(value)[: -len(", 987000, tzinfo=datetime.timezone.utc)")],
        "seconds": str(int(value.timestamp())),
        "milliseconds": str(milliseconds),
        "words": value.ctime(),
    }


FORMS: Mapping[str, Mapping[str, str]] = {
    "text": {"plain": MARK, "utf-16": MARK.encode("utf-16-le").hex(), **_bytes(MARK.encode())},
    "number": _number(NUMBER),
    "float": {"plain": repr(FLOAT), "exact": FLOAT.hex(), **_bytes(struct.pack("<d", FLOAT))},
    "decimal": {"plain": str(DECIMAL), **_bytes(DECIMAL.bid)},
    "object id": {"plain": str(OBJECT_ID), **_bytes(OBJECT_ID.binary)},
    "binary": _bytes(bytes(BINARY)),
    "uuid": {"plain": str(UUID), "int": str(UUID.int), **_bytes(UUID.bytes)},
    "date": _date(DATE),
    "timestamp": {
        "time": str(TIMESTAMP.time),
        "increment": str(TIMESTAMP.inc),
        **_bytes(struct.pack("<II", TIMESTAMP.inc, TIMESTAMP.time)),
    },
}
"""What to look for, by canary and by guise."""

_DROPPED = dict.fromkeys(map(ord, "\\, \t\r\n"))
_SAME_IN_BASE64 = str.maketrans("-_", "+/")


def _normal(written: str) -> str:
    """Without case, white space, escapes and grouping; URL-safe base64 as the other one."""
    return written.translate(_DROPPED).translate(_SAME_IN_BASE64).casefold()


# By what is looked for: of guises that are spelled the same, the first.
_NEEDLES = {
    _normal(written): (canary, form)
    for canary, forms in reversed(FORMS.items())
    for form, written in reversed(forms.items())
}


def leaks(channel: str, texts: Iterable[str]) -> list[str]:
    """One line for each canary and guise in the texts, with what stands around it."""
    hay = "\0".join(map(_normal, texts))
    found = []
    for needle, (canary, form) in _NEEDLES.items():
        at = hay.find(needle)
        if at >= 0:
            around = hay[max(0, at - 60) : at + len(needle) + 60].replace("\0", " | ")
            found.append(f"{channel}: {canary} as {form}: ...{around}...")
    return found


def spelled(value: Any) -> Iterator[str]:
    """Whatever a value shows: itself, and what is in it, as ``str`` and as ``repr``."""
    yield str(value)
    yield repr(value)
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from spelled(key)
            yield from spelled(each)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for each in value:
            yield from spelled(each)
