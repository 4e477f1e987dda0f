"""An overload in which the client is late itself: never worse than plain pymongo beside it.

A full pool, heartbeats in one event loop with the load, and an event loop that is blocked close
connections, which are dialed again, or make a server look dead. Each could keep an overload going.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from pymongo.errors import PyMongoError
from pymongo_resilience_instrumentation.recovery.paused_dialing import EMPTY_PAUSE
from support.clients import Side
from support.pool_connections import Closed
from support.server_states import Unknown
from support.telemetry import Instrument
from support.wait_helpers import wait_for_server

from pymongo_resilience.testbed import (
    ConnectionRateLimit,
    Overload,
    RateLimit,
    ReplicaSet,
    Reset,
    Slow,
)

pytestmark = [pytest.mark.each_setup, pytest.mark.oldest]

MANY = 60
"""Operations that begin together."""
LATE_S = 0.1
"""For which an event loop is blocked again and again."""


@dataclass
class Outcome:
    errors: int
    dials: int
    unknown: int


class Load:
    """Finds of one client that begin together, beside what its monitors and its pool do."""

    def __init__(self, side: Side, servers: ReplicaSet, **options: Any) -> None:
        self.side, self.unknown, self.pools = side, Unknown(), Closed()
        listeners = [self.unknown, self.pools]
        self.client = side.do(side.client, servers.uri, event_listeners=listeners, **options)
        wait_for_server(side, self.client)
        side.do(self.client.db.coll.find_one)
        self._dialed = self.pools.made

    def run(self, *, blocked: bool = False, times: int = 1) -> Outcome:
        """``blocked``: the event loop is late by ``LATE_S`` all the time."""
        coll = self.client.db.coll

        async def block(end: asyncio.Event) -> None:
            while not end.is_set():
                time.sleep(LATE_S)  # noqa: ASYNC251 - that is the point
                await asyncio.sleep(0.001)

        async def many() -> int:
            end = asyncio.Event()
            blocking = asyncio.create_task(block(end)) if blocked else None
            errors = 0
            for _ in range(times):
                finds = (coll.find_one() for _ in range(MANY))
                results = await asyncio.gather(*finds, return_exceptions=True)
                errors += sum(isinstance(each, PyMongoError) for each in results)
            if blocking is not None:
                end.set()
                await blocking
            return errors

        def find(_: int) -> bool:
            try:
                coll.find_one()
            except PyMongoError:
                return True
            return False

        if self.side.runner is not None:
            errors = self.side.do(many)
        else:
            with ThreadPoolExecutor(MANY) as threads:
                errors = sum(sum(threads.map(find, range(MANY))) for _ in range(times))
        return Outcome(errors, self.pools.made - self._dialed, self.unknown.times)


def test_a_full_pool_goes_on_like_pymongos(
    side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    """Operations give up waiting for a connection, while new ones are rejected."""

    def play() -> Outcome:
        load = Load(side, proxy, maxPoolSize=3, waitQueueTimeoutMS=300)
        limit = ConnectionRateLimit(0.001, burst=1, rejects=False)
        limit._tokens = 0.0
        proxy.inject(limit)
        proxy.inject(Slow(0.01))
        outcome = load.run()
        proxy.clear()
        return outcome

    plain = play()
    instrument()
    plays = [play()]
    # Which operations run out of time is a matter of luck, and a busy machine makes it more.
    while plays[-1].errors > plain.errors + MANY / 6 and len(plays) < 3:
        plays.append(play())
    assert plays[-1].errors <= plain.errors + MANY / 6, (plain, plays)
    for ours in plays:
        # An operation that goes on may dial again.
        assert ours.dials <= 2 * max(plain.dials, MANY), plain
        assert ours.unknown == 0


def test_attempts_that_run_out_of_time_dial_no_more_than_a_pause_allows(
    side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    """Each closes its connection, and the next ones are rejected.

    Plain pymongo dials less often, because it marks the server Unknown after the first rejection.
    The first operation after the overload then waits for up to ten seconds.
    """

    def play() -> tuple[Outcome, float]:
        load = Load(side, proxy, maxPoolSize=3, socketTimeoutMS=150, retryReads=False)
        limit = ConnectionRateLimit(0.001, burst=1, rejects=True)
        limit._tokens = 0.0
        proxy.inject(limit)
        proxy.inject(Slow(0.2))
        began = time.monotonic()
        outcome = load.run()
        seconds = time.monotonic() - began
        proxy.clear()
        return outcome, seconds

    plain, _ = play()
    instrument()
    ours, seconds = play()
    # Two at once, and one after each pause.
    assert ours.dials <= max(plain.dials, 4 + seconds / (EMPTY_PAUSE / 2)), plain
    assert ours.errors <= plain.errors, plain
    assert ours.unknown == 0


@pytest.mark.parametrize("monitoring", ["stream", "poll"])
def test_heartbeats_beside_the_load(
    monitoring: str, side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    """They are rejected like everything else, and leave the server known."""

    def play() -> Outcome:
        options = {"serverMonitoringMode": monitoring, "heartbeatFrequencyMS": 500}
        load = Load(side, proxy, maxPoolSize=10, **options)
        proxy.inject(RateLimit(200, burst=20))
        outcome = load.run(times=3)
        proxy.clear()
        side.do(load.client.db.coll.find_one)
        return outcome

    plain = play()
    instrument()
    ours = play()
    assert ours.unknown == 0, plain
    assert ours.errors <= plain.errors + MANY / 6, plain


@pytest.mark.parametrize("side", ["async"], indirect=True)
def test_an_event_loop_that_is_late(side: Side, proxy: ReplicaSet, instrument: Instrument) -> None:
    """Each operation is rejected once, as by a server that is overloaded for a moment."""

    def play() -> Outcome:
        load = Load(side, proxy, maxPoolSize=MANY, heartbeatFrequencyMS=500)
        load.run()
        proxy.inject(Overload("find", times=MANY))
        outcome = load.run(blocked=True)
        proxy.clear()
        return outcome

    plain = play()
    instrument()
    ours = play()
    assert ours.unknown == 0
    assert ours.errors <= plain.errors, plain


def test_a_server_that_restarts_while_it_is_overloaded(
    side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    """All connections are lost, and most new ones are rejected."""

    def play() -> Outcome:
        load = Load(side, proxy, maxPoolSize=20, serverSelectionTimeoutMS=1_000)
        load.run()
        proxy.inject(RateLimit(50, burst=1))
        proxy.inject(Reset())
        outcome = load.run(times=2)
        proxy.clear()
        return outcome

    plain = play()
    instrument()
    ours = play()
    assert ours.dials <= max(plain.dials, MANY), plain
    assert ours.errors <= plain.errors, plain
