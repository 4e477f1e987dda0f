"""Reads that stay unanswered are sent to a second server as well, and the first answer counts."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from pymongo import CursorType, ReadPreference
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.monitoring import ConnectionClosedEvent, ConnectionPoolListener
from pymongo.read_preferences import Nearest
from pymongo_resilience_instrumentation.clients.client_registry import ByClient
from pymongo_resilience_instrumentation.features.hedged_reads import hedge_budget, workers
from pymongo_resilience_instrumentation.features.hedged_reads.hedge_registry import ClientHedges
from pymongo_resilience_instrumentation.features.hedged_reads.race import AsyncRace, Race, Try
from pymongo_resilience_instrumentation.instrumentor import PymongoResilienceInstrumentor
from pymongo_resilience_instrumentation.selection.client_limits import ClientLimits
from pymongo_resilience_instrumentation.tools.testbed import Fail, Reset
from pymongo_resilience_instrumentation.tools.testbed.command_faults import DRIVER_COMMANDS
from pymongo_resilience_instrumentation.tools.testbed.fault import (
    Answer,
    Cut,
    Delay,
    Interception,
    Verdict,
)
from pymongo_resilience_instrumentation.tools.testbed.relay import Connection
from pymongo_resilience_instrumentation.tools.testbed.wire import Message
from support.clients import SentCommands, Side, wait_until
from support.telemetry import Instrument, Telemetry

from pymongo_resilience import OperationTimeoutError, Policy, override, status
from pymongo_resilience.clock import Clock
from pymongo_resilience.errors import RetryReason
from pymongo_resilience.events import BreakerOpened, Broadcast, ReadHedged, RetryScheduled
from pymongo_resilience.testbed import ReplicaSet, ShardedCluster

pytestmark = [pytest.mark.each_setup, pytest.mark.oldest]

SLOW_S = 1.2
HEDGE_MS = 150
"""The first try has reached its server by then, also where it has to connect on a busy machine."""
READS: dict[str, Callable[[Any], Any]] = {
    "find_one": lambda coll: coll.find_one({"x": 1}),
    "count_documents": lambda coll: coll.count_documents({}),
    "estimated_document_count": lambda coll: coll.estimated_document_count(),
    "distinct": lambda coll: coll.distinct("x"),
    "aggregate": lambda coll: coll.aggregate([{"$match": {"x": 1}}], batchSize=2),
    "aggregate_raw_batches": lambda coll: coll.aggregate_raw_batches([], batchSize=2),
}


class Script(Interception):
    """What becomes of the next commands of an application, one by one, wherever they go."""

    def __init__(self, *verdicts: Verdict) -> None:
        super().__init__()
        self._verdicts = list(verdicts)

    def on_request(self, request: Message, connection: Connection) -> Verdict | None:
        if request.command_name in DRIVER_COMMANDS or not self._verdicts:
            return None
        self.injected += 1
        return self._verdicts.pop(0)


def slow(times: int = 1, seconds: float = SLOW_S) -> Script:
    return Script(*[Delay(seconds)] * times)


@pytest.fixture
def telemetry(instrument: Instrument) -> Telemetry:
    return instrument(metrics="all")


@pytest.fixture
def coll(side: Side, replica_set: ReplicaSet, database: str, telemetry: Telemetry) -> Any:
    """Of a client that has read enough for a hedge or two."""
    return collection(side, replica_set, database)


def collection(side: Side, replica_set: ReplicaSet, database: str, **options: Any) -> Any:
    client = side.client(replica_set.uri, localThresholdMS=60_000, **options)
    side.do(client.admin.command, "ping")
    side.wait_for_members(client, 3)
    found = client.get_database(database, read_preference=ReadPreference.NEAREST).coll
    side.do(found.insert_many, [{"_id": each, "x": 1} for each in range(9)])
    save_up(found)
    return found


def hedges(coll: Any) -> ClientHedges:
    """With its state from the wrappers, which the first policy puts on."""
    runtime = PymongoResilienceInstrumentor()._runtime
    assert runtime is not None
    found: ClientHedges = runtime.hedges.of(coll.database.client)
    return found


def save_up(coll: Any, hedged: int = hedge_budget.MAX_HEDGES) -> None:
    """As after so many reads that were not hedged."""
    Policy(hedge=True)
    for _ in range(hedged * hedge_budget.READS_PER_HEDGE):
        hedges(coll).budget.read()


def hedged(telemetry: Telemetry) -> list[ReadHedged]:
    return [each for each in telemetry.decisions.events if isinstance(each, ReadHedged)]


def is_quiet(coll: Any) -> bool:
    """Nothing of a hedged read is left: no connection in use, no task, no busy thread."""
    client, kept = coll.database.client, hedges(coll)
    in_flight = [each.in_flight for each in status(client).servers]
    return not any(in_flight) and not kept.tasks and is_free(kept)


def is_free(kept: ClientHedges, threads: int = workers.MAX_THREADS) -> bool:
    return kept.threads._free._value == threads


def limit_threads(coll: Any, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "MAX_THREADS", threads)
    hedges(coll).threads.reset_after_fork()


def settle(side: Side, coll: Any, also: Callable[[], bool] = lambda: True) -> None:
    side.wait_until(lambda: is_quiet(coll) and also())


def read(side: Side, coll: Any, name: str) -> Any:
    result = side.do(READS[name], coll)
    return side.documents(result) if hasattr(result, "to_list") else result


@pytest.mark.parametrize("name", READS)
def test_the_second_server_answers_where_the_first_is_slow(
    side: Side, coll: Any, replica_set: ReplicaSet, name: str, telemetry: Telemetry
) -> None:
    expected = read(side, coll, name)
    replica_set.inject(slow())
    began = time.perf_counter()
    with override(hedge=HEDGE_MS):
        assert read(side, coll, name) == expected
    assert time.perf_counter() - began < SLOW_S
    (event,) = hedged(telemetry)
    assert event.winner == "hedge"
    assert event.second_server not in {None, event.server}
    settle(side, coll)


class Connections(ConnectionPoolListener):
    """Why connections were closed."""

    def __init__(self) -> None:
        self.closed: list[str] = []

    def connection_closed(self, event: ConnectionClosedEvent) -> None:
        self.closed.append(event.reason)

    def pool_created(self, event: Any) -> None: ...
    def pool_ready(self, event: Any) -> None: ...
    def pool_cleared(self, event: Any) -> None: ...
    def pool_closed(self, event: Any) -> None: ...
    def connection_created(self, event: Any) -> None: ...
    def connection_ready(self, event: Any) -> None: ...
    def connection_check_out_started(self, event: Any) -> None: ...
    def connection_check_out_failed(self, event: Any) -> None: ...
    def connection_checked_out(self, event: Any) -> None: ...
    def connection_checked_in(self, event: Any) -> None: ...


class Cursors(SentCommands):
    """The cursors that servers have open, by what they answered."""

    def __init__(self) -> None:
        super().__init__()
        self.open: set[int] = set()

    def succeeded(self, event: Any) -> None:
        super().succeeded(event)
        if event.command_name == "getMore":
            (asked,) = [
                each.command["getMore"]
                for each in self.started_events
                if each.request_id == event.request_id
            ]
            self.open.discard(asked)
        if event.command_name == "killCursors":
            self.open -= set(event.reply["cursorsKilled"])
        self.open |= {event.reply.get("cursor", {}).get("id", 0)} - {0}


def lsids(sent: SentCommands) -> set[bytes]:
    return {
        bytes(each.command["lsid"]["id"]) for each in sent.started_events if "lsid" in each.command
    }


def idle_lsids(client: Any) -> set[bytes]:
    return {bytes(each.session_id["id"]) for each in client._topology._session_pool}


@pytest.mark.parametrize("delays", [[Delay(SLOW_S)], [Delay(0.6), Delay(SLOW_S)]])
@pytest.mark.parametrize("name", ["find", "find_raw_batches", "aggregate"])
def test_a_cursor_stays_where_it_was_opened_the_other_is_killed(
    side: Side,
    replica_set: ReplicaSet,
    database: str,
    instrument: Instrument,
    delays: list[Verdict],
    name: str,
) -> None:
    """With the session of the try that opened it: a server refuses any other."""
    telemetry, cursors = instrument(), Cursors()
    coll = collection(side, replica_set, database, event_listeners=[cursors])
    replica_set.inject(Script(*delays))
    with override(hedge=HEDGE_MS):
        argument: Any = [] if name == "aggregate" else {}
        options = {"batchSize" if name == "aggregate" else "batch_size": 2}
        made = side.do(getattr(coll, name), argument, **options)
        found = side.documents(made)
    assert len(found) == (5 if name == "find_raw_batches" else 9)
    (event,) = hedged(telemetry)
    assert event.winner == ("hedge" if len(delays) == 1 else "first")
    settle(side, coll)
    settle(side, coll, lambda: not cursors.open)
    assert lsids(cursors) == idle_lsids(coll.database.client)
    first = [each for each in cursors.started_events if each.command_name in {"find", "aggregate"}]
    assert len({bytes(each.command["lsid"]["id"]) for each in first}) == len(first) == 2


def test_no_connection_is_closed_though_its_answer_is_not_used(
    side: Side, replica_set: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    pool = Connections()
    coll = collection(side, replica_set, database, event_listeners=[pool])
    for name in ("find_one", "aggregate"):
        replica_set.inject(slow())
        with override(hedge=HEDGE_MS):
            read(side, coll, name)
        settle(side, coll)
    assert hedges(coll).won == 2
    assert pool.closed == []


def test_the_spans_show_both_tries_and_which_one_won(
    side: Side, coll: Any, replica_set: ReplicaSet, telemetry: Telemetry
) -> None:
    telemetry.clear()
    replica_set.inject(slow())
    with override(hedge=HEDGE_MS):
        side.do(coll.find_one)
    settle(side, coll)
    (operation,) = telemetry.operations()
    assert operation.attributes is not None
    assert operation.attributes["pymongo_resilience.hedge.winner"] == "hedge"
    assert operation.attributes["pymongo_resilience.outcome"] == "ok"
    assert operation.attributes["pymongo_resilience.attempts"] == 1
    (shown,) = [each.attributes for each in operation.events if each.name == "read.hedged"]
    (event,) = hedged(telemetry)
    assert shown == {
        "pymongo_resilience.server": event.server,
        "pymongo_resilience.hedge.server": event.second_server,
        "pymongo_resilience.waited": event.waited,
    }
    ports = [each.attributes["server.port"] for each in telemetry.commands_of(operation)]
    assert len(set(ports)) == len(ports) == 2
    ((attributes, point),) = telemetry.points("pymongo_resilience.hedged_reads")
    assert (attributes["pymongo_resilience.hedge.winner"], point.value) == ("hedge", 1)
    ((attributes, _),) = [
        each
        for each in telemetry.points("db.client.operation.duration")
        if each[0]["db.operation.name"] == "find"
    ]
    assert str(attributes["server.port"]) in str(event.second_server)


def test_status_counts_reads_hedges_and_wins(
    side: Side, coll: Any, replica_set: ReplicaSet
) -> None:
    before = hedges(coll).budget.reads
    replica_set.inject(slow())
    for milliseconds in (HEDGE_MS, 5_000):
        with override(hedge=milliseconds):
            side.do(coll.find_one)
    counts = status(coll.database.client).hedges
    assert counts is not None
    assert (counts.reads - before, counts.sent, counts.won) == (2, 1, 1)
    settle(side, coll)


def in_a_session(side: Side, coll: Any) -> None:
    session = side.do(coll.database.client.start_session)
    side.do(coll.find_one, session=session)
    side.do(session.end_session)


def find_in_a_session(side: Side, coll: Any) -> None:
    session = side.do(coll.database.client.start_session)
    side.documents(coll.find(session=session))
    side.do(session.end_session)


def aggregate_in_a_session(side: Side, coll: Any) -> None:
    session = side.do(coll.database.client.start_session)
    side.documents(side.do(coll.aggregate, [], session=session))
    side.do(session.end_session)


def tailable(side: Side, coll: Any) -> None:
    with suppress(OperationFailure):  # the collection is not capped
        side.do(coll.find(cursor_type=CursorType.TAILABLE).next)


def later_batch(side: Side, coll: Any) -> None:
    cursor = coll.find(batch_size=2)
    with override(hedge=False):
        side.do(cursor.next)
    side.do(cursor.to_list)


def reading(coll: Any, mode: Any) -> Any:
    return coll.with_options(read_preference=mode)


PREFERRED = "from the preferred primary"
UNHEDGED: dict[str, Callable[[Side, Any], object]] = {
    "in a session": in_a_session,
    "find in a session": find_in_a_session,
    "aggregate in a session": aggregate_in_a_session,
    "tailable": tailable,
    "exhaust": lambda side, coll: side.documents(
        coll.find(cursor_type=CursorType.EXHAUST, batch_size=2)
    ),
    "explained": lambda side, coll: side.do(coll.find().explain),
    "with $merge": lambda side, coll: side.do(coll.aggregate, [{"$merge": "copy"}]),
    "with $out": lambda side, coll: side.do(coll.aggregate, [{"$out": "copy"}]),
    "later batch": later_batch,
    "from the primary": lambda side, coll: side.do(reading(coll, ReadPreference.PRIMARY).find_one),
    PREFERRED: lambda side, coll: side.do(reading(coll, ReadPreference.PRIMARY_PREFERRED).find_one),
}


@pytest.mark.parametrize("name", UNHEDGED)
def test_what_may_not_be_sent_twice_is_sent_once(
    side: Side, coll: Any, replica_set: ReplicaSet, telemetry: Telemetry, name: str
) -> None:
    script = slow(9, seconds=0.06)
    replica_set.inject(script)
    before = hedges(coll).budget.reads
    with override(hedge=5):
        UNHEDGED[name](side, coll)
    assert script.injected
    assert hedged(telemetry) == []
    assert hedges(coll).budget.sent == 0
    assert hedges(coll).budget.reads == before or name == PREFERRED


def test_a_read_that_found_no_hedge_left_is_hedged_once_there_is_one(
    side: Side, coll: Any, replica_set: ReplicaSet, telemetry: Telemetry
) -> None:
    while hedges(coll).budget.take(again=True):
        pass
    replica_set.inject(slow())
    timer = threading.Timer(0.3, save_up, [coll])
    timer.start()
    with override(hedge=HEDGE_MS):
        assert side.do(coll.find_one)["x"] == 1
    timer.join()
    (event,) = hedged(telemetry)
    assert event.winner == "hedge"
    settle(side, coll)


def test_the_percentile_is_that_of_the_reads_before(
    side: Side, coll: Any, replica_set: ReplicaSet, telemetry: Telemetry
) -> None:
    with override(hedge=True):
        for _ in range(hedge_budget.MIN_READS):
            side.do(coll.find_one)
        assert hedges(coll).budget.sent == 0
        assert hedges(coll).delay(True, coll.full_name) is not None
        hedges(coll)._latencies.clear()
        for _ in range(hedge_budget.MIN_READS):
            hedges(coll).observe(coll.full_name, 0.03)
        replica_set.inject(slow())
        side.do(coll.find_one)
    (event,) = hedged(telemetry)
    assert event.waited >= 0.03
    assert event.winner == "hedge"
    settle(side, coll)


def test_the_percentile_is_that_of_first_tries_to_their_answers(
    side: Side, coll: Any, replica_set: ReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the reads ended, or slow servers would make others look slow, too, or fast."""
    observed: list[float] = []
    monkeypatch.setattr(ClientHedges, "observe", lambda *given: observed.append(given[-1]))
    replica_set.inject(slow())
    with override(hedge=HEDGE_MS):
        side.do(coll.find_one)
    settle(side, coll)
    (seconds,) = observed
    assert seconds >= SLOW_S
    assert hedges(coll).won == 1


