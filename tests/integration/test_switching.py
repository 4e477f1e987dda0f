"""The library switched on and off by several threads at once, and while operations run."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure
from pymongo_resilience_instrumentation import instrumentor, self_check
from support.clients import Side, fail_command
from support.patched_places import differences, patched_places

import pymongo_resilience
from pymongo_resilience import Config
from pymongo_resilience.testbed import ReplicaSet
from pymongo_resilience.testing import is_active

pytestmark = pytest.mark.oldest
QUIET = Config(traces=False, metrics=False, timeout_ms=5000)
SECONDS = 0.5


def test_threads_that_switch_it_on_at_once_put_one_layer_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, check = patched_places(), self_check.check

    def slowly(parts: Any) -> Any:
        time.sleep(0.02)
        return check(parts)

    monkeypatch.setattr(instrumentor.self_check, "check", slowly)
    threads = [
        threading.Thread(target=pymongo_resilience.instrument, args=(QUIET,)) for _ in range(4)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    try:
        assert differences(before, patched_places())
    finally:
        pymongo_resilience.uninstrument()
    assert differences(before, patched_places()) == set()


def test_no_signal_of_ours_leaves_while_two_threads_switch_it_on_and_off(
    side: Side, proxy: ReplicaSet, database: str, control: MongoClient[Any]
) -> None:
    before = patched_places()
    over, faults, switched = threading.Event(), [], [0]
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.insert_one, {})

    def switch() -> None:
        try:
            while not over.is_set():
                pymongo_resilience.instrument(QUIET)
                time.sleep(0.0005)
                pymongo_resilience.uninstrument()
                switched[0] += 1
        except Exception as error:  # noqa: BLE001 - seen below
            faults.append(error)

    threads = [threading.Thread(target=switch) for _ in range(2)]
    failed = 0
    with fail_command(control, "find", "update", errorCode=2):
        for each in threads:
            each.start()
        try:
            end = time.monotonic() + SECONDS
            while time.monotonic() < end or not switched[0]:
                for call in (
                    lambda: side.do(coll.find_one, {}),
                    lambda: side.do(coll.update_many, {}, {"$set": {"a": 1}}),
                ):
                    # Whatever else it were would be a signal of ours.
                    with pytest.raises(OperationFailure):
                        call()
                    failed += 1
        finally:
            over.set()
            for each in threads:
                each.join()
            if is_active():
                pymongo_resilience.uninstrument()
    assert failed
    assert faults == []
    assert differences(before, patched_places()) == set()
