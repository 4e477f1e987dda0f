"""Breakers that many threads and tasks share, and attempts that nobody hears the end of."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymongo
import pytest
from pymongo import AsyncMongoClient, MongoClient, ReadPreference
from pymongo.errors import PyMongoError
from pymongo_resilience_instrumentation import runtime
from support.clients import SentCommands, wait_until
from support.telemetry import Instrument

from pymongo_resilience import status
from pymongo_resilience.breakers import PROBES
from pymongo_resilience.clock import MonotonicClock
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


def failing() -> Fail:
    return Fail("update", times=1000, code=6)


def opened(events: list[Any]) -> bool:
    return any(isinstance(each, BreakerOpened) for each in events)


def closed(events: list[Any]) -> bool:
    return any(isinstance(each, BreakerClosed) for each in events)


async def until_struck(fault: Slow, times: int) -> None:
    """The test bed strikes in a thread of its own."""
    await asyncio.to_thread(wait_until, lambda: fault.injected >= times)


class TurnedClock(MonotonicClock):
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


@pytest.fixture
def client(
    proxy: ReplicaSet, instrument: Instrument, clock: TurnedClock
) -> Iterator[tuple[MongoClient[Any], Any, SentCommands]]:
    """Whose breaker is half-open; its telemetry, and what it sends from now on."""
    telemetry = instrument(**SETTINGS)
    sent = SentCommands()
    with pymongo.MongoClient[Any](proxy.uri, event_listeners=[sent]) as made:
        made.db.coll.find_one()
        proxy.inject(failing())
        for _ in range(MINIMUM):
            with pytest.raises(PyMongoError):
                made.db.coll.update_many({}, {"$set": {"n": 1}})
        assert opened(telemetry.decisions.events)
        proxy.clear()
        clock.passed += OPEN_S
        telemetry.clear()
        sent.started_events.clear()
        yield made, telemetry, sent
        proxy.clear()


def test_of_many_threads_three_probe_and_all_succeed_within_their_deadline(
    client: tuple[MongoClient[Any], Any, SentCommands], proxy: ReplicaSet
) -> None:
    made, telemetry, sent = client
    proxy.inject(Slow(HELD_S))
    together = threading.Barrier(MANY)

    def find() -> None:
        together.wait()
        with pymongo.timeout(20):
            made.db.coll.find_one()

    with ThreadPoolExecutor(MANY) as threads:
        calls = [threads.submit(find) for _ in range(MANY)]
        wait_until(lambda: len(sent.named("find")) >= PROBES)
        assert len(sent.named("find")) == PROBES
        for call in calls:
            call.result()
    assert len(sent.named("find")) == MANY
    changes = [type(each) for each in telemetry.decisions.events if not hasattr(each, "reason")]
    assert changes == [BreakerClosed]


def test_a_probe_that_was_interrupted_is_given_back(
    client: tuple[MongoClient[Any], Any, SentCommands], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, telemetry, sent = client

    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sent, "started", interrupt)
        for _ in range(2 * PROBES):
            with pytest.raises(KeyboardInterrupt):
                made.db.coll.find_one()
    assert not closed(telemetry.decisions.events)
    for _ in range(PROBES):
        made.db.coll.find_one()
    assert closed(telemetry.decisions.events)


def test_a_command_that_may_not_be_repeated_is_refused_at_once(
    client: tuple[MongoClient[Any], Any, SentCommands], proxy: ReplicaSet
) -> None:
    """There is no probe for it: three others are under way."""
    made, _, sent = client
    proxy.inject(Slow(HELD_S))
    with ThreadPoolExecutor(PROBES) as threads:
        calls = [threads.submit(made.db.coll.find_one) for _ in range(PROBES)]
        wait_until(lambda: len(sent.named("find")) == PROBES)
        with pytest.raises(CircuitBreakerOpenError, match="half-open, and its probes are under"):
            made.db.command("ping")
        for call in calls:
            call.result()


async def _cancelled_probes(uri: str, proxy: ReplicaSet, clock: TurnedClock, events: Any) -> None:
    async with AsyncMongoClient[Any](uri) as client:
        coll = client.db.coll
        await coll.find_one()
        proxy.inject(failing())
        for _ in range(MINIMUM):
            with pytest.raises(PyMongoError):
                await coll.update_many({}, {"$set": {"n": 1}})
        assert opened(events)
        proxy.clear()
        clock.passed += OPEN_S
        slow = Slow(30.0)
        proxy.inject(slow)
        probes = [asyncio.create_task(coll.find_one()) for _ in range(PROBES)]
        await until_struck(slow, PROBES)
        with pytest.raises(CircuitBreakerOpenError):
            await coll.find_one()
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)
        assert all(probe.cancelled() for probe in probes)
        proxy.clear()
        events.clear()
        for _ in range(PROBES):
            await coll.find_one()
        assert closed(events)


def test_a_probe_that_was_cancelled_is_given_back(
    proxy: ReplicaSet, instrument: Instrument, clock: TurnedClock
) -> None:
    events = instrument(**SETTINGS).decisions.events
    asyncio.run(_cancelled_probes(proxy.uri, proxy, clock, events))


async def _many_tasks(uri: str, proxy: ReplicaSet, clock: TurnedClock, events: Any) -> None:
    sent = SentCommands()
    async with AsyncMongoClient[Any](uri, event_listeners=[sent]) as client:
        coll = client.db.coll
        await coll.find_one()
        proxy.inject(failing())
        for _ in range(MINIMUM):
            with pytest.raises(PyMongoError):
                await coll.update_many({}, {"$set": {"n": 1}})
        assert opened(events)
        proxy.clear()
        clock.passed += OPEN_S
        sent.started_events.clear()
        slow = Slow(HELD_S)
        proxy.inject(slow)

        async def find() -> None:
            with pymongo.timeout(20):
                await coll.find_one()

        tasks = [asyncio.create_task(find()) for _ in range(MANY)]
        await until_struck(slow, PROBES)
        assert len(sent.named("find")) == PROBES
        await asyncio.gather(*tasks)
        assert len(sent.named("find")) == MANY
        proxy.clear()


def test_of_many_tasks_three_probe_and_all_succeed_within_their_deadline(
    proxy: ReplicaSet, instrument: Instrument, clock: TurnedClock
) -> None:
    events = instrument(**SETTINGS).decisions.events
    asyncio.run(_many_tasks(proxy.uri, proxy, clock, events))


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
    proxy: ReplicaSet, instrument: Instrument, clock: TurnedClock
) -> None:
    telemetry = instrument(**SETTINGS)
    sent = SentCommands()
    with pymongo.MongoClient[Any](proxy.uri, event_listeners=[sent]) as client:
        coll = client.db[f"c{id(sent)}"]
        coll.insert_many([{} for _ in range(6)])
        cursor = coll.find(batch_size=2)
        cursor.next()
        proxy.inject(failing())
        for _ in range(MINIMUM):
            with pytest.raises(PyMongoError):
                coll.update_many({}, {"$set": {"n": 1}})
        assert opened(telemetry.decisions.events)
        proxy.clear()
        cursor.close()
        assert len(sent.named("killCursors")) == 1
        with pytest.raises(CircuitBreakerOpenError):
            coll.drop()
        clock.passed += OPEN_S
        for _ in range(2):
            coll.find_one()
        other = coll.find(batch_size=2)
        assert not closed(telemetry.decisions.events)
        other.next()
        assert closed(telemetry.decisions.events)
        other.close()
        coll.drop()
    assert len(sent.named("endSessions")) == 1
