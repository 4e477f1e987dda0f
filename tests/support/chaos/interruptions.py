"""Plays in which the application is interrupted: a thread by a signal, a task by cancellation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from support.chaos.play_scene import Scene
from support.interruption import Held, interrupt

from pymongo_resilience import override
from pymongo_resilience.strategies import RetryAction
from pymongo_resilience.testbed import CutBefore


def stop(scene: Scene, due: Callable[[], Any], function: Callable[..., Any], *args: Any) -> None:
    interrupt(scene, due, function if scene.is_async else partial(scene.do, function), *args)


def stop_in(scene: Scene, command: str, function: Callable[..., Any], *args: Any) -> None:
    """While its reply is held back."""
    held = Held(command)
    scene.proxy.inject(held)
    stop(scene, held.has_it, function, *args)
    scene.proxy.clear()


def stopped_in_an_attempt(scene: Scene) -> None:
    with scene.documents() as coll:
        stop_in(scene, "find", coll.find_one)
    assert scene.heard == []


def stopped_while_closing_a_cursor(scene: Scene) -> None:
    with scene.documents() as coll:
        cursor = coll.find({}, batch_size=2)
        scene.do(cursor.next)
        stop_in(scene, "killCursors", cursor.close)


class Patient:
    """A strategy that waits for the application to lose its patience."""

    def retry_after(self, operation: Any, failure: Any) -> RetryAction:
        return RetryAction(60)


def stopped_in_a_back_off(scene: Scene) -> None:
    def find() -> Any:
        with override(strategy=Patient()):
            return coll.find_one()

    async def find_async() -> Any:
        with override(strategy=Patient()):
            return await coll.find_one()

    with scene.documents() as coll:
        scene.proxy.inject(CutBefore("find"))
        stop(scene, lambda: scene.heard, find_async if scene.is_async else find)
    assert scene.heard == ["RetryScheduled"]


def stopped_in_a_commit(scene: Scene) -> None:
    def write() -> None:
        with coll.database.client.start_session() as session, session.start_transaction():
            coll.insert_one({"_id": 10}, session=session)

    async def write_async() -> None:
        async with coll.database.client.start_session() as session:
            async with await session.start_transaction():
                await coll.insert_one({"_id": 10}, session=session)

    with scene.documents() as coll:
        stop_in(scene, "commitTransaction", write_async if scene.is_async else write)


INTERRUPTIONS = (
    stopped_in_an_attempt,
    stopped_while_closing_a_cursor,
    stopped_in_a_back_off,
    stopped_in_a_commit,
)
