"""A timer's signal at any moment in the library, as Celery's soft time limit: its exception reaches
the application, and nothing stays in force."""

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
from typing import Any

import pymongo_resilience_instrumentation
import pytest
from pymongo import AsyncMongoClient, MongoClient, monitoring
from pymongo.errors import OperationFailure
from pymongo_resilience_instrumentation import in_progress
from support.clients import POLLING, fail_command
from support.engine.retry_strategies import AT_ONCE
from support.telemetry import Instrument

import pymongo_resilience
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
"""Seconds after which a signal counts as lost."""


class SoftTimeLimitExceeded(Exception):  # noqa: N818 - as Celery calls it
    pass


applications: list[Any] = []
"""Tasks that the application runs; every other one is the driver's."""
timing: set[object] = set()
"""Empty while the timer is to be off: a signal on its way as that is stopped starts it no more."""


def in_application() -> bool:
    try:
        return asyncio.current_task() in applications[-1:]
    except RuntimeError:  # the loop is not running
        return False


def until_struck(act: Callable[[], Any], after: float, lost: Callable[[], int]) -> bool:
    """Whether the exception arrived of a signal that a timer sends ``after`` so many seconds."""
    end, before = time.monotonic() + LONG, lost()
    try:
        timing.add(act)
        signal.setitimer(signal.ITIMER_REAL, after)
        while time.monotonic() < end and lost() == before:
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

    def strike(signum: int, frame: Any) -> None:
        if not frame.f_code.co_filename.startswith(OURS) or (asynchronous and not in_application()):
            # What the driver or the interpreter makes of it elsewhere is not ours to see.
            if timing:
                signal.setitimer(signal.ITIMER_REAL, 0.0001)
            return
        raise SoftTimeLimitExceeded

    # In a finalizer the interpreter keeps it; as a listener is called, the driver does.
    monkeypatch.setattr(sys, "unraisablehook", lambda made: kept.append(made.exc_value))
    monkeypatch.setattr(monitoring, "_handle_exception", lambda: kept.append(sys.exception()))

    def lost() -> int:
        errors = [each for each in caplog.records if each.levelno >= logging.ERROR]
        # Where foreign code is called, nothing shows that it has not raised this: it is logged so.
        assert {each.exc_info and each.exc_info[0] for each in errors} <= {SoftTimeLimitExceeded}
        return len(errors) + sum(isinstance(each, SoftTimeLimitExceeded) for each in kept)

    before = signal.signal(signal.SIGALRM, strike)
    arrived, times = 0, TIMES // 3 if fails else TIMES
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

            for _ in range(times):
                arrived += until_struck(act, rng.uniform(0.0002, 0.004), lost)
                assert in_progress.current() is None
    finally:
        signal.signal(signal.SIGALRM, before)
    # Of a coroutine that was not awaited yet the interpreter warns.
    assert {*map(type, kept)} <= {SoftTimeLimitExceeded, RuntimeWarning}
    # The others struck where foreign code is called, or where pymongo ignores an exception.
    assert arrived >= 0.75 * times
