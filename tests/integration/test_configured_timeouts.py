"""A timeout of the configuration's bounds each command, and ends nothing that waits for news.

Nobody asked for it at this change stream, tailable cursor or stream of GridFS: those live on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pymongo
import pytest
from gridfs import GridFSBucket
from gridfs.asynchronous import AsyncGridFSBucket
from pymongo.cursor import CursorType
from support.clients import SentCommands, Side, fail_command, wait_until
from support.command_listeners import OnCommands
from support.cursor_timeouts import MINUTE, rest
from support.telemetry import Instrument
from support.wait_helpers import wait_for_server

from pymongo_resilience import OperationTimeoutError, Policy, override
from pymongo_resilience.testbed import EmbeddedServer
from pymongo_resilience.testing import set_active

pytestmark = pytest.mark.oldest

SHORT = 300
"""Milliseconds: less than a server waits for news."""


@pytest.fixture(params=["process", "rule", "rule over the client's"])
def configure(
    request: pytest.FixtureRequest,
    side: Side,
    server: EmbeddedServer,
    database: str,
    control: Any,
    sent: SentCommands,
    instrument: Instrument,
) -> Callable[[int], Any]:
    """The database of a client under a timeout that the configuration gives."""

    def configured(milliseconds: int, **options: Any) -> Any:
        rule = {f"{database}.*": Policy(timeout_ms=milliseconds)}
        process = request.param == "process"
        instrument(timeout_ms=milliseconds if process else None, policies=None if process else rule)
        own = {"timeoutMS": 100} if request.param == "rule over the client's" else {}
        client = side.client(server.uri, event_listeners=[sent], **own, **options)
        with override(timeout_ms=MINUTE):
            wait_for_server(side, client)
        sent.started_events.clear()
        return client[database]

    return configured


def write(control: Any, database: str, *ids: int) -> None:
    """By somebody else."""
    with set_active(False):
        control[database].coll.insert_many([{"_id": n} for n in ids])


def write_once_waiting(control: Any, database: str, sent: SentCommands, waits: int) -> Any:
    """A listener: writes when so many getMores were sent that found nothing."""

    def succeeded(event: Any) -> None:
        if event.command_name == "getMore" and len(sent.named("getMore")) == waits:
            write(control, database, 1)

    return OnCommands(succeeded=succeeded)


@pytest.fixture
def watched(
    side: Side,
    server: EmbeddedServer,
    database: str,
    control: Any,
    sent: SentCommands,
    instrument: Instrument,
) -> Callable[[int | None, int], Any]:
    """A change stream with this wait for news, which come after so many getMores."""

    def watch(max_await: int | None, waits: int) -> Any:
        instrument(timeout_ms=SHORT)
        with set_active(False):
            control[database].create_collection("coll")
        writer = write_once_waiting(control, database, sent, waits)
        client = side.client(server.uri, event_listeners=[sent, writer])
        wait_for_server(side, client)
        return side.do(client[database].coll.watch, max_await_time_ms=max_await)

    return watch


@pytest.mark.parametrize(("max_await", "waits"), [(None, 1), (2 * SHORT, 2), (5, 100)])
def test_an_idle_change_stream_waits_on(
    max_await: int | None, waits: int, side: Side, watched: Any, sent: SentCommands
) -> None:
    """The wait for news is the server's: it is no part of the time, however short that is."""
    stream = watched(max_await, waits)
    started = time.monotonic()
    assert side.do(stream.next)["documentKey"]["_id"] == 1
    assert time.monotonic() - started > SHORT / 1000
    assert {command.get("maxTimeMS") for command in sent.named("getMore")} == {max_await}
    assert len(sent.named("aggregate")) == 1, "it was never resumed"
    side.do(stream.close)


def test_a_change_stream_that_was_resumed_waits_on_as_well(
    side: Side, watched: Any, control: Any, sent: SentCommands
) -> None:
    stream = watched(2 * SHORT, 2)
    with fail_command(control, "getMore", errorCode=43, times=1):
        change = wait_until(lambda: side.do(stream.try_next))
    assert change["documentKey"]["_id"] == 1
    assert len(sent.named("aggregate")) == 2, "it was resumed once"
    side.do(stream.close)


