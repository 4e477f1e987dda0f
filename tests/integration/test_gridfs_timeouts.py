"""GridFS under deadlines: where a bucket has its own from, its methods as a whole, its streams."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Callable
from typing import Any

import gridfs
import pymongo
import pytest
from support.clients import SentCommands, Side, wait_until
from support.cursor_timeouts import age
from support.telemetry import Instrument
from support.transactions import LONG, LOW, DriversTime, TakesTime, drivers_time, limits

from pymongo_resilience import OperationTimeoutError, Policy, bind, override
from pymongo_resilience.testbed import ReplicaSet

__all__ = ["drivers_time"]
pytestmark = pytest.mark.oldest
SMALL = 10
CONTENT = b"0123456789" * 150
"""So many chunks that the server gives them in two batches."""


def bucket_of(side: Side, db: Any, **options: Any) -> Any:
    cls: Any = gridfs.GridFSBucket if side.runner is None else gridfs.AsyncGridFSBucket
    return cls(db, chunk_size_bytes=SMALL, **options)


def filesystem_of(side: Side, db: Any) -> Any:
    cls: Any = gridfs.GridFS if side.runner is None else gridfs.AsyncGridFS
    return cls(db)


@pytest.fixture
def stored(control: Any, database: str) -> str:
    """The database has a file of two batches of chunks."""
    gridfs.GridFSBucket(control[database], chunk_size_bytes=SMALL).upload_from_stream_with_id(
        "file", "name", CONTENT
    )
    return database


def assert_limit(limit: int | None, most: float) -> None:
    """What is left of LOW, give or take a quarter of it."""
    assert limit is not None
    assert most - LOW / 4 < limit <= most


def rule(database: str, pattern: str) -> dict[str, Any]:
    life = Policy(timeout_ms=LOW, timeout_mode="cursor_lifetime")
    return {"policies": {f"{database}.{pattern}": life}}


SOURCES: dict[str, dict[str, Any]] = {
    "Config": {"config": lambda _: {"timeout_ms": LOW, "timeout_mode": "cursor_lifetime"}},
    "client": {"config": lambda _: {"timeout_ms": LONG}, "client": {"timeoutMS": LOW}},
    "a rule for the files": {"config": lambda db: rule(db, "fs.files"), "client": {"timeoutMS": 0}},
    "a rule for the bucket": {"config": lambda db: rule(db, "fs.*")},
    "bind": {"client": {"timeoutMS": LONG}, "bound": True},
    "override": {"client": {"timeoutMS": LONG}, "around": lambda: override(timeout_ms=LOW)},
    "pymongo.timeout": {"around": lambda: pymongo.timeout(LOW / 1000)},
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_stream_has_its_buckets_timeout_for_its_whole_life(
    source: str, side: Side, proxy: ReplicaSet, stored: str, instrument: Instrument,
    drivers_time: DriversTime,
) -> None:  # fmt: skip
    given = SOURCES[source]
    instrument(**given.get("config", lambda _: {})(stored))
    sent = SentCommands()
    db = side.client(proxy.uri, event_listeners=[sent], **given.get("client", {}))[stored]
    if given.get("bound"):
        db = bind(db, Policy(timeout_ms=LOW))
    bucket = bucket_of(side, db)
    with given.get("around", contextlib.nullcontext)():
        stream = side.do(bucket.open_download_stream, "file")
    # Not even an override that is longer gives it more.
    with override(timeout_ms=LONG):
        drivers_time.passed = LOW / 2 / 1000
        assert side.do(stream.read, 25) == CONTENT[:25]
        of_the_file, of_the_chunks = limits(sent, "find")
        assert_limit(of_the_file, LOW)
        assert_limit(of_the_chunks, LOW / 2)
        drivers_time.passed = LOW / 1000
        with pytest.raises(OperationTimeoutError) as caught:
            side.do(stream.read)
    assert caught.value.timeout_s == LOW / 1000
    assert caught.value.elapsed_s >= LOW / 1000
    assert sent.named("getMore") == []
    side.do(stream.close)
    # Another stream of the bucket has a life of its own.
    with given.get("around", contextlib.nullcontext)():
        assert side.do(side.do(bucket.open_download_stream, "file").read) == CONTENT


def test_so_has_one_that_is_written(
    side: Side, proxy: ReplicaSet, database: str, control: Any, instrument: Instrument,
    drivers_time: DriversTime,
) -> None:  # fmt: skip
    instrument(timeout_ms=LOW, timeout_mode="cursor_lifetime")
    sent = SentCommands()
    bucket = bucket_of(side, side.client(proxy.uri, event_listeners=[sent])[database])
    stream = bucket.open_upload_stream_with_id("file", "name")
    drivers_time.passed += LOW / 2 / 1000
    side.do(stream.write, CONTENT)
    side.do(stream.close)
    assert control[database].fs.files.count_documents({"_id": "file"}) == 1
    for limit in limits(sent, "insert"):
        assert_limit(limit, LOW / 2)
    late = bucket.open_upload_stream("late")
    side.do(late.write, CONTENT)
    sent.started_events.clear()
    drivers_time.passed += LOW / 1000
    for end in (late.close, late.abort):
        with pytest.raises(OperationTimeoutError):
            side.do(end)
    assert sent.started_events == []
    assert control[database].fs.files.count_documents({"filename": "late"}) == 0


def test_of_two_timeouts_around_a_stream_the_shorter_holds(
    side: Side, proxy: ReplicaSet, stored: str, instrument: Instrument
) -> None:
    instrument(timeout_ms=LONG)
    sent = SentCommands()
    bucket = bucket_of(side, side.client(proxy.uri, event_listeners=[sent])[stored])
    for block in (pymongo.timeout(LOW / 1000), override(timeout_ms=LOW)):
        stream = side.do(bucket.open_download_stream, "file")
        with block:
            side.do(stream.readchunk)
        assert_limit(limits(sent, "find")[-1], LOW)


def test_closing_one_too_late_leaves_its_cursor_to_the_background_task(
    side: Side, proxy: ReplicaSet, stored: str, instrument: Instrument, drivers_time: DriversTime
) -> None:
    """The text has even close() end in time; elsewhere, a cursor's close() has the whole again."""
    instrument(timeout_ms=LOW, timeout_mode="cursor_lifetime")
    sent = SentCommands()
    bucket = bucket_of(side, side.client(proxy.uri, event_listeners=[sent])[stored])
    stream = side.do(bucket.open_download_stream, "file")
    side.do(stream.readchunk)
    drivers_time.passed = LOW / 1000
    side.do(stream.close)
    assert sent.named("killCursors") == []

    def killed() -> list[Any]:
        return sent.named("killCursors")

    if side.runner is None:
        wait_until(killed)
    else:
        side.do(asyncio.to_thread, wait_until, killed)
    assert len(killed()) == 1


