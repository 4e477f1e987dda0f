"""How to call each public method of pymongo's and GridFS's classes that sends something; the rest.

By the class of the sync half; the async one has the same names, but for the letter in ``__anext__``
and its like. What every_operation.py has already is taken from there.
"""

from __future__ import annotations

import importlib
import inspect
import io
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gridfs
from gridfs.asynchronous.grid_file import AsyncGridOut
from support import every_method_of_encryption
from support.every_operation import FILE, OF_EVERY_VERSION, TOO_NEW, Scene

MODULES = {
    "Collection": "pymongo.{}.collection",
    "Database": "pymongo.{}.database",
    "MongoClient": "pymongo.{}.mongo_client",
    "Cursor": "pymongo.{}.cursor",
    "CommandCursor": "pymongo.{}.command_cursor",
    "ChangeStream": "pymongo.{}.change_stream",
    "ClientSession": "pymongo.{}.client_session",
    "ClientEncryption": "pymongo.{}.encryption",
    "GridFS": "gridfs.{}.grid_file",
    "GridFSBucket": "gridfs.{}.grid_file",
    "GridIn": "gridfs.{}.grid_file",
    "GridOut": "gridfs.{}.grid_file",
    "GridOutCursor": "gridfs.{}.grid_file",
}
CLASSES: dict[str, tuple[type, type]] = {
    name: (
        getattr(importlib.import_module(module.format("synchronous")), name),
        getattr(importlib.import_module(module.format("asynchronous")), f"Async{name}"),
    )
    for name, module in MODULES.items()
}
ONE_HALF_ALONE = {"Cursor.__getitem__": "sync"}
"""The other half's refuses."""
Call = Callable[[Scene], Any]


def asynchronous(method: str) -> str:
    """``__anext__`` for ``__next__``; of another name, that name."""
    return method.replace("__", "__a", 1) if method in {"__next__", "__exit__"} else method


def exists(owner: str, method: str, scene: Scene) -> bool:
    """Whether the scene's half of pymongo has it, and the server too."""
    if ONE_HALF_ALONE.get(f"{owner}.{method}", scene.side.name) != scene.side.name:
        return False
    if f"{owner}.{method}" in TOO_NEW:
        return False
    cls = CLASSES[owner][scene.side.runner is not None]
    return hasattr(cls, method) or hasattr(cls, asynchronous(method))


def methods_of(owner: str) -> set[str]:
    """The public ones of both halves; ``aclose`` and ``aconnect`` are the async half's own."""
    halves = [inspect.getmembers(cls, callable) for cls in CLASSES[owner]]
    return {name for members in halves for name, _ in members if name[0] != "_"}


def _on(make: Call, method: str, *args: Any, **kwargs: Any) -> Call:
    """The method of what was made, where that sends nothing."""
    return lambda s: s.do(getattr(make(s), method), *args, **kwargs)


def _each(make: Call, *methods: str) -> dict[str, Call]:
    return {method: _on(make, method) for method in methods}


def _step(scene: Scene, iterable: Any) -> Any:
    """``next()`` or ``anext()``, by the operator."""
    return scene.do(getattr(iterable, "__anext__", None) or iterable.__next__)


def _leave(scene: Scene, managed: Any) -> None:
    """The end of a ``with`` block."""
    leave = getattr(managed, "__aexit__", None) or managed.__exit__
    scene.do(leave, None, None, None)


def _find(scene: Scene) -> Any:
    return scene.coll.find(batch_size=2)


def _found(scene: Scene) -> Any:
    """A cursor that has its first batch, and is open on the server."""
    made = _find(scene)
    scene.do(made.next)
    return made


def _aggregate(scene: Scene) -> Any:
    """A command cursor whose first batch is used up."""
    made = scene.do(scene.coll.aggregate, [{"$match": {}}], batchSize=1)
    scene.do(made.next)
    return made


def _watch(scene: Scene) -> Any:
    """A change stream with an event to come."""
    stream = scene.do(scene.coll.watch, max_await_time_ms=100)
    scene.do(scene.coll.insert_one, {})
    return stream


def _in_transaction(scene: Scene) -> Any:
    session = scene.client.start_session()
    scene.do(session.start_transaction)
    scene.do(scene.coll.insert_one, {}, session=session)
    return session


def _with_transaction(scene: Scene) -> None:
    def callback(session: Any) -> Any:
        return scene.coll.insert_one({}, session=session)

    async def awaiting(session: Any) -> Any:
        return await callback(session)

    session = scene.client.start_session()
    scene.do(session.with_transaction, awaiting if scene.side.runner else callback)
    scene.do(session.end_session)


def _upload(scene: Scene) -> Any:
    return scene.do(scene.bucket.open_upload_stream, "upload", 4)


def _written(scene: Scene) -> Any:
    stream = _upload(scene)
    scene.do(stream.write, b"data")
    return stream


def _download(scene: Scene) -> Any:
    """It reads what it is about with the first method."""
    kind = AsyncGridOut if scene.side.runner else gridfs.GridOut
    return kind(scene.db.fs, FILE)


