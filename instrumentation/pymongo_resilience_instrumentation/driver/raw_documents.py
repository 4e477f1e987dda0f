"""Documents as their bytes, of raw batches and raw documents: one by one, and without ``_id``."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from bson.raw_bson import RawBSONDocument

if TYPE_CHECKING:
    from collections.abc import Iterator

_LENGTH = struct.Struct("<i")
_ID = b"_id"
_FIXED = {
    0x01: 8, 0x06: 0, 0x07: 12, 0x08: 1, 0x09: 8, 0x0A: 0, 0x10: 4, 0x11: 8, 0x12: 8, 0x13: 16,
    0x7F: 0, 0xFF: 0,
}  # fmt: skip
"""Bytes of a value, by its type (BSON 1.1)."""
_MORE = {0x02: 4, 0x03: 0, 0x04: 0, 0x05: 5, 0x0C: 16, 0x0D: 4, 0x0E: 4, 0x0F: 0}
"""Bytes of a value beside those that its first four count."""


def raw_documents(stream: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(stream):
        end = at + _LENGTH.unpack_from(stream, at)[0]
        yield stream[at:end]
        at = end


def without_id(document: Any, options: Any) -> Any:
    """A document, or a stream of raw ones, without ``_id``; changed in place where it can be.

    ``options``: the codec options of its collection.
    """
    if isinstance(document, bytes):
        return b"".join(map(_cut, raw_documents(document)))
    if isinstance(document, RawBSONDocument):
        return type(document)(_cut(bytes(document.raw)), options)
    document.pop("_id", None)
    return document


def _cut(document: bytes) -> bytes:
    at = _LENGTH.size
    while document[at]:
        named = document.index(0, at)
        end = _end(document, document[at], named + 1)
        if document[at + 1 : named] == _ID:
            length = _LENGTH.pack(len(document) - (end - at))
            return length + document[_LENGTH.size : at] + document[end:]
        at = end
    return document


def _end(document: bytes, kind: int, at: int) -> int:
    """Where the value at ``at`` ends."""
    if kind in _FIXED:
        return at + _FIXED[kind]
    if kind in _MORE:
        return at + int(_LENGTH.unpack_from(document, at)[0]) + _MORE[kind]
    # A regular expression: two texts, each ended by a zero.
    return document.index(0, document.index(0, at) + 1) + 1
