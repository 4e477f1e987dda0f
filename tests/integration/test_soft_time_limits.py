"""A timer's signal at any moment in the library, as Celery's soft time limit: its exception reaches
the application, and nothing stays in force.

Not where nothing distinguishes it from an exception of foreign code that the library calls, nor
where pymongo or the interpreter keep it: at the first instruction of a listener, in a finalizer.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from traceback import extract_tb, format_stack, walk_stack
from types import FrameType
from typing import Any

import pymongo_resilience_instrumentation
import pytest
from pymongo import AsyncMongoClient, MongoClient, monitoring
from pymongo.errors import OperationFailure
from pymongo_resilience_instrumentation import in_progress
from pymongo_resilience_instrumentation.failures.classify import attribute
from pymongo_resilience_instrumentation.telemetry import listeners
from support.clients import POLLING, fail_command
from support.engine.retry_strategies import AT_ONCE
from support.telemetry import Instrument

import pymongo_resilience
from pymongo_resilience.events import Broadcast
from pymongo_resilience.executor import _awaited, _checked
from pymongo_resilience.internal_errors import wrap_foreign_error
from pymongo_resilience.rules.retry_rules import ask_strategy
from pymongo_resilience.testbed import ReplicaSet

pytestmark = [
    pytest.mark.alone("its signals strike whatever the process does"),
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no such timers here"),
]
OURS = tuple(
    str(Path(package.__file__).parent)
    for package in (pymongo_resilience, pymongo_resilience_instrumentation)
)
TIMES = 60
LONG = 5.0
"""Seconds within which a timer's signal strikes in the library."""
CALLING_FOREIGN_CODE = {
    each.__code__
    for each in (
        wrap_foreign_error, attribute, ask_strategy, _awaited, _checked,
        Broadcast.on_event, in_progress.call_foreign_wrapped,
    )
}  # fmt: skip
"""Of functions that catch whatever a span processor, an error's property, a strategy or a listener
raises."""


class SoftTimeLimitExceeded(Exception): ...  # noqa: N818 - as Celery calls it


applications: list[Any] = []
"""Tasks that the application runs; every other one is the driver's."""
timing: set[object] = set()
"""Empty while the timer is to be off: a signal on its way does not start it again."""


def in_application() -> bool:
    try:
        return asyncio.current_task() in applications[-1:]
    except RuntimeError:  # the loop is not running
        return False


def strikes_in_ours(frame: FrameType) -> bool:
    if frame.f_code in CALLING_FOREIGN_CODE or not frame.f_code.co_filename.startswith(OURS):
        return False
    # A listener of the library's for applications is one of theirs.
    return all(each.f_code is not Broadcast.on_event.__code__ for each, _ in walk_stack(frame))


def until_struck(act: Callable[[], Any], after: float, struck: list[Any]) -> bool:
    """Whether the exception arrived of a signal that a timer sends ``after`` so many seconds."""
    end = time.monotonic() + LONG
    struck.clear()
    try:
        timing.add(act)
        signal.setitimer(signal.ITIMER_REAL, after)
        while not struck:
            assert time.monotonic() < end, "no signal struck"
            act()
    except SoftTimeLimitExceeded:
        return True
    finally:
        timing.clear()
        signal.setitimer(signal.ITIMER_REAL, 0)
    return False


@contextmanager
def acting(
    asynchronous: bool, runner: asyncio.Runner, uri: str, database: str
) -> Iterator[Callable[[], Any]]:
    """A find by a client of the one API or of the other."""
    if not asynchronous:
        with MongoClient(uri, **POLLING) as client:
            coll = client[database].coll
            coll.insert_one({})
            yield lambda: coll.find_one({})
        return
    async_client: AsyncMongoClient[Any] = AsyncMongoClient(uri, **POLLING)
    async_coll = async_client[database].coll

    async def find() -> None:
        applications.append(asyncio.current_task())
        await async_coll.find_one({})

    try:
        runner.run(async_coll.find_one({}))
        yield lambda: runner.run(find())
    finally:
        runner.run(async_client.close())


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("fails", [False, True], ids=["healthy", "failing"])
def test_it_reaches_the_application_and_nothing_stays_in_force(
    fails: bool,
    asynchronous: bool,
    proxy: ReplicaSet,
    database: str,
    control: MongoClient[Any],
    instrument: Instrument,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instrument(timeout_ms=20_000, strategy=AT_ONCE)
    caplog.clear()  # an older pymongo lacks names, which is an ERROR
    rng = random.Random(7)  # noqa: S311 - the same moments each time
    kept: list[Any] = []
    struck: list[str] = []

    def strike(signum: int, frame: Any) -> None:
        if not strikes_in_ours(frame) or (asynchronous and not in_application()):
            # What the driver or the interpreter makes of it elsewhere is not ours to see.
            if timing:
                signal.setitimer(signal.ITIMER_REAL, 0.0001)
            return
        struck.extend(format_stack(frame))
        raise SoftTimeLimitExceeded

    def keep() -> None:
        """In place of what the driver does with an exception of a listener."""
        error = sys.exception()
        assert len(extract_tb(error.__traceback__)) == len(
            ["the driver", "a listener's first instruction", "strike"]
        )
        kept.append(error)

    # In a finalizer the interpreter keeps it.
    monkeypatch.setattr(sys, "unraisablehook", lambda made: kept.append(made.exc_value))
    monkeypatch.setattr(monitoring, "_handle_exception", keep)

    before = signal.signal(signal.SIGALRM, strike)
    try:
        with asyncio.Runner() as runner, acting(asynchronous, runner, proxy.uri, database) as find:

            def act() -> None:
                if fails:
                    with (
                        fail_command(control, "find", errorCode=6, times=1),
                        suppress(OperationFailure),
                    ):
                        find()
                else:
                    find()

            for _ in range(TIMES // 3 if fails else TIMES):
                before_it = len(kept)
                arrived = until_struck(act, rng.uniform(0.0002, 0.004), struck)
                assert arrived or len(kept) > before_it, "".join(struck)
                assert in_progress.current() is None
    finally:
        signal.signal(signal.SIGALRM, before)
    # Of a coroutine that was not awaited yet the interpreter warns.
    assert {*map(type, kept)} <= {SoftTimeLimitExceeded, RuntimeWarning}
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


def test_one_that_struck_in_a_listener_is_raised_instead_of_the_operation_s_error(
    proxy: ReplicaSet,
    database: str,
    control: MongoClient[Any],
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def strike(*_: object) -> None:
        raise SoftTimeLimitExceeded

    instrument()
    monkeypatch.setattr(listeners, "failure_attributes", strike)
    with (
        MongoClient(proxy.uri, **POLLING) as client,
        fail_command(control, "find", errorCode=13, times=1),
        pytest.raises(SoftTimeLimitExceeded),
    ):
        client[database].coll.find_one({})
