"""What of a wait is handed to the driver's own, under a deadline and without one."""

from __future__ import annotations

import functools
import time
from types import SimpleNamespace
from typing import Any

import pymongo
import pytest
from pymongo import _csot
from pymongo.errors import WaitQueueTimeoutError
from pymongo_resilience_instrumentation.driver import csot
from support.busy_pools import the_only_connection_taken
from support.clients import Side
from support.telemetry import Instrument
from support.wait_helpers import NOBODY, PLENTY_MS, half_of, wait_for_server

from pymongo_resilience.testbed import ReplicaSet

pytestmark = pytest.mark.oldest

NOW = 1000.0
"""Seconds, where the clock stands still."""


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """For deadlines alone; asyncio's goes on."""
    for module in (_csot, csot):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: NOW))


def record_waits(side: Side, patch: pytest.MonkeyPatch) -> list[float | None]:
    """What the driver's own waits are given, in the side's modules; nobody is ever notified."""
    found: list[float | None] = []

    def wait(_condition: Any, timeout: float | None) -> bool:
        found.append(timeout)
        return False

    async def wait_async(*args: Any) -> bool:
        return wait(*args)

    half = half_of(side)
    for name in ("topology", "pool"):
        fake = wait if side.runner is None else wait_async
        original = getattr(half.module(name), half.wait)
        patch.setattr(half.module(name), half.wait, functools.wraps(original)(fake))
    return found


def test_a_checkout_has_what_the_selection_has_left(
    side: Side,
    proxy: ReplicaSet,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    instrument: Instrument,
) -> None:
    slow = 0.0

    def selector(servers: Any) -> Any:
        time.sleep(slow)
        return servers

    client = side.client(
        proxy.uri, maxPoolSize=1, serverSelectionTimeoutMS=1000, server_selector=selector
    )
    wait_for_server(side, client)
    with the_only_connection_taken(side, client, proxy):
        handed = record_waits(side, monkeypatch)
        instrument(timeout_ms=PLENTY_MS)
        slow = 0.3
        with pytest.raises(WaitQueueTimeoutError):
            side.do(client[database].coll.find_one)
        slow = 0.0
        proxy.clear()
    (timeout,) = handed
    assert timeout is not None
    assert timeout <= 0.7


@pytest.mark.usefixtures("stopped_clock")
@pytest.mark.parametrize(
    ("timeout", "own_ms", "left"),
    [
        (None, 300, None),
        (0, 300, None),
        (10, 300, 0.3),
        (10, 0, 10),
        (0.2, 300, 0.2),
        (10, None, 10),
    ],
)
def test_connecting_is_handed_what_is_left_and_what_follows_has_all_of_it(
    timeout: float | None,
    own_ms: int | None,
    left: float | None,
    side: Side,
    monkeypatch: pytest.MonkeyPatch,
    instrument: Instrument,
    caplog: pytest.LogCaptureFixture,  # what follows finds no socket
) -> None:
    half = half_of(side)
    seen: list[float | None] = []

    def connect(*_: Any) -> None:
        seen.append(_csot.remaining())

    async def connect_async(*_: Any) -> None:
        seen.append(_csot.remaining())

    fake = connect if side.runner is None else connect_async
    original = getattr(half.module("pool"), half.connect)
    monkeypatch.setattr(half.module("pool"), half.connect, functools.wraps(original)(fake))
    instrument()
    own = {} if own_ms is None else {"connectTimeoutMS": own_ms}
    options = side.client(NOBODY, connect=False, **own).options.pool_options

    async def connecting_and_after() -> None:
        await getattr(half.module("pool"), half.connect)(("host", 1), options)
        seen.append(_csot.remaining())

    with pymongo.timeout(timeout):
        if side.runner is None:
            getattr(half.module("pool"), half.connect)(("host", 1), options)
            seen.append(_csot.remaining())
        else:
            side.do(connecting_and_after)
    assert seen == [pytest.approx(left), pytest.approx(timeout or None)]
