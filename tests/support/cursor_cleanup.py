"""What the tests of killCursors and endSessions share."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pymongo
import pytest
from bson.int64 import Int64
from support.clients import SentCommands, Side

from pymongo_resilience.rules.retry_rules import RetryRules
from pymongo_resilience.testing import set_active

CURSOR_NOT_FOUND = 43
OF_ANOTHER_SESSION = 50738
"""What a mongod says of a cursor that it knows; SecantusDB reads it for anybody."""
BY_HAND = 3600.0
"""Seconds between two runs of the background task where a test runs it itself."""


@pytest.fixture
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each back-off after an overload error is as long as it can be."""
    certain = functools.partial(RetryRules, random=lambda: 1.0)
    monkeypatch.setattr("pymongo_resilience_instrumentation.runtime.RetryRules", certain)


@pytest.fixture
def background_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymongo.common.KILL_CURSOR_FREQUENCY", BY_HAND)


def close(side: Side, cursor: Any) -> None:
    side.do(cursor.close)


def leave_the_block(side: Side, cursor: Any) -> None:
    async def asynchronous() -> None:
        async with cursor:
            pass

    def synchronous() -> None:
        with cursor:
            pass

    side.do(asynchronous if side.name == "async" else synchronous)


def run_background(side: Side, client: Any) -> None:
    """What the client's background task does at each tick, in the caller's thread or task."""
    side.do(client._process_periodic_tasks)


@pytest.fixture
def documents(control: pymongo.MongoClient[Any], database: str) -> str:
    """The name of a database with a collection too large for one batch."""
    with set_active(False):
        control[database].coll.insert_many([{"_id": n} for n in range(10)])
    return database


def half_read(side: Side, client: Any, database: str) -> Any:
    """A cursor that is open on the server."""
    cursor = client[database].coll.find(batch_size=2)
    side.do(cursor.next)
    assert cursor.cursor_id
    return cursor


def is_open(control: pymongo.MongoClient[Any], database: str, cursor_id: int) -> bool:
    """Whether the server knows the cursor; SecantusDB reads one document of it to find out."""
    with set_active(False):
        try:
            control[database].command("getMore", Int64(cursor_id), collection="coll", batchSize=1)
        except pymongo.errors.OperationFailure as error:
            if error.code in {CURSOR_NOT_FOUND, OF_ANOTHER_SESSION}:
                return error.code == OF_ANOTHER_SESSION
            raise
    return True


def killed(sent: SentCommands) -> list[list[int]]:
    """The cursors of each killCursors, in order."""
    return [command["cursors"] for command in sent.named("killCursors")]


async def until(condition: Callable[[], Any]) -> None:
    """Lets other tasks run until the condition is true."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for is no task's, but the server's
            await asyncio.sleep(0.005)