class Source(io.BytesIO):
    """An application's own stream, slow on the driver's clock."""

    def __init__(self, clock: DriversTime, seconds: float) -> None:
        super().__init__(CONTENT)
        self._clock = clock
        self._seconds = seconds

    def read(self, size: int | None = -1) -> bytes:
        self._clock.passed += self._seconds
        return super().read(size)


@pytest.mark.parametrize(
    ("name", "names"),
    [("upload_from_stream", ["new"]), ("upload_from_stream_with_id", ["id", "new"])],
)
def test_an_upload_has_one_deadline_as_a_whole(
    name: str, names: list[str], side: Side, proxy: ReplicaSet, stored: str, control: Any,
    instrument: Instrument, drivers_time: DriversTime,
) -> None:  # fmt: skip
    instrument()
    sent = SentCommands()
    bucket = bucket_of(side, side.client(proxy.uri, event_listeners=[sent])[stored])
    upload = getattr(bucket, name)
    with override(timeout_ms=LOW), pytest.raises(OperationTimeoutError):
        side.do(upload, *names, Source(drivers_time, LOW / 1000))
    assert sent.named("insert") == []
    with override(timeout_ms=LOW):
        side.do(upload, *names, Source(drivers_time, 0))
    assert control[stored].fs.files.count_documents({"filename": "new"}) == 1


WHOLE: dict[str, tuple[Callable[[Side, Any], tuple[Any, ...]], list[str]]] = {
    "download_to_stream": (
        lambda side, db: (bucket_of(side, db).download_to_stream, "file", io.BytesIO()),
        ["find", "find"],
    ),
    "download_to_stream_by_name": (
        lambda side, db: (bucket_of(side, db).download_to_stream_by_name, "name", io.BytesIO()),
        ["find", "find"],
    ),
    "delete_by_name": (
        lambda side, db: (bucket_of(side, db).delete_by_name, "name"),
        ["find", "delete"],
    ),
    "put": (lambda side, db: (filesystem_of(side, db).put, b"x"), ["find", "find"]),
}


