"""What reaches the server beside the operations of every_operation.py, with canaries as there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.canaries import DATE, MARK, NUMBER, document, matching, text
from support.every_operation import SET, Scene
from support.servers import has

Operation = Callable[[Scene], Any]

NOT_ON_THIS_SERVER = frozenset({
    "create_search_index", "create_search_indexes", "drop_search_index", "list_search_indexes",
    "update_search_index",
})  # fmt: skip
"""Atlas Search alone has them: sent, seen and refused with code 31082 or 6047401."""


def _watch(p: Scene) -> None:
    """Open a change stream, change something, and read what it says."""
    pipeline = [{"$match": {"fullDocument.text": text("a watched insert")}}]
    how = {"full_document": "updateLookup", "max_await_time_ms": 200, "comment": text("a comment")}
    stream = p.do(p.coll.watch, pipeline, **how)
    p.do(p.coll.insert_one, document("a watched insert"))
    change = p.do(stream.next)
    assert change["fullDocument"]["text"] == text("a watched insert")
    p.do(stream.close)


def _transaction(p: Scene) -> None:
    """Commit and abort enter the driver's loop without a wrapper: no span, but a call of ours."""
    session = p.client.start_session()
    for end in (session.commit_transaction, session.abort_transaction):
        p.do(session.start_transaction)
        p.do(p.coll.insert_one, document("a transaction"), session=session)
        p.do(p.coll.update_one, matching("a transaction"), SET, session=session)
        p.do(end)
    p.do(session.end_session)


def _cursor(p: Scene) -> None:
    p.do(p.coll.insert_many, [document("a cursor") for _ in range(5)])
    found = p.coll.find(
        {"number": NUMBER},
        {"said": {"$literal": text("a projection")}, "number": 1},
        batch_size=2,
        sort=[(f"{MARK}-field", 1)],
        **({"let": {"said": text("let")}} if has("5.0") else {}),
        comment=text("a comment"),
    )
    assert len(p.side.documents(found)) > 4, "getMore is an operation as well"
    p.side.documents(p.coll.find_raw_batches(matching("raw batches"), batch_size=2))
    p.do(p.coll.find(matching("explain")).explain)
    half_read = p.coll.find({"number": NUMBER, "date": DATE}, batch_size=1)
    p.do(half_read.next)
    p.do(half_read.close)


def _files(p: Scene) -> None:
    bucket = p.bucket
    name, data = text("a file's name"), text("a file's content").encode()
    stored = p.do(
        bucket.upload_from_stream, name, data, metadata=document("metadata"), chunk_size_bytes=7
    )
    stream = p.do(bucket.open_download_stream_by_name, name)
    assert p.do(stream.read) == data
    assert len(p.side.documents(bucket.find({"filename": name}))) == 1
    p.do(bucket.rename, stored, text("a new name"))
    p.do(bucket.delete, stored)


def _unacknowledged(p: Scene) -> None:
    silent = p.coll.with_options(write_concern=p.coll.write_concern.__class__(w=0))
    p.do(silent.insert_one, document("nobody answers"))


def _users(p: Scene) -> None:
    name = f"{MARK}-somebody"
    p.do(p.db.command, "createUser", name, pwd=f"{MARK}-password", roles=["read"])
    p.do(p.db.command, "updateUser", name, pwd=f"{MARK}-another", roles=["read"])
    p.do(p.db.command, "usersInfo", name)
    p.do(p.db.command, "grantRolesToUser", name, roles=["readWrite"])
    p.do(p.db.command, "dropUser", name)


BESIDE: dict[str, tuple[Operation, str]] = {
    # what else reaches the server, each with a command that proves it was there
    "watch": (_watch, "getMore"),
    "transaction": (_transaction, "abortTransaction"),
    "cursor": (_cursor, "getMore"),
    "GridFS": (_files, "insert"),
    "unacknowledged": (_unacknowledged, "insert"),
    "users": (_users, "usersInfo"),
    "a write by command()": (
        lambda p: p.do(
            p.db.command, {"insert": "coll", "documents": [document("a command")]}
        ),
        "insert",
    ),
    "a value where a collection's name might be": (
        lambda p: p.do(p.db.command, "ping", text("ping")), "ping",
    ),
}  # fmt: skip
