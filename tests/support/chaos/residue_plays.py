"""Plays: pieces of work that might leave something behind, each for both of pymongo's APIs.

Each makes its clients and is done with them; what it was meant to go through, it asserts.
"""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gridfs
import pymongo
import pytest
from support.chaos.play_scene import AuditLog, Scene
from support.clients import fail_command

from pymongo_resilience.testbed import CutAfter

OVERLOADED = {"errorCode": 462, "errorLabels": ["SystemOverloadedError", "RetryableError"]}


class MishapError(Exception):
    """Of the application's own code."""


def retried(scene: Scene) -> None:
    with scene.documents() as coll:
        for command, work in (("find", coll.find_one), ("delete", coll.delete_one)):
            with fail_command(scene.control, command, closeConnection=True, times=2):
                scene.do(work, {"_id": 1})
    assert scene.heard == ["RetryScheduled"] * 4


def given_up(scene: Scene) -> None:
    # Each by a client of its own: both together are past the retry budget of one.
    for command, method in (("find", "find_one"), ("delete", "delete_one")):
        with scene.client() as client, fail_command(scene.control, command, **OVERLOADED):
            with pytest.raises(pymongo.errors.OperationFailure):
                scene.do(getattr(client[scene.database].coll, method), {"_id": 1})
    assert scene.heard == (["RetryScheduled"] * 5 + ["RetryDeclined"]) * 2


def deadline(scene: Scene) -> None:
    # To connect takes a busy machine longer than a command has.
    def connect() -> None:
        with pymongo.timeout(0):
            client.admin.command("ping")

    async def connect_async() -> None:
        with pymongo.timeout(0):
            await client.admin.command("ping")

    with scene.client(timeoutMS=100) as client:
        scene.do(connect_async if scene.is_async else connect)
        with fail_command(scene.control, "find", "insert", errorCode=6):
            for work in (client.db.coll.find_one, client.db.coll.insert_one):
                with pytest.raises(pymongo.errors.PyMongoError) as caught:
                    scene.do(work, {"_id": 1})
                assert caught.value.timeout
    assert scene.heard[-1] == "RetryDeclined"


def abandoned_cursor(scene: Scene) -> None:
    with scene.documents() as coll:
        cursor = coll.find({}, batch_size=2)
        scene.do(cursor.next)
        assert cursor.alive
        del cursor
        gc.collect()
        assert scene.do(coll.find_one, {"_id": 1})


def transaction_left_by_an_exception(scene: Scene) -> None:
    def write(coll: Any) -> None:
        with coll.database.client.start_session() as session, session.start_transaction():
            coll.insert_one({"_id": 10}, session=session)
            raise MishapError

    async def write_async(coll: Any) -> None:
        async with coll.database.client.start_session() as session:
            async with await session.start_transaction():
                await coll.insert_one({"_id": 10}, session=session)
                raise MishapError

    with scene.documents() as coll:
        with pytest.raises(MishapError):
            scene.do(write_async if scene.is_async else write, coll)
        assert scene.do(coll.count_documents, {}) == 10


def operation_in_a_listener(scene: Scene) -> None:
    log = AuditLog()
    with scene.client() as other, scene.documents(event_listeners=[log]) as coll:
        log.coll = other[scene.database].log
        scene.do(coll.insert_one, {"_id": 10})
        for task in log.tasks:
            scene.do(asyncio.wait_for, task, 5)
        assert scene.do(log.coll.count_documents, {}) == 1


def change_stream(scene: Scene) -> None:
    with scene.documents() as coll:
        for closes in (True, False):
            stream = scene.do(coll.watch)
            scene.do(coll.insert_one, {"closes": closes})
            assert scene.do(stream.next)["operationType"] == "insert"
            if closes:
                scene.do(stream.close)
            del stream
            gc.collect()


def grid_file(scene: Scene) -> None:
    bucket_of = gridfs.AsyncGridFSBucket if scene.is_async else gridfs.GridFSBucket
    with scene.client() as client:
        bucket = bucket_of(client[scene.database], chunk_size_bytes=1024)
        for closes in (True, False):
            upload = bucket.open_upload_stream("a file")
            scene.do(upload.write, b"x" * 5000)
            if closes:
                scene.do(upload.close)
        download = scene.do(bucket.open_download_stream_by_name, "a file")
        assert scene.do(download.read, 10) == b"x" * 10
        scene.do(download.close)
        abandoned = scene.do(bucket.open_download_stream_by_name, "a file")
        assert scene.do(abandoned.read, 10) == b"x" * 10
        del upload, download, abandoned
        gc.collect()


def many_at_once(scene: Scene) -> None:
    def in_threads(coll: Any) -> None:
        with ThreadPoolExecutor(8) as executor:
            list(executor.map(lambda i: coll.update_one({"_id": i}, {"$inc": {"n": 1}}), range(8)))

    async def in_tasks(coll: Any) -> None:
        await asyncio.gather(*(coll.update_one({"_id": i}, {"$inc": {"n": 1}}) for i in range(8)))

    with scene.documents() as coll:
        scene.proxy.inject(CutAfter("update", times=4))
        scene.do(in_tasks if scene.is_async else in_threads, coll)
        assert scene.do(coll.count_documents, {"n": 1}) == 8
    # A cut clears the pool, under the others as well.
    assert len(scene.heard) >= 4
    assert set(scene.heard) == {"RetryScheduled"}


def many_clients(scene: Scene) -> None:
    for _ in range(100):
        with scene.client() as client:
            scene.do(client.admin.command, "ping")


PLAYS = (
    retried,
    given_up,
    deadline,
    abandoned_cursor,
    transaction_left_by_an_exception,
    operation_in_a_listener,
    change_stream,
    grid_file,
    many_at_once,
    many_clients,
)