@pytest.mark.parametrize("name", WHOLE)
def test_so_has_each_method_of_more_than_one_command(
    name: str, side: Side, proxy: ReplicaSet, stored: str, instrument: Instrument,
    drivers_time: DriversTime,
) -> None:  # fmt: skip
    instrument()
    sent = TakesTime(drivers_time, LOW / 2)
    db = side.client(proxy.uri, event_listeners=[sent])[stored]
    make, commands = WHOLE[name]
    function, *args = make(side, db)
    with override(timeout_ms=LOW), pytest.raises(OperationTimeoutError):
        side.do(function, *args)
    assert [each.command_name for each in sent.started_events][:2] == commands
    first, second = limits(sent, *set(commands))
    assert_limit(first, LOW)
    assert_limit(second, LOW / 2)


def test_a_file_that_was_only_found_begins_its_life_with_the_first_read(
    side: Side, proxy: ReplicaSet, stored: str, instrument: Instrument, drivers_time: DriversTime
) -> None:
    instrument(timeout_ms=LOW, timeout_mode="cursor_lifetime")
    sent = SentCommands()
    found = side.do(
        filesystem_of(side, side.client(proxy.uri, event_listeners=[sent])[stored]).find_one
    )
    drivers_time.passed = 2 * LOW / 1000
    assert side.do(found.read, 5) == CONTENT[:5]
    drivers_time.passed += LOW / 1000
    with pytest.raises(OperationTimeoutError):
        side.do(found.read)


@pytest.mark.parametrize("where", ["override", "bind", "client"])
def test_a_cursor_over_files_takes_its_timeout_along_and_has_a_life(
    where: str, side: Side, proxy: ReplicaSet, stored: str, control: Any, instrument: Instrument
) -> None:
    control[stored].fs.files.insert_many([{"_id": n, "length": 0} for n in range(5)])
    instrument()
    sent = SentCommands()
    own = {"timeoutMS": LOW} if where == "client" else {}
    db = side.client(proxy.uri, event_listeners=[sent], **own)[stored]
    if where == "bind":
        db = bind(db, Policy(timeout_ms=LOW))
    block = override(timeout_ms=LOW)
    with block if where == "override" else contextlib.nullcontext():
        cursor = bucket_of(side, db).find({}, batch_size=2)
    side.do(cursor.next)
    assert_limit(limits(sent, "find")[0], LOW)
    age(cursor)
    side.do(cursor.next)
    with pytest.raises(OperationTimeoutError) as caught:
        side.do(cursor.next)
    assert caught.value.timeout_s == LOW / 1000


def test_without_a_timeout_there_is_none(
    side: Side, proxy: ReplicaSet, stored: str, instrument: Instrument
) -> None:
    instrument()
    sent = SentCommands()
    bucket = bucket_of(side, side.client(proxy.uri, event_listeners=[sent])[stored])
    stream = side.do(bucket.open_download_stream, "file")
    with override(timeout_ms=LOW):
        side.do(stream.read, 5)
    assert side.do(stream.read) == CONTENT[5:]
    side.do(bucket.upload_from_stream, "new", CONTENT)
    none, own = limits(sent, "find")[:2]
    assert none is None
    assert_limit(own, LOW)
    assert set(limits(sent, "insert")) == {None}


@pytest.mark.parametrize("where", ["process", "rule", "override"])
def test_the_cursors_of_a_stream_have_its_life_whatever_mode_is_set(
    where: str, side: Side, proxy: ReplicaSet, stored: str, instrument: Instrument
) -> None:
    around: Any = contextlib.nullcontext()
    if where == "process":
        instrument(timeout_ms=LOW, timeout_mode="iteration")
    elif where == "rule":
        by_iteration = Policy(timeout_ms=LOW, timeout_mode="iteration")
        instrument(policies={f"{stored}.fs.*": by_iteration})
    else:
        instrument()
        around = override(timeout_ms=LOW, timeout_mode="iteration")
    sent = SentCommands()
    bucket = bucket_of(side, side.client(proxy.uri, event_listeners=[sent])[stored])
    with around:
        stream = side.do(bucket.open_download_stream, "file")
        assert side.do(stream.read) == CONTENT
    of_file, of_chunks = limits(sent, "find")
    assert_limit(of_file, LOW)
    if where == "override":
        assert_limit(of_chunks, LOW)
    else:
        assert of_chunks is None, "under the configuration each batch has its own time"
