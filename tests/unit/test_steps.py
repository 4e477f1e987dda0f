"""Logic that is written once runs in a thread and in a task alike."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from pymongo_resilience.steps import Steps, run, run_async

Run = Callable[[Steps], Any]
Make = Callable[[Any], Callable[[], Any]]


def sync_call(result: Any) -> Callable[[], Any]:
    def call() -> Any:
        if isinstance(result, BaseException):
            raise result
        return result

    return call


def async_call(result: Any) -> Callable[[], Any]:
    async def call() -> Any:
        await asyncio.sleep(0)
        return sync_call(result)()

    return call


@pytest.fixture(params=["sync", "async"])
def side(request: pytest.FixtureRequest) -> tuple[Run, Make]:
    if request.param == "sync":
        return run, sync_call
    return lambda steps: asyncio.run(run_async(steps)), async_call


def test_each_call_gives_its_result(side: tuple[Run, Make]) -> None:
    run, call = side

    def steps() -> Steps:
        first = yield call(1)
        second = yield call(2)
        return first + second

    assert run(steps()) == 3


def test_an_error_is_the_steps_to_handle(side: tuple[Run, Make]) -> None:
    run, call = side

    def steps() -> Steps:
        try:
            yield call(KeyError("first"))
        except KeyError:
            return (yield call("instead"))

    assert run(steps()) == "instead"


@pytest.mark.parametrize("error", [LookupError("x"), KeyboardInterrupt()])
def test_one_that_they_let_through_is_raised_as_it_is(
    error: BaseException, side: tuple[Run, Make]
) -> None:
    run, call = side
    left = []

    def steps() -> Steps:
        try:
            yield call(error)
        finally:
            left.append(True)

    with pytest.raises(type(error)) as caught:
        run(steps())
    assert caught.value is error
    assert (error.__cause__, error.__context__, left) == (None, None, [True])


def test_steps_without_a_call_are_done_at_once(side: tuple[Run, Make]) -> None:
    run, _ = side

    def steps() -> Steps:
        return "nothing to wait for"
        yield

    assert run(steps()) == "nothing to wait for"


def test_a_cancellation_ends_the_steps() -> None:
    left = []

    def steps() -> Steps:
        try:
            yield asyncio.Event().wait
        finally:
            left.append(True)

    async def cancelled() -> None:
        task = asyncio.create_task(run_async(steps()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert left == [True]


def test_an_error_keeps_nothing_alive(side: tuple[Run, Make]) -> None:
    run, _ = side

    class Kept:
        pass

    kept = Kept()
    gone = weakref.ref(kept)

    def steps(_kept: Kept) -> Steps:
        try:
            yield {}.popitem  # for an error that nobody else holds
        except KeyError:
            return None

    gc.collect()
    gc.disable()
    try:
        run(steps(kept))
        del kept
        assert gone() is None
    finally:
        gc.enable()
