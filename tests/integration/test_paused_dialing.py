"""A pool whose new connections are rejected: its operations wait for the connections it has."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymongo
import pytest
from pymongo.errors import OperationFailure, PyMongoError
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.failures.causes import is_rejection
from pymongo_resilience_instrumentation.recovery.paused_dialing import (
    DIALS_FOR,
    EMPTY_PAUSE,
    FIRST_PAUSE,
    MAX_PAUSE,
    Dial,
    Dialing,
)
from support.busy_pools import the_only_connection_taken
from support.clients import Side
from support.pool_connections import Closed, leave_idle, pool_of
from support.telemetry import Instrument

from pymongo_resilience.testbed import ConnectionRateLimit, Overload, ReplicaSet, Slow

pytestmark = [pytest.mark.each_setup, pytest.mark.oldest]

AT_ONCE = 40
"""Operations that begin together, of which each takes a while."""
TAKES = 0.01
"""Seconds."""
IDLE = {"maxIdleTimeMS": 1, "heartbeatFrequencyMS": 60_000}
"""Each operation makes a connection of its own, and monitors send no hellos."""


def errors_at_once(side: Side, coll: Any) -> list[str]:
    """The names of the errors of finds that begin together."""

    def find(_: int) -> str:
        try:
            coll.find_one()
        except PyMongoError as error:
            return type(error).__name__
        return ""

    async def find_all() -> list[str]:
        finds = (coll.find_one() for _ in range(AT_ONCE))
        results = await asyncio.gather(*finds, return_exceptions=True)
        return [type(each).__name__ for each in results if isinstance(each, Exception)]

    if side.runner is not None:
        return list(side.do(find_all))
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return [each for each in threads.map(find, range(AT_ONCE)) if each]


def connected(side: Side, servers: ReplicaSet, **options: Any) -> tuple[Any, Closed]:
    """A client with one connection, to a server that will let in no other."""
    pools = Closed()
    options = {"maxPoolSize": 10, "event_listeners": [pools], **options}
    client = side.do(side.client, servers.uri, **options)
    side.do(client.db.coll.find_one)
    return client, pools


class Runs:
    """Counts the runs of a client's background task."""

    def __init__(self, client: Any) -> None:
        self.count = 0
        task = client._topology.update_pool

        def counted() -> Any:
            self.count += 1
            return task()

        client._topology.update_pool = counted


@pytest.mark.parametrize("rejects", [True, False], ids=["rejected", "closed"])
def test_operations_share_the_connections_that_a_pool_has(
    side: Side, proxy: ReplicaSet, instrument: Instrument, rejects: bool, defaults: dict[str, Any]
) -> None:
    def play() -> tuple[int, int]:
        client, pools = connected(side, proxy)
        limit = ConnectionRateLimit(0.001, burst=1, rejects=rejects)
        limit._tokens = 0.0  # not even one
        before = pools.made
        proxy.inject(limit)
        proxy.inject(Slow(TAKES))
        errors = errors_at_once(side, client.db.coll)
        proxy.clear()
        return len(errors), pools.made - before

    plain_errors, plain_dials = play()
    instrument(**defaults)
    errors, dials = play()
    assert errors == 0, f"of {AT_ONCE}; plain pymongo: {plain_errors}"
    assert dials < AT_ONCE / 2, "two at once, and after pauses of 0.1, 0.2, 0.4, 0.8 and 1.0 s"
    assert rejects or dials < plain_dials / 2, "pymongo marks a server that rejects as Unknown"


def test_once_connections_are_let_in_the_pool_grows_again(
    side: Side, proxy: ReplicaSet, instrument: Instrument, defaults: dict[str, Any]
) -> None:
    instrument(**defaults)
    client, pools = connected(side, proxy)
    fault = Overload("hello", times=2)
    proxy.inject(fault)
    proxy.inject(Slow(TAKES))
    errors_at_once(side, client.db.coll)
    side.wait_until(lambda: errors_at_once(side, client.db.coll) == [] and pools.ready > 1)
    assert fault.struck == 2


def test_an_operation_alone_makes_all_its_attempts_in_a_pool_without_connections(
    side: Side, proxy: ReplicaSet, instrument: Instrument, defaults: dict[str, Any]
) -> None:
    instrument(base_backoff_ms=1, **defaults)
    client, pools = connected(side, proxy, **IDLE)
    before = pools.made
    proxy.inject(Overload("hello", times=100))
    leave_idle(side, client)
    with pytest.raises(OperationFailure):
        side.do(client.db.coll.find_one)
    assert pools.made - before == 6, "an attempt and five retries, each with a connection"


