"""Attempts that wait for a primary which is none any more, and does not answer, are set free."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any
from weakref import ref

import pytest
from pymongo.errors import AutoReconnect
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.instrumentor import PymongoResilienceInstrumentor
from pymongo_resilience_instrumentation.recovery import silent_servers
from support.clients import Side, wait_until
from support.engine.retry_strategies import REFUSES

import pymongo_resilience
from pymongo_resilience import Config, override
from pymongo_resilience.testbed import BlackHole, Election, ReplicaSet, Slow
from pymongo_resilience.testing import RecordingListener

pytestmark = pytest.mark.oldest
PLENTY_MS = 30_000
SOON = 15.0
"""Seconds, of that deadline."""
AFTER_THE_HOLE = 1.5
STREAMING = {"serverMonitoringMode": "stream", "heartbeatFrequencyMS": 10_000}


SETUPS: dict[str, dict[str, Any]] = {"bare": {}, "with a timeout": {"timeout_ms": PLENTY_MS}}


@pytest.fixture(params=SETUPS)
def recording(request: pytest.FixtureRequest) -> Iterator[RecordingListener]:
    """As the README sets it up, without an SDK."""
    listener = RecordingListener()
    pymongo_resilience.instrument(Config(**SETUPS[request.param]), listeners=[listener])
    yield listener
    pymongo_resilience.uninstrument()


def at_once(side: Side, calls: list[Callable[[], Any]], strike: Callable[[], None]) -> list[Any]:
    """What each call ends with, while ``strike`` runs in a thread of its own."""

    async def act() -> list[Any]:
        return await asyncio.gather(*(call() for call in calls), return_exceptions=True)

    with ThreadPoolExecutor(len(calls) + 1) as threads:
        striking = threads.submit(strike)
        if side.runner is not None:
            results: list[Any] = side.do(act)
        else:
            begun = [threads.submit(contextvars.copy_context().run, call) for call in calls]
            results = [each.exception() or each.result() for each in begun]
        striking.result()
    return results


def silenced(replica_set: ReplicaSet, hole: BlackHole, count: int) -> Callable[[], None]:
    """Elects another primary once so many requests were swallowed."""

    def strike() -> None:
        wait_until(lambda: hole.struck >= count)
        replica_set.inject(Election(0.01))

    return strike


def is_set_free(side: Side, replica_set: ReplicaSet, coll: Any, recording: Any) -> None:
    """An insert to a primary that falls silent is repeated on the next one."""
    hole = BlackHole(SOON * 2)
    replica_set.inject(hole, on="primary")
    began = time.monotonic()
    results = at_once(side, [lambda: coll.insert_one({})], silenced(replica_set, hole, 1))
    assert not isinstance(results[0], Exception)
    assert time.monotonic() - began < SOON
    assert [event.reason.value for event in recording.events] == ["interrupted"]
    replica_set.clear()


def connected(side: Side, replica_set: ReplicaSet, **options: Any) -> Any:
    client = side.do(side.client, replica_set.uri, **{**STREAMING, **options})
    side.do(client.admin.command, "ping")
    side.wait_for_members(client, 3)
    return client


def primary_of(side: Side, client: Any) -> Any:
    return side.do(lambda: client.primary)


@pytest.mark.parametrize("count", [1, 6])
def test_writes_in_flight_are_repeated_on_the_new_primary(
    side: Side,
    replica_set: ReplicaSet,
    database: str,
    recording: RecordingListener,
    count: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="pymongo_resilience")
    client = connected(side, replica_set)
    old = primary_of(side, client)
    coll = client[database].coll
    hole = BlackHole(SOON * 2)
    replica_set.inject(hole, on="primary")
    began = time.monotonic()
    calls = [lambda number=number: coll.insert_one({"_id": number}) for number in range(count)]
    results = at_once(side, calls, silenced(replica_set, hole, 1))
    assert time.monotonic() - began < SOON
    assert [each for each in results if isinstance(each, Exception)] == []
    assert side.do(coll.count_documents, {}) == count
    reasons = {event.reason.value for event in recording.events}
    # Those that waited for a connection were not sent.
    assert "interrupted" in reasons
    assert reasons <= {"interrupted", "socket_not_available"}
    status = pymongo_resilience.status(client)
    (lost,) = [each for each in status.servers if each.address == f"{old[0]}:{old[1]}"]
    assert lost.lost_connections["interrupted"] >= 1
    lines = [each.getMessage() for each in caplog.records if each.name == "pymongo_resilience"]
    assert any("interrupted" in line and lost.address in line for line in lines)
    replica_set.clear()


def test_one_thread_watches_for_all_clients_and_then_ends(
    side: Side, replica_set: ReplicaSet, database: str, recording: RecordingListener
) -> None:
    colls = [connected(side, replica_set)[database].coll for _ in range(4)]
    hole = BlackHole(SOON * 2)
    replica_set.inject(hole, on="primary")
    strike, watchers = silenced(replica_set, hole, 4), set[int]()

    def watching() -> int:
        return sum(each.name == silent_servers.THREAD for each in threading.enumerate())

    def strike_and_count() -> None:
        strike()
        wait_until(watching)
        while count := watching():
            watchers.add(count)
            time.sleep(0.01)

    inserts = [lambda coll=coll: coll.insert_one({}) for coll in colls]
    results = at_once(side, inserts, strike_and_count)
    assert [each for each in results if isinstance(each, Exception)] == []
    assert watchers == {1}
    replica_set.clear()


class Faulty:
    """In place of an attempt; it has no connection."""

    call = None


def test_the_fault_of_one_attempt_does_not_end_the_watch_for_the_others(
    side: Side,
    replica_set: ReplicaSet,
    database: str,
    recording: RecordingListener,
    caplog: pytest.LogCaptureFixture,
) -> None:
    coll = connected(side, replica_set)[database].coll
    faulty = [Faulty() for _ in range(50)]
    runtime = PymongoResilienceInstrumentor()._runtime
    assert runtime is not None
    in_flight: dict[int, Any] = runtime.in_flight
    in_flight.update((id(each), ref(each)) for each in faulty)
    is_set_free(side, replica_set, coll, recording)
    assert "internal error in pymongo-resilience" in caplog.text


@pytest.mark.parametrize(
    "what", ["a write to many documents", "a strategy of the application", "in a transaction"]
)
def test_what_would_not_be_repeated_goes_on_waiting(
    side: Side, replica_set: ReplicaSet, database: str, recording: RecordingListener, what: str
) -> None:
    client = connected(side, replica_set)
    coll = client[database].coll
    session = None
    if what == "in a transaction":
        side.do(coll.insert_one, {})
        session = client.start_session()
        side.do(session.start_transaction)
        side.do(coll.insert_one, {}, session=session)

    def write() -> Any:
        if what == "a write to many documents":
            return coll.update_many({}, {"$inc": {"n": 1}})
        return coll.insert_one({}, session=session)

    hole = BlackHole(AFTER_THE_HOLE)
    replica_set.inject(hole, on="primary")
    began = time.monotonic()
    with override(strategy=REFUSES) if what.startswith("a strategy") else nullcontext():
        (result,) = at_once(side, [write], silenced(replica_set, hole, 1))
    assert isinstance(result, AutoReconnect)
    assert result.has_error_label("TransientTransactionError") == (session is not None)
    assert time.monotonic() - began > AFTER_THE_HOLE / 2, "until its connection was closed"
    assert {event.reason.value for event in recording.events} == {"socket_closed_while_in_flight"}
    if session is not None:
        side.do(session.end_session)


@pytest.mark.parametrize("gap", [0.05, 1.0])
def test_a_member_that_steps_down_and_answers_keeps_its_connections(
    side: Side, replica_set: ReplicaSet, database: str, recording: RecordingListener, gap: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # On a busy machine, a check takes longer.
    patient = silent_servers.REPLACED._replace(answers_within=1.0)
    monkeypatch.setattr(silent_servers, "REPLACED", patient)
    client = connected(side, replica_set)
    coll = client[database].coll
    side.do(coll.insert_one, {"_id": 1})
    old = primary_of(side, client)
    slow = Slow(gap + 1.5)
    replica_set.inject(slow, on="primary")

    def strike() -> None:
        wait_until(lambda: slow.struck >= 3)
        replica_set.inject(Election(gap))

    results = at_once(side, [lambda: coll.find_one({"_id": 1})] * 3, strike)
    assert results == [{"_id": 1}] * 3
    assert primary_of(side, client) != old
    assert recording.events == []
    assert all(not each.lost_connections for each in pymongo_resilience.status(client).servers)


def test_an_attempt_that_gets_its_connection_late_is_set_free_too(
    side: Side,
    replica_set: ReplicaSet,
    database: str,
    recording: RecordingListener,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the first look it had none."""
    coll = connected(side, replica_set)[database].coll
    looks: list[int] = []
    original = driver.connections.is_of

    def is_of(*args: Any) -> bool:
        looks.append(1)
        return len(looks) > 1 and original(*args)

    monkeypatch.setattr(driver.connections, "is_of", is_of)
    is_set_free(side, replica_set, coll, recording)
