"""A timer's signal at any moment in the library, as Celery's soft time limit: nothing stays in
force, and mostly it arrives. What strikes inside of a block of ours that must not fail ends there,
as an internal error, and may cost the operation its repetition."""

from __future__ import annotations

import logging
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from pymongo import MongoClient, monitoring
from pymongo.errors import OperationFailure
from pymongo_resilience_instrumentation import calls
from support.clients import POLLING, fail_command
from support.engine.retry_strategies import AT_ONCE
from support.striking import OURS, SoftTimeLimitExceeded
from support.telemetry import Instrument

from pymongo_resilience.testbed import ReplicaSet

pytestmark = [
    pytest.mark.alone("its signals strike whatever the process does"),
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no such timers here"),
]
TIMES = 60
LONG = 5.0
"""Seconds after which a signal counts as lost."""


timing: set[object] = set()
"""Empty while the timer is to be off: a signal on its way as that is stopped starts it no more."""


def until_struck(act: Callable[[], Any], after: float, logged: list[Any]) -> bool:
    """Whether the signal arrived that a timer sends ``after`` so many seconds, before it was
    ``logged``."""
    end, before = time.monotonic() + LONG, len(logged)
    try:
        timing.add(act)
        signal.setitimer(signal.ITIMER_REAL, after)
        while time.monotonic() < end and len(logged) == before:
            act()
    except SoftTimeLimitExceeded:
        return True
    finally:
        timing.clear()
        signal.setitimer(signal.ITIMER_REAL, 0)
    return False


@pytest.mark.parametrize("fails", [False, True], ids=["healthy", "failing"])
def test_whatever_it_strikes_nothing_stays_in_force(
    fails: bool,
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
        if not frame.f_code.co_filename.startswith(OURS):
            # What the driver or the interpreter makes of it elsewhere is not ours to see.
            if timing:
                signal.setitimer(signal.ITIMER_REAL, 0.0001)
            return
        raise SoftTimeLimitExceeded

    # In a finalizer the interpreter keeps it; as a listener is called, the driver does.
    monkeypatch.setattr(sys, "unraisablehook", kept.append)
    monkeypatch.setattr(monitoring, "_handle_exception", lambda: kept.append(sys.exception()))
    before = signal.signal(signal.SIGALRM, strike)
    arrived = 0
    try:
        with MongoClient(proxy.uri, **POLLING) as client:
            coll = client[database].coll
            coll.insert_one({})

            def act() -> None:
                if fails:
                    with (
                        fail_command(control, "find", errorCode=6, times=1),
                        suppress(OperationFailure),
                    ):
                        coll.find_one({})
                else:
                    coll.find_one({})

            with caplog.at_level(logging.ERROR, logger="pymongo_resilience"):
                for _ in range(TIMES // 3 if fails else TIMES):
                    arrived += until_struck(act, rng.uniform(0.0002, 0.004), caplog.records)
                    assert calls.current() is None
    finally:
        signal.signal(signal.SIGALRM, before)
    logged = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert {each.exc_info and each.exc_info[0] for each in logged} <= {SoftTimeLimitExceeded}
    assert arrived > 0