def test_operations_share_the_attempts_of_a_pool_without_connections(
    side: Side, proxy: ReplicaSet, instrument: Instrument, defaults: dict[str, Any]
) -> None:
    """Those that wait for a connection that is rejected are rejected with it."""
    instrument(base_backoff_ms=1, **defaults)
    client, pools = connected(side, proxy, **IDLE)
    before = pools.made
    fault = Overload("hello", times=10**6)
    proxy.inject(fault)
    leave_idle(side, client)
    began = time.monotonic()
    assert errors_at_once(side, client.db.coll) == ["OperationFailure"] * AT_ONCE
    seconds = time.monotonic() - began
    assert pools.made - before <= 4 + seconds / (EMPTY_PAUSE / 2)
    paused = driver.dialing.kept(pool_of(client), Dialing).empty_paused_until - time.monotonic()
    assert paused <= EMPTY_PAUSE, "so long the first operation after the overload waits"
    proxy.clear()
    assert errors_at_once(side, client.db.coll) == []


def test_one_operation_at_a_time_has_the_turn_and_loses_it_if_it_hangs(
    side: Side, proxy: ReplicaSet
) -> None:
    client, _ = connected(side, proxy)
    dialing = Dialing()
    first, second = (Dial(pool_of(client), dialing, is_refill=False) for _ in range(2))
    assert dialing.take_turn(first, 100.0, 100.5)
    assert not dialing.take_turn(second, 100.1, 100.5)
    assert dialing.take_turn(first, 100.6, 100.5)
    assert not dialing.take_turn(second, 100.6 + DIALS_FOR / 2, 100.5)
    dialing.end_turn(second)
    assert dialing.next_dial is first
    assert dialing.take_turn(second, 100.6 + DIALS_FOR, 100.5)
    dialing.end_turn(first)
    assert dialing.next_dial is second
    dialing.end_turn(second)
    assert dialing.take_turn(first, 103.0, 100.5)


def test_a_connection_that_is_closed_in_its_handshake_does_not_pause_an_empty_pool() -> None:
    """The server may have restarted, and be there again."""
    dialing = Dialing()
    dialing.note_rejection(100.0)
    assert 100.0 < dialing.empty_paused_until <= 100.0 + EMPTY_PAUSE
    dialing.note_rejection(100.0, by_server=False)
    assert dialing.empty_paused_until == 0
    assert dialing.paused_until > 100.0


def test_a_pause_leaves_time_for_a_connection_before_the_deadline(
    side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    instrument()
    client, pools = connected(side, proxy, maxPoolSize=2)
    with the_only_connection_taken(side, client, proxy):
        dialing = driver.dialing.kept(pool_of(client), Dialing)
        dialing.rejected, dialing.paused_until = 1, time.monotonic() + 60
        with pymongo.timeout(1.0):
            side.do(client.db.coll.find_one)
        assert pools.ready == 2
        proxy.clear()


def test_pauses_double_and_end_with_the_first_success() -> None:
    dialing = Dialing()
    now, pauses = 100.0, []
    for _ in range(6):
        dialing.note_rejection(now)
        ends = dialing.paused_until
        dialing.note_rejection(ends - 0.001)
        assert dialing.paused_until == ends, "several dials may be rejected together"
        pauses.append(ends - now)
        now = ends
    for index, pause in enumerate(pauses):
        middle = min(MAX_PAUSE, FIRST_PAUSE * 2**index)
        assert 0.7 * middle < pause < 1.3 * middle
    for _ in range(3):
        dialing.note_success()
        assert not dialing.paused_until
    dialing.note_rejection(now)
    assert dialing.paused_until - now < 1.3 * FIRST_PAUSE


def test_a_pool_that_is_filled_up_dials_seldom_while_it_is_rejected(
    side: Side, proxy: ReplicaSet, instrument: Instrument, monkeypatch: pytest.MonkeyPatch,
    defaults: dict[str, Any],
) -> None:  # fmt: skip
    monkeypatch.setattr("pymongo.common.KILL_CURSOR_FREQUENCY", 0.05)
    instrument(**defaults)
    client, _ = connected(side, proxy, minPoolSize=3, heartbeatFrequencyMS=60_000)
    side.wait_until(lambda: len(pool_of(client).conns) == 3)
    runs = Runs(client)
    limit = ConnectionRateLimit(0.001, burst=1, rejects=True)
    limit._tokens = 0.0
    proxy.inject(limit)
    side.do(pool_of(client).conns.pop().close_conn, None)
    side.wait_until(lambda: limit.struck)
    before = runs.count
    side.wait_until(lambda: runs.count >= before + 10)
    assert limit.struck == 1, "the next one follows after 0.75 s at the earliest"
    side.do(client.db.coll.find_one)
    proxy.clear()
    side.wait_until(lambda: len(pool_of(client).conns) == 3)


def test_pauses_of_connections_for_the_minimum_double_up_to_ten_seconds() -> None:
    dialing, now = Dialing(), 100.0
    for seconds in (1, 2, 4, 8, 10, 10):
        dialing.note_rejected_refill(now)
        assert 0.7 * seconds < dialing.refill_paused_until - now < 1.3 * seconds
        with pytest.raises(OperationFailure) as caught:
            dialing.check_refill(now)
        assert is_rejection(caught.value)
        now = dialing.refill_paused_until
        dialing.check_refill(now)
    dialing.note_success()
    dialing.check_refill(0.0)