def test_each_command_of_a_change_stream_has_the_time(
    configure: Callable[[int], Any], side: Side, control: Any, sent: SentCommands
) -> None:
    """A getMore that hangs ends, and so does a resume that hangs, when plain pymongo gives up."""
    db = configure(500, serverSelectionTimeoutMS=1000)
    with set_active(False):
        control[db.name].create_collection("coll")
    stream = side.do(db.coll.watch, max_await_time_ms=20)
    hangs = {"blockConnection": True, "blockTimeMS": 5000}
    with fail_command(control, "getMore", times=1, **hangs):
        started = time.monotonic()
        assert side.do(stream.try_next) is None
        assert 0.5 < time.monotonic() - started < 4
    assert len(sent.named("aggregate")) == 2
    write(control, db.name, 1)
    assert side.do(stream.next)["documentKey"]["_id"] == 1
    with fail_command(control, "getMore", "aggregate", **hangs):
        with pytest.raises(OperationTimeoutError) as caught:
            side.do(stream.next)
    assert caught.value.timeout_s == 1.0, "that of the resume"
    assert "call next() again" in str(caught.value)
    assert stream.alive
    write(control, db.name, 2)
    assert side.do(stream.next)["documentKey"]["_id"] == 2
    # Also where the wait is in the cursor that a resume has made.
    with override(timeout_ms=100), pytest.raises(OperationTimeoutError):
        side.do(stream.next)
    side.do(stream.close)


def test_an_application_has_a_next_that_ends(
    configure: Callable[[int], Any], side: Side, control: Any
) -> None:
    db = configure(MINUTE)
    with set_active(False):
        control[db.name].create_collection("coll")
    stream = side.do(db.coll.watch, max_await_time_ms=20)
    for block in (override(timeout_ms=SHORT), pymongo.timeout(SHORT / 1000)):
        with block, pytest.raises(OperationTimeoutError) as caught:
            side.do(stream.next)
        assert caught.value.timeout_s == SHORT / 1000
    side.do(stream.close)


@pytest.mark.parametrize(("max_await", "waits"), [(2 * SHORT, 2 * SHORT), (None, 1000)])
def test_a_tailable_cursor_waits_for_news(
    max_await: int | None, waits: int, configure: Callable[[int], Any], side: Side, control: Any
) -> None:
    """As long as the server does: for a second, where the application does not say."""
    db = configure(SHORT)
    with set_active(False):
        control[db.name].create_collection("coll", capped=True, size=100_000)
    write(control, db.name, 0)
    cursor = db.coll.find(cursor_type=CursorType.TAILABLE_AWAIT).max_await_time_ms(max_await)
    assert [each["_id"] for each in rest(side, cursor)] == [0]
    write(control, db.name, 1)
    assert [each["_id"] for each in rest(side, cursor)] == [1]
    assert cursor.alive
    with fail_command(control, "getMore", blockConnection=True, blockTimeMS=5000, times=1):
        (error,) = rest(side, cursor)
    assert isinstance(error, OperationTimeoutError)
    assert error.timeout_s == pytest.approx((SHORT + waits) / 1000)


def test_a_stream_of_gridfs_lives_on_and_each_of_its_methods_has_the_time(
    configure: Callable[[int], Any], side: Side, control: Any
) -> None:
    db = configure(300)
    make = GridFSBucket if side.runner is None else AsyncGridFSBucket
    bucket = make(db, chunk_size_bytes=10)
    upload = bucket.open_upload_stream("name")
    side.do(upload.write, b"x" * 25)
    time.sleep(0.35)
    side.do(upload.close)
    download = side.do(bucket.open_download_stream_by_name, "name")
    assert side.do(download.read, 10) == b"x" * 10
    time.sleep(0.35)
    assert side.do(download.read) == b"x" * 15
    hung = side.do(bucket.open_download_stream_by_name, "name")
    with fail_command(control, "find", blockConnection=True, blockTimeMS=5000, times=1):
        with pytest.raises(OperationTimeoutError) as caught:
            side.do(hung.read)
    assert caught.value.timeout_s == 0.3
