"""A cursor whose time is over is closed in time of its own, and the server's cursor is gone."""

from __future__ import annotations

import gc
from typing import Any

import pymongo
import pytest
from support.clients import SentCommands, Side, fail_command
from support.cursor_cleanup import (
    background_by_hand,
    close,
    documents,
    is_open,
    killed,
    leave_the_block,
    run_background,
)
from support.cursor_timeouts import MINUTE, age, rest
from support.telemetry import Instrument

from pymongo_resilience import OperationTimeoutError, Policy, bind, override
from pymongo_resilience.testbed import EmbeddedServer

__all__ = ["background_by_hand", "documents"]
pytestmark = [pytest.mark.oldest, pytest.mark.usefixtures("background_by_hand")]


@pytest.fixture
def client(side: Side, server: EmbeddedServer, sent: SentCommands) -> Any:
    return side.client(server.uri, event_listeners=[sent])


def _made(kind: str, side: Side, client: Any, database: str) -> Any:
    coll = client[database].coll
    if kind == "watch":
        return side.do(coll.watch, max_await_time_ms=1)
    if kind == "find":
        cursor = coll.find(batch_size=2)
        side.do(cursor.next)
        return cursor
    return side.do(coll.aggregate, [], batchSize=2)


@pytest.mark.parametrize("kind", ["find", "aggregate", "watch"])
@pytest.mark.parametrize("close", [close, leave_the_block])
def test_closing_has_the_whole_time_of_the_operation_again(
    kind: str,
    close: Any,
    side: Side,
    client: Any,
    documents: str,
    control: Any,
    sent: SentCommands,
    instrument: Instrument,
) -> None:
    instrument()
    with override(timeout_ms=MINUTE):
        cursor = _made(kind, side, client, documents)
    cursor_id = getattr(cursor, "_cursor", cursor).cursor_id
    age(cursor)
    close(side, cursor)
    assert not is_open(control, documents, cursor_id)
    (command,) = sent.named("killCursors")
    assert command["cursors"] == [cursor_id]
    assert 0.9 * MINUTE < command["maxTimeMS"] <= MINUTE


@pytest.mark.parametrize("kind", ["find", "watch"])
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("none", None),
        ("process", MINUTE),
        ("client", 35_000),
        ("pymongo.timeout", 40_000),
        ("bind", 50_000),
        ("around the close", 30_000),
    ],
)
def test_which_time_it_is(
    source: str,
    expected: int | None,
    kind: str,
    side: Side,
    server: EmbeddedServer,
    documents: str,
    sent: SentCommands,
    instrument: Instrument,
) -> None:
    instrument(timeout_ms=None if source == "none" else MINUTE)
    own = {"timeoutMS": expected} if source == "client" else {}
    target = client = side.client(server.uri, event_listeners=[sent], **own)
    if source == "bind":
        target = {documents: bind(client[documents], Policy(timeout_ms=50_000))}
    with pymongo.timeout(40) if source == "pymongo.timeout" else override():
        cursor = _made(kind, side, target, documents)
    with override(timeout_ms=30_000) if source == "around the close" else override():
        side.do(cursor.close)
    (command,) = sent.named("killCursors")
    if expected is None:
        assert "maxTimeMS" not in command
        return
    assert 0.9 * expected < command["maxTimeMS"] <= expected


@pytest.mark.parametrize("end", ["close", "with", "collected"])
@pytest.mark.parametrize("expiry", ["before it is sent", "in flight"])
def test_after_a_timeout_the_servers_cursor_is_gone(
    expiry: str,
    end: str,
    side: Side,
    client: Any,
    documents: str,
    control: Any,
    sent: SentCommands,
    instrument: Instrument,
) -> None:
    """pymongo sends no killCursors after an error of a connection, a timeout included."""
    instrument()
    with override(timeout_ms=MINUTE):
        cursor = client[documents].coll.find(batch_size=2)
        side.do(cursor.next)
    cursor_id = cursor.cursor_id
    if expiry == "in flight":
        with fail_command(control, "getMore", blockConnection=True, blockTimeMS=5000, times=1):
            with override(timeout_ms=100):
                error = rest(side, cursor)[-1]
    else:
        age(cursor)
        error = rest(side, cursor)[-1]
    assert isinstance(error, OperationTimeoutError)
    assert is_open(control, documents, cursor_id)
    if end == "close":
        side.do(cursor.close)
    elif end == "with":
        leave_the_block(side, cursor)
    else:
        del cursor, error
        gc.collect()
    run_background(side, client)
    assert not is_open(control, documents, cursor_id)
    assert killed(sent) == [[cursor_id]]
