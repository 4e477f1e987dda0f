"""The server of the test bed, whose finds by ``_id`` walk its index, as MongoDB's do; resumable.py
starts it in a process of its own.

SecantusDB reads, compares and sorts a whole collection for each find: ten seconds with 200,000
documents. Here a find that is hinted on ``_id`` begins at its bound and reads what it is asked for.
Like MongoDB's it is no snapshot either: it meets what others insert and delete ahead of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import bson
from pymongo_resilience_instrumentation.tools.testbed import server_process
from secantus import commands, storage

PAGE = 128
AFTER_ALL = b"\xff" * 16
find_in_memory = storage.Storage.find_matching
split_in_memory = commands._split_into_cursor
lookup_keys = storage._id_point_lookup_keys


class Walk:
    """The rest of a find, in the place of the server's list: truth and slices read ahead."""

    def __init__(self, store: Any, namespace: tuple[str, str], given: Mapping[str, Any]) -> None:
        self._store = store
        self._namespace = namespace
        self._filter = given["filter"] or {}
        self._let = given.get("let")
        self._backward = (given.get("sort") or {}).get("_id") == -1
        self._low, self._high = _bounds(self._filter)
        self._at = self._high if self._backward else self._low
        self._began = self._over = False
        self._read: list[Any] = []

    def __bool__(self) -> bool:
        return bool(self[:1])

    def __getitem__(self, part: slice) -> Any:
        if part.stop is None:
            del self._read[: part.start]
            return self
        while len(self._read) < part.stop and not self._over:
            self._read_page()
        return self._read[: part.stop]

    def _read_page(self) -> None:
        store = self._store
        with store._lock:
            store._refresh_read_snapshot()
            blobs = [self._blob(each) for each in self._records()]
        documents = (bson.decode(each) for each in blobs if each is not None)
        self._read += (
            each for each in documents if storage.matches(each, self._filter, vars=self._let)
        )

    def _records(self) -> list[int]:
        """Of the next keys in the index, the lower bound included."""
        index = self._store._cursor(storage._NAT_SEQ_TABLE)
        step = index.prev if self._backward else index.next
        index.set_key(*self._namespace, self._at)
        side = index.search_near()
        found: list[int] = []
        ended = side == storage.wt.WT_NOTFOUND
        is_before = side > 0 if self._backward else side < 0
        if not ended and (is_before or (side == 0 and (self._backward or self._began))):
            ended = step() != 0
        self._began = True
        while not ended and len(found) < PAGE:
            *namespace, key = index.get_key()
            if tuple(namespace) != self._namespace or not self._low <= key < self._high:
                break
            self._at = bytes(key)
            found.append(int(index.get_value()))
            ended = step() != 0
        self._over = len(found) < PAGE
        return found

    def _blob(self, record: int) -> bytes | None:
        documents = self._store._cursor(storage._doc_table_for(*self._namespace))
        documents.set_key(*self._namespace, record)
        if documents.search() != 0:
            return None
        blob: bytes = storage._unframe_doc_value(bytes(documents.get_value()))[1]
        return blob


def _bounds(given: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """Those of an ``$expr`` that compares ``_id``, as MongoDB has them from 5.0 on."""
    for part in given.get("$and", [given]):
        for than, (_, literal) in part.get("$expr", {}).items():
            key = storage._id_key(literal["$literal"])
            return (key, AFTER_ALL) if than == "$gt" else (b"", key)
    return b"", AFTER_ALL


def find(store: Any, db: str, coll: str, filter: Any = None, **given: Any) -> Any:  # noqa: A002 - the server's name for it
    walks = given.get("hint") in ("_id_", {"_id": 1}) and set(given.get("sort") or {}) <= {"_id"}
    others = ("skip", "limit", "projection", "collation")
    if walks and not any(given.get(name) for name in others):
        return Walk(store, (db, coll), {"filter": filter, **given})
    return find_in_memory(store, db, coll, filter, **given)


def split(
    documents: Any, batch_size: int, namespace: str, cursors: Any, *, bounded: bool = False
) -> tuple[list[Any], int]:
    if not isinstance(documents, Walk):
        found: tuple[list[Any], int] = split_in_memory(
            documents, batch_size, namespace, cursors, bounded=bounded
        )
        return found
    first = documents[:batch_size]
    if len(first) < batch_size:
        return first, 0
    cursor_id: int = cursors.register(namespace, [])
    cursors.get(cursor_id).remaining = documents[batch_size:]
    return first, cursor_id


def lookup(spec: Any) -> list[bytes] | None:
    """An ``$in`` with documents, too, goes by the index."""
    if isinstance(spec, Mapping) and set(spec) == {"$in"}:
        return sorted({storage._id_key(each) for each in spec["$in"]})
    found: list[bytes] | None = lookup_keys(spec)
    return found


if __name__ == "__main__":
    storage.Storage.find_matching = find
    commands._split_into_cursor = split
    storage._id_point_lookup_keys = lookup
    server_process.main()
