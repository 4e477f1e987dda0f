"""Breakers that many threads and tasks share, and attempts that nobody hears the end of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pymongo import AsyncMongoClient, ReadPreference
from pymongo.errors import PyMongoError
from pymongo_resilience_instrumentation import runtime
from support.clients import SentCommands, Side
from support.telemetry import Instrument

from pymongo_resilience import status
from pymongo_resilience.breakers import PROBES
from pymongo_resilience.clock import Clock
from pymongo_resilience.errors import CircuitBreakerOpenError
from pymongo_resilience.events import BreakerClosed, BreakerOpened
from pymongo_resilience.testbed import Fail, ReplicaSet, Slow

OPEN_S = 600.0
MINIMUM = 4
SETTINGS = {
    "circuit_breaker": "always",
    "circuit_breaker_minimum_calls": MINIMUM,
    "circuit_breaker_open_s": OPEN_S,
}
MANY = 16
HELD_S = 1.0
"""Seconds for which a reply is held back."""


def opened(events: list[Any]) -> bool:
    return any(isinstance(each, BreakerOpened) for each in events)


def closed(events: list[Any]) -> bool:
    return any(isinstance(each, BreakerClosed) for each in events)


class TurnedClock(Clock):
    """Real, but for the hours that a test lets pass."""

    def __init__(self) -> None:
        self.passed = 0.0

    def now(self) -> float:
        return super().now() + self.passed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> TurnedClock:
    made = TurnedClock()
    monkeypatch.setattr(runtime, "ClientClock", lambda _: made)
    return made


def open_breaker(side: Side, coll: Any, proxy: ReplicaSet, events: list[Any]) -> None:
    """Afterwards nothing is wrong with the server any more."""
    proxy.inject(Fail("update", times=1000, code=6))
    for _ in range(MINIMUM):
        with pytest.raises(PyMongoError):
            side.do(coll.update_many, {}, {"$set": {"n": 1}})
    assert opened(events)
    proxy.clear()


@pytest.fixture
def half_open(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument, clock: TurnedClock
) -> tuple[Any, list[Any], SentCommands]:
    """A collection whose server's breaker is half-open; the events and commands from now on."""
    events, sent = instrument(**SETTINGS).decisions.events, SentCommands()
    coll = side.client(proxy.uri, event_listeners=[sent], timeoutMS=20_000)[database].coll
    side.do(coll.find_one)
    open_breaker(side, coll, proxy, events)
    clock.passed += OPEN_S
    events.clear()
    sent.started_events.clear()
    return coll, events, sent


def begin(side: Side, count: int, coll: Any) -> Callable[[], Any]:
    """So many reads, each in a thread or a task of its own; the wait for their ends is returned."""
    if side.runner is None:
        threads = ThreadPoolExecutor(count)
        calls = [threads.submit(coll.find_one) for _ in range(count)]
        return lambda: [call.result() for call in calls] and threads.shutdown()
    loop = side.runner.get_loop()
    tasks = [loop.create_task(coll.find_one()) for _ in range(count)]
    return lambda: side.do(asyncio.gather, *tasks)


def test_of_many_calls_three_probe_and_all_succeed_within_their_deadline(
    side: Side, half_open: tuple[Any, list[Any], SentCommands], proxy: ReplicaSet
) -> None:
    coll, events, sent = half_open
    proxy.inject(Slow(HELD_S))
    join = begin(side, MANY, coll)
    side.wait_until(lambda: len(sent.named("find")) >= PROBES)
    assert len(sent.named("find")) == PROBES
    join()
    assert len(sent.named("find")) == MANY
    assert [type(each) for each in events if not hasattr(each, "reason")] == [BreakerClosed]


def test_a_command_waits_for_the_probes_of_others(
    side: Side, half_open: tuple[Any, list[Any], SentCommands], proxy: ReplicaSet
) -> None:
    """There is no probe left for it, so it was not sent, and may be retried."""
    coll, _, sent = half_open
    proxy.inject(Slow(HELD_S))
    join = begin(side, PROBES, coll)
    side.wait_until(lambda: len(sent.named("find")) == PROBES)
    assert side.do(coll.database.command, "ping")["ok"] == 1
    join()


@pytest.mark.parametrize("side", ["sync"], indirect=True)
def test_a_probe_that_was_interrupted_is_given_back(
    side: Side,
    half_open: tuple[Any, list[Any], SentCommands],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that was cancelled, below."""
    coll, events, sent = half_open

    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sent, "started", interrupt)
        for _ in range(2 * PROBES):
            with pytest.raises(KeyboardInterrupt):
                coll.find_one()
    assert not closed(events)
    for _ in range(PROBES):
        coll.find_one()
    assert closed(events)


async def _cancelled_everywhere(servers: ReplicaSet, clock: TurnedClock, events: Any) -> None:
    async with AsyncMongoClient[Any](servers.uri, localThresholdMS=60_000) as client:
        coll = client.get_database("db", read_preference=ReadPreference.NEAREST).coll
        servers.inject(Fail("find", times=1000, code=6), on=1)
        while not opened(events):
            await coll.find_one()
        servers.clear()
        clock.passed += OPEN_S
        servers.inject(Slow(0.03))
        cancelled = 0
        # At the latest of these ends some have selected, some wait for the pool, some are sent.
        for turns in (0, 1, 2, 5, 20, 100):
            tasks = [asyncio.create_task(coll.find_one()) for _ in range(200)]
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            cancelled += sum(isinstance(each, asyncio.CancelledError) for each in ended)
        assert cancelled > 1000
        servers.clear()
        assert [each.in_flight for each in status(client).servers] == [0, 0, 0]
        while not closed(events):
            await asyncio.wait_for(coll.find_one(), 20)
        assert {each.circuit_breaker for each in status(client).servers} == {"closed"}


def test_of_many_tasks_that_are_cancelled_no_count_and_no_permit_is_left(
    replica_set: ReplicaSet, instrument: Instrument, clock: TurnedClock
) -> None:
    """A permit that nobody gives back would keep its server half-open for ten minutes."""
    events = instrument(**SETTINGS, timeout_ms=20_000).decisions.events
    asyncio.run(asyncio.wait_for(_cancelled_everywhere(replica_set, clock, events), 60))


def test_what_ends_cursors_and_sessions_is_neither_refused_nor_counted(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument, clock: TurnedClock
) -> None:
    events, sent = instrument(**SETTINGS).decisions.events, SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    coll = client[database].coll
    side.do(coll.insert_many, [{} for _ in range(6)])
    cursor = coll.find(batch_size=2)
    side.do(cursor.next)
    open_breaker(side, coll, proxy, events)
    side.do(cursor.close)
    assert len(sent.named("killCursors")) == 1
    with pytest.raises(CircuitBreakerOpenError):
        side.do(coll.drop)
    clock.passed += OPEN_S
    for _ in range(2):
        side.do(coll.find_one)
    other = coll.find(batch_size=2)
    assert not closed(events)
    side.do(other.next)
    assert closed(events)
    side.do(other.close)
    side.do(client.close)
    assert len(sent.named("endSessions")) == 1