def test_a_hedge_that_is_rejected_for_overload_is_the_last_one(
    side: Side, coll: Any, replica_set: ReplicaSet
) -> None:
    labels = ["SystemOverloadedError", "RetryableError"]
    rejected = Answer({"ok": 0.0, "code": 462, "errmsg": "no", "errorLabels": labels})
    replica_set.inject(Script(Delay(0.4), rejected, Delay(0.4)))
    with override(hedge=HEDGE_MS):
        side.do(coll.find_one)
        side.do(coll.find_one)
    assert hedges(coll).budget.sent == 1
    settle(side, coll)


def test_a_server_whose_breaker_is_open_is_no_place_for_a_hedge(
    side: Side, replica_set: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(
        circuit_breaker="on", circuit_breaker_minimum_calls=4, circuit_breaker_open_s=60.0
    )
    coll = collection(side, replica_set, database)
    for member in (1, 2):
        replica_set.inject(Fail("find", times=1000, code=6), on=member)
        there = Nearest(tag_sets=[{"member": str(member)}])
        while sum(isinstance(each, BreakerOpened) for each in telemetry.decisions.events) < member:
            with suppress(PyMongoError):
                side.do(coll.with_options(read_preference=there).find_one)
    replica_set.clear()
    script = slow(seconds=0.15)
    replica_set.inject(script)
    with override(hedge=20):
        assert side.do(coll.find_one)["x"] == 1
    assert script.injected == 1
    assert hedged(telemetry) == []
    assert hedges(coll).budget.sent == 0


def test_a_hedge_that_fails_is_no_failure_of_the_read(
    side: Side, coll: Any, replica_set: ReplicaSet, telemetry: Telemetry
) -> None:
    replica_set.inject(Script(Delay(0.4), Answer({"ok": 0.0, "code": 2, "errmsg": "no"})))
    with override(hedge=HEDGE_MS):
        assert side.do(coll.find_one)["x"] == 1
    (event,) = telemetry.decisions.events
    assert isinstance(event, ReadHedged)
    assert event.winner == "first"
    settle(side, coll)


@pytest.mark.parametrize("timeout_ms", [None, 20_000], ids=["bare", "timeout"])
@pytest.mark.parametrize("name", ["find", "find_one", "aggregate"])
def test_a_first_try_that_fails_is_repeated_beside_a_hedge_that_hangs(
    name: str,
    timeout_ms: int | None,
    side: Side,
    replica_set: ReplicaSet,
    database: str,
    instrument: Instrument,
) -> None:
    telemetry, sent, script = instrument(), SentCommands(), slow(2, seconds=4)
    coll = collection(side, replica_set, database, event_listeners=[sent])
    sent.started_events.clear()
    replica_set.inject(script)

    def reset_the_first() -> None:
        wait_until(lambda: script.injected == 2)
        first = sent.started_events[0].connection_id
        number = [each.address for each in replica_set.members].index(first)
        replica_set.inject(Reset(), on=number)

    began, resetting = time.perf_counter(), threading.Thread(target=reset_the_first)
    resetting.start()
    with override(hedge=HEDGE_MS, timeout_ms=timeout_ms):
        if name == "find":
            assert len(side.documents(coll.find())) == 9
        else:
            assert read(side, coll, name)
    assert time.perf_counter() - began < 3.8
    resetting.join()
    replica_set.clear()
    assert [each.winner for each in hedged(telemetry)] == ["first"]
    settle(side, coll)


REFUSED = Answer({"ok": 0.0, "code": 9, "errmsg": "no"})


@pytest.mark.parametrize("timeout_ms", [None, 20_000], ids=["bare", "timeout"])
@pytest.mark.parametrize("hedge", [Delay(3), REFUSED], ids=["hangs", "fails"])
def test_an_error_of_the_first_try_is_that_of_the_read_and_waits_for_no_hedge(
    hedge: Verdict, timeout_ms: int | None, side: Side, coll: Any, replica_set: ReplicaSet,
    telemetry: Telemetry,
) -> None:  # fmt: skip
    """The server refuses the filter, the first time late."""
    replica_set.inject(Script(Delay(0.4), hedge))
    began = time.perf_counter()
    with (
        override(hedge=HEDGE_MS, timeout_ms=timeout_ms),
        pytest.raises(OperationFailure, match=r"\$no"),
    ):
        side.do(coll.find_one, {"x": {"$no": 1}})
    assert time.perf_counter() - began < 2
    replica_set.clear()
    assert [each.winner for each in hedged(telemetry)] == [None]
    settle(side, coll)


@pytest.mark.parametrize("name", ["find_one", "find", "aggregate"])
def test_a_hedged_read_that_fails_leaves_no_circle(
    name: str, side: Side, coll: Any, replica_set: ReplicaSet, telemetry: Telemetry
) -> None:
    def bad() -> Any:
        if name == "find":
            return coll.find({"$bad": 1}).next()
        return coll.find_one({"$bad": 1}) if name == "find_one" else coll.aggregate([{"$bad": 1}])

    async def bad_async() -> None:
        # In the coroutine: the event loop keeps what a task raises in a circle of its own.
        with suppress(OperationFailure):
            await bad()

    def fail() -> None:
        with override(hedge=HEDGE_MS), suppress(OperationFailure):
            side.do(bad if side.runner is None else bad_async)

    fail()
    gc.collect()
    gc.disable()
    try:
        for hedge in (False, True):
            if hedge:
                replica_set.inject(slow(1, seconds=0.5))
            fail()
            settle(side, coll)
            telemetry.clear()  # its events have the error
            # The thread of a try that has lost may end a little later.
            wait_until(nothing_is_left)
    finally:
        gc.enable()


def nothing_is_left() -> bool:
    # Not isinstance(): it raises for a weak proxy of another test's.
    return not [each for each in gc.get_objects() if type(each) in (AsyncRace, Race, Try)]


@pytest.mark.parametrize("side", ["async"], indirect=True)
def test_a_second_try_that_is_canceled_before_it_begins_leaves_no_circle(
    side: Side, coll: Any, replica_set: ReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the first try fails in the same step of the event loop, or when the loop ends."""
    original, tasks = workers.TaskWorkers.start, []

    def start(self: workers.TaskWorkers, function: Any) -> Any:
        task = original(self, function)
        tasks.append(task)
        if len(tasks) == 2:
            task.cancel()
        return task

    monkeypatch.setattr(workers.TaskWorkers, "start", start)
    replica_set.inject(slow(1, seconds=0.5))
    gc.collect()
    gc.disable()
    try:
        with override(hedge=HEDGE_MS):
            assert side.do(coll.find_one)["x"] == 1
        assert len(tasks) == 2
        tasks.clear()
        settle(side, coll)
        wait_until(nothing_is_left)
    finally:
        gc.enable()


def test_where_both_fail_the_first_is_repeated_by_the_rules(
    side: Side, coll: Any, replica_set: ReplicaSet, telemetry: Telemetry
) -> None:
    replica_set.inject(Script(Delay(2), Cut()))
    with override(hedge=HEDGE_MS, attempt_timeout_ms=1000):
        assert side.do(coll.find_one)["x"] == 1
    scheduled, event = telemetry.decisions.events
    assert isinstance(scheduled, RetryScheduled)
    assert scheduled.reason is RetryReason.ATTEMPT_TIMEOUT
    assert isinstance(event, ReadHedged)
    assert event.winner == "first"
    (operation,) = telemetry.operations(f"find {coll.full_name}")
    assert operation.attributes is not None
    assert operation.attributes["pymongo_resilience.attempts"] == 2
    settle(side, coll)


class Struck(BaseException):
    """As KeyboardInterrupt, which would end the test run."""


def test_a_signal_ends_the_wait_at_once(
    replica_set: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(metrics="all")
    side, cursors = Side("sync", None), Cursors()
    coll = collection(side, replica_set, database, event_listeners=[cursors])
    telemetry.clear()
    script, struck = slow(2, seconds=2), 0.0
    replica_set.inject(script)

    def strike(*_: Any) -> None:
        nonlocal struck
        struck = time.perf_counter()
        raise Struck

    main_thread = threading.main_thread().ident or 0

    def is_waiting() -> bool:
        """Return True once both tries are sent, and the reader only waits for an answer."""
        frame, functions = sys._current_frames().get(main_thread), set()
        while frame is not None:
            functions.add(frame.f_code)
            frame = frame.f_back
        return script.injected == 2 and Race._look.__code__ not in functions

    def strike_once_hedged() -> None:
        wait_until(is_waiting)
        signal.pthread_kill(main_thread, signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, strike)
    striking = threading.Thread(target=strike_once_hedged)
    try:
        striking.start()
        with override(hedge=HEDGE_MS), pytest.raises(Struck):
            coll.find(batch_size=2).next()
    finally:
        striking.join()
        signal.signal(signal.SIGALRM, before)
    assert time.perf_counter() - struck < 1
    assert hedges(coll).budget.sent == 1
    assert [each.winner for each in hedged(telemetry)] == [None]
    settle(side, coll, lambda: not cursors.open)
    assert lsids(cursors) == idle_lsids(coll.database.client)
    (operation,) = telemetry.operations()
    assert operation.attributes is not None
    assert operation.attributes["pymongo_resilience.hedge.winner"] == "neither"
    ((attributes, _),) = telemetry.points("pymongo_resilience.hedged_reads")
    assert attributes["pymongo_resilience.hedge.winner"] == "neither"
    side.close()


@pytest.mark.parametrize("after", [0.0, 0.4])
@pytest.mark.parametrize("name", ["find", "count_documents"])
def test_a_cancelled_task_leaves_nothing(
    replica_set: ReplicaSet, database: str, instrument: Instrument, after: float, name: str
) -> None:
    telemetry = instrument()
    side, cursors = Side("async", asyncio.Runner()), Cursors()
    coll = collection(side, replica_set, database, event_listeners=[cursors])
    for member in "012":
        # pymongo 4.17 counts a task for good that is cancelled while it makes a connection.
        there = Nearest(tag_sets=[{"member": member}])
        side.do(coll.with_options(read_preference=there).find_one)
    telemetry.clear()
    replica_set.inject(slow(2))

    async def cancelled() -> float:
        reading = coll.find(batch_size=2).next() if name == "find" else coll.count_documents({})
        began = time.perf_counter()
        task = asyncio.ensure_future(reading)
        await asyncio.sleep(after)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await asyncio.wait({*hedges(coll).tasks, asyncio.ensure_future(asyncio.sleep(0))})
        return time.perf_counter() - began

    with override(hedge=HEDGE_MS):
        assert side.do(cancelled) < SLOW_S
    if after:
        operation, *_ = telemetry.operations()
        assert [each.end_time is None for each in telemetry.commands_of(operation)] == [False] * 2
    settle(side, coll, lambda: not cursors.open)
    side.close()


def test_the_deadline_holds_for_both_tries(side: Side, coll: Any, replica_set: ReplicaSet) -> None:
    replica_set.inject(slow(9, seconds=2))
    began = time.perf_counter()
    with override(hedge=HEDGE_MS, timeout_ms=400), pytest.raises(OperationTimeoutError):
        side.do(coll.find_one)
    assert time.perf_counter() - began < 1.8
    replica_set.clear()
    settle(side, coll)


def test_where_all_threads_are_busy_reads_are_made_without_a_hedge(
    replica_set: ReplicaSet, database: str, instrument: Instrument, monkeypatch: pytest.MonkeyPatch
) -> None:
    telemetry = instrument()
    side = Side("sync", None)
    coll = collection(side, replica_set, database)
    limit_threads(coll, 1, monkeypatch)
    replica_set.inject(slow())
    with override(hedge=HEDGE_MS):
        assert len(coll.find(batch_size=2).to_list()) == 9
    assert hedged(telemetry) == []
    limit_threads(coll, 0, monkeypatch)
    with override(hedge=HEDGE_MS):
        assert len(coll.find(batch_size=2).to_list()) == 9
    side.close()


def test_on_a_sharded_cluster_the_hedge_goes_to_another_mongos(
    side: Side, cluster: ShardedCluster, database: str, instrument: Instrument
) -> None:
    """Whatever the read preference: each mongos can do it."""
    telemetry = instrument()
    client = side.client(cluster.uri, localThresholdMS=60_000)
    side.do(client.admin.command, "ping")
    side.wait_for_members(client, len(cluster.members))
    coll = client[database].coll
    side.do(coll.insert_one, {"x": 1})
    save_up(coll)
    cluster.inject(slow())
    with override(hedge=HEDGE_MS):
        assert side.do(coll.find_one)["x"] == 1
    (event,) = hedged(telemetry)
    assert event.winner == "hedge"
    assert event.second_server not in {None, event.server}
    settle(side, coll)


def test_a_fault_of_ours_only_means_that_nothing_is_hedged(
    side: Side,
    coll: Any,
    replica_set: ReplicaSet,
    telemetry: Telemetry,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fault(*_: Any) -> bool:
        raise KeyError("ours")

    monkeypatch.setattr(ClientHedges, "may_go_elsewhere", fault)
    replica_set.inject(slow(seconds=0.06))
    with override(hedge=5):
        assert side.do(coll.find_one)["x"] == 1
    assert hedged(telemetry) == []
    assert "internal error in pymongo-resilience before a read was hedged" in caplog.text


def test_a_forked_child_has_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "MAX_THREADS", 1)
    clock = Clock()
    limits = ClientLimits(None, clock, Broadcast([]), None)
    registry = ByClient(lambda _: ClientHedges(clock, limits))
    kept, done = registry.of(registry), threading.Event()

    assert kept.threads.start(done.wait)
    assert not kept.threads.start(done.wait)
    registry.reset_after_fork()
    assert kept.threads.start(done.wait)
    done.set()
    wait_until(lambda: is_free(kept, 1))
