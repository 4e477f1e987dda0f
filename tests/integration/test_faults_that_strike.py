"""Whether a fault has struck: its future, its count, a strict clear; and one that never could."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from concurrent.futures import Future, TimeoutError as NotYet
from typing import Any

import pytest
from support.raw_client import RawClient

from pymongo_resilience.testbed import (
    BlackHole,
    Corrupt,
    CutAfter,
    CutBefore,
    Election,
    Fail,
    Fault,
    Latency,
    NotPrimary,
    Overload,
    RateLimit,
    ReplicaSet,
    Reset,
    Scenario,
    Slow,
    TestbedError,
)

HELLO = {"hello": 1}
PING = {"ping": 1}
SHORT = 0.05


def _send(proxy: ReplicaSet, body: dict[str, Any]) -> None:
    with RawClient(proxy.address) as client, contextlib.suppress(ConnectionError):
        client.ask(body)


def _is_done(future: Future[None]) -> bool:
    try:
        future.result(SHORT)
    except NotYet:
        return False
    return True


@pytest.mark.parametrize(
    "make",
    [
        lambda: CutBefore("ping", times=2),
        lambda: CutAfter("ping", times=2),
        lambda: Fail("ping", times=2, code=6),
        lambda: Overload(times=2),
        lambda: Corrupt(lambda reply: reply.raw, "ping", times=2),
    ],
)
def test_it_is_done_once_it_has_struck_as_often_as_it_should(
    proxy: ReplicaSet, make: Callable[[], Fault]
) -> None:
    fault = make()
    done = proxy.inject(fault)
    for count in (0, 1):
        assert not _is_done(done)
        assert fault.struck == count
        _send(proxy, PING)
    done.result(5)
    assert fault.struck == 2


@pytest.mark.parametrize("make", [lambda: RateLimit(1, seconds=0.1), lambda: BlackHole(0.1)])
def test_one_with_an_end_is_done_when_that_has_come(
    proxy: ReplicaSet, make: Callable[[], Fault]
) -> None:
    proxy.inject(make()).result(5)


@pytest.mark.parametrize("make", [lambda: Latency(0.001), lambda: Slow(0.001), CutBefore])
def test_one_without_an_end_is_done_when_it_is_cleared(
    proxy: ReplicaSet, make: Callable[[], Fault]
) -> None:
    done = proxy.inject(make())
    assert not _is_done(done)
    proxy.clear()
    done.result(5)


def test_a_scenario_does_not_wait_for_what_may_never_come(proxy: ReplicaSet) -> None:
    proxy.play(Scenario().after(0, CutAfter, "ping").after(0, Slow, 1)).result(5)


def test_a_strict_clear_names_what_never_struck(proxy: ReplicaSet) -> None:
    proxy.inject(CutAfter("insert", times=3))
    proxy.inject(NotPrimary())
    proxy.inject(CutBefore("ping"))
    proxy.inject(Reset())
    _send(proxy, PING)  # NotPrimary takes it: it was there before
    with pytest.raises(TestbedError) as error:
        proxy.clear(strict=True)
    assert "these faults never acted: CutAfter('insert', times=3), CutBefore('ping')" in str(
        error.value
    )
    with RawClient(proxy.address) as client:
        assert client.ask(PING)["ok"] == 1
    proxy.clear(strict=True)
    proxy.inject(CutBefore("ping"))
    proxy.clear()
    proxy.clear(strict=True)


def test_a_fault_shows_its_arguments() -> None:
    assert repr(CutBefore("replSetReconfig")) == "CutBefore('replSetReconfig')"
    assert repr(BlackHole(2)) == "BlackHole(2)"
    assert repr(copy.deepcopy(Election(gap=0.5))) == "Election(gap=0.5)"