def _opened(scene: Scene) -> Any:
    stream = _download(scene)
    scene.do(stream.open)
    return stream


def _files(scene: Scene) -> Any:
    return scene.bucket.find({}, batch_size=2)


def _close_a_client(scene: Scene, how: str) -> None:
    client = scene.side.client(scene.uri)
    scene.do(client.admin.command, "ping")
    if how == "__exit__":
        _leave(scene, client)
    else:
        scene.do(getattr(client, how, client.close))


def _set_after_close(scene: Scene) -> None:
    """Before, it only keeps the value; and sync streams do it by assigning."""
    stream = _written(scene)
    scene.do(stream.close)
    scene.do(getattr(stream, "set", stream.__setattr__), "label", 1)


def _readlines(scene: Scene) -> None:
    """The async stream has none that works: it takes io.IOBase's, which wants a sync one."""
    stream = _download(scene)
    scene.do(stream.open)
    with suppress(TypeError):
        scene.do(stream.readlines)


_AGAIN: dict[str, dict[str, Call]] = {
    owner: {each.name.partition(" with ")[0]: each.call for each in reversed(calls)}
    for owner, calls in OF_EVERY_VERSION.items()
}
SENDING: dict[str, dict[str, Call]] = {
    **_AGAIN,
    "ClientEncryption": every_method_of_encryption.SENDING,
    "MongoClient": _AGAIN["MongoClient"] | {
        "aclose": lambda s: _close_a_client(s, "aclose"),
        "__exit__": lambda s: _close_a_client(s, "__exit__"),
    },
    "Cursor": {
        **_each(_find, "explain", "next", "to_list"),
        "distinct": _on(_find, "distinct", "n"),
        "close": _on(_found, "close"),
        "__next__": lambda s: _step(s, _find(s)),
        "__getitem__": lambda s: s.all(s.coll.find()[1:2]),
        "__exit__": lambda s: _leave(s, _found(s)),
    },
    "CommandCursor": {
        **_each(_aggregate, "next", "try_next", "to_list", "close"),
        "__next__": lambda s: _step(s, _aggregate(s)),
        "__exit__": lambda s: _leave(s, _aggregate(s)),
    },
    "ChangeStream": {
        **_each(_watch, "next", "try_next", "close"),
        "__next__": lambda s: _step(s, _watch(s)),
        "__exit__": lambda s: _leave(s, _watch(s)),
    },
    "ClientSession": {
        **_each(_in_transaction, "commit_transaction", "abort_transaction", "end_session"),
        "with_transaction": _with_transaction,
        "__exit__": lambda s: _leave(s, _in_transaction(s)),
    },
    "GridFS": _AGAIN["GridFS"] | {
        "new_file": lambda s: s.do(s.files.new_file(filename="new").write, bytes(300_000)),
    },
    "GridIn": {
        "write": _on(_upload, "write", b"more than a chunk"),
        "writelines": _on(_upload, "writelines", [b"more than", b"a chunk"]),
        **_each(_written, "close", "abort"),
        "set": _set_after_close,
        "__exit__": lambda s: _leave(s, _written(s)),
    },
    "GridOut": {
        **_each(_download, "open", "read", "readchunk", "readline"),
        "readlines": _readlines,
        "to_list": lambda s: s.all(_download(s)),
        "close": _on(_opened, "close"),
        "__exit__": lambda s: _leave(s, _opened(s)),
        "seek": _on(_opened, "seek", 0, io.SEEK_END),
        "__next__": lambda s: _step(s, _download(s)),
    },
    "GridOutCursor": {
        **_each(_files, "next", "to_list", "explain"),
        "distinct": _on(_files, "distinct", "filename"),
        "__next__": lambda s: _step(s, _files(s)),
    },
}  # fmt: skip


_OF_A_CURSOR = {
    "add_option", "allow_disk_use", "batch_size", "clone", "collation", "comment", "hint", "limit",
    "max", "max_await_time_ms", "max_scan", "max_time_ms", "min", "remove_option", "rewind", "skip",
    "sort", "where",
}  # fmt: skip
QUIET: dict[str, set[str]] = {
    "ClientEncryption": {"close"},
    "Collection": {"next", "with_options"},
    "Database": {"get_collection", "next", "with_options"},
    "MongoClient": {
        "aconnect", "append_metadata", "eq_props", "get_database", "get_default_database", "next",
        "start_session",
    },
    "Cursor": _OF_A_CURSOR,
    "GridOutCursor": _OF_A_CURSOR | {"close"},
    "CommandCursor": {"batch_size"},
    "ChangeStream": set(),
    "ClientSession": {
        "advance_cluster_time", "advance_operation_time", "bind", "start_transaction",
    },
    "GridFSBucket": set(),
    "GridFS": set(),
    "GridIn": {"read", "readable", "seekable", "writeable"},
    "GridOut": {
        "fileno", "flush", "isatty", "readable", "seekable", "tell", "truncate", "writable",
        "write", "writelines",
    },
}  # fmt: skip
"""What sends nothing."""
