"""Plays in which the application is interrupted: a thread by a signal, a task by cancellation."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest
from pymongo import monitoring
from support.chaos.play_scene import Scene
from support.clients import fail_command

from pymongo_resilience import override
from pymongo_resilience.strategies import RetryAction

SOON = 0.2
"""Seconds from a command's start to the interruption. By then it is sent: in Python 3.11 a
cancellation is dropped that comes together with the end of that."""
SLOW = {"blockConnection": True, "blockTimeMS": 1500}


class Interrupted(BaseException):
    """What Ctrl-C is to a thread, cancellation is to a task."""


STOPPED = (Interrupted, asyncio.CancelledError)


def interrupt_soon() -> None:
    """The thread or task that calls this is interrupted a moment later."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        signal.setitimer(signal.ITIMER_REAL, SOON)
    else:
        assert task is not None
        task.get_loop().call_later(SOON, task.cancel)


class Interrupter(monitoring.CommandListener):
    """Interrupts whoever runs the command for the first time, while it is under way."""

    def __init__(self, command: str) -> None:
        self.command: str | None = command

    def started(self, event: Any) -> None:
        if event.command_name == self.command:
            self.command = None
            interrupt_soon()

    def succeeded(self, event: Any) -> None: ...

    def failed(self, event: Any) -> None: ...


class Patient:
    """A strategy that waits for the application to lose its patience."""

    def retry_after(self, operation: Any, failure: Any) -> RetryAction:
        interrupt_soon()
        return RetryAction(60)


def stopped_in_an_attempt(scene: Scene) -> None:
    with scene.documents(event_listeners=[Interrupter("find")]) as coll:
        with fail_command(scene.control, "find", **SLOW), pytest.raises(STOPPED):
            scene.do(coll.find_one)
    assert scene.heard == []


def stopped_while_closing_a_cursor(scene: Scene) -> None:
    with scene.documents(event_listeners=[Interrupter("killCursors")]) as coll:
        cursor = coll.find({}, batch_size=2)
        scene.do(cursor.next)
        with fail_command(scene.control, "killCursors", **SLOW), pytest.raises(STOPPED):
            scene.do(cursor.close)


def stopped_in_a_back_off(scene: Scene) -> None:
    def find() -> Any:
        with override(strategy=Patient()):
            return coll.find_one()

    async def find_async() -> Any:
        with override(strategy=Patient()):
            return await coll.find_one()

    with scene.documents() as coll, fail_command(scene.control, "find", closeConnection=True):
        with pytest.raises(STOPPED):
            scene.do(find_async if scene.is_async else find)
    assert scene.heard == ["RetryScheduled"]


def stopped_in_a_commit(scene: Scene) -> None:
    def write(coll: Any) -> None:
        with coll.database.client.start_session() as session, session.start_transaction():
            coll.insert_one({"_id": 10}, session=session)

    async def write_async(coll: Any) -> None:
        async with coll.database.client.start_session() as session:
            async with await session.start_transaction():
                await coll.insert_one({"_id": 10}, session=session)

    with scene.documents(event_listeners=[Interrupter("commitTransaction")]) as coll:
        with fail_command(scene.control, "commitTransaction", **SLOW), pytest.raises(STOPPED):
            scene.do(write_async if scene.is_async else write, coll)


INTERRUPTIONS = (
    stopped_in_an_attempt,
    stopped_while_closing_a_cursor,
    stopped_in_a_back_off,
    stopped_in_a_commit,
)
