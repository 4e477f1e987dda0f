"""What a deadline makes of commands, on the wire: their ``maxTimeMS``, and none sent needlessly.

A deadline that the application sets; test_application_limits.py has those of the configuration.

Source: Client Side Operations Timeout, "Command Execution", "Retries", "Bulk writes".
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from typing import Any

import pymongo
import pytest
from pymongo import InsertOne, UpdateOne, WriteConcern, _csot
from pymongo.errors import ExecutionTimeout, NetworkTimeout, PyMongoError
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.tools.testbed.fault import HELLO_COMMANDS
from support.clients import Side, wait_until
from support.command_listeners import OnCommands
from support.every_operation import BY_CLASS, Scene
from support.pool_connections import Closed
from support.servers import cases
from support.telemetry import Instrument
from support.transactions import session_of
from support.wait_helpers import wait_for_server

from pymongo_resilience import OperationTimeoutError, override
from pymongo_resilience.errors import RetryReason, Stage
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import (
    CutBefore,
    Fail,
    FailWriteConcern,
    Interception,
    Latency,
    ReplicaSet,
    Slow,
)

pytestmark = pytest.mark.oldest

TIMEOUT = 20_000
"""Milliseconds; what a busy machine takes of it is far less than SLACK."""
SLACK = 10_000
OLDER = {"wTimeoutMS": 9000, "socketTimeoutMS": 9000}
CLEANUP = {"endSessions", "killCursors"}
"""A client's close() is none of the operations of the text, and its background task, which kills
what was garbage-collected, has no deadline; a cursor's close() has one: test_closing.py."""
RTT = 0.08
"""Seconds that each reply is held back, where the round trip matters."""


class Recorder(Interception):
    """Every command that arrives, but for hellos."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: list[dict[str, Any]] = []

    def on_request(self, request: Any, connection: Any) -> None:
        if request.command_name not in HELLO_COMMANDS:
            self.commands.append(dict(request.body))

    def named(self, name: str) -> list[dict[str, Any]]:
        return [each for each in self.commands if next(iter(each)) == name]


@pytest.fixture
def recorder(proxy: ReplicaSet) -> Recorder:
    # Before other faults: each request is its to see first.
    made = Recorder()
    proxy.inject(made)
    return made


def wrong(command: dict[str, Any]) -> bool:
    if next(iter(command)) == "getMore":
        return "maxTimeMS" in command
    if next(iter(command)) in CLEANUP:
        return False
    limit = command.get("maxTimeMS", 0)
    concern = command.get("writeConcern", {})
    return not TIMEOUT - SLACK < limit <= TIMEOUT or "wtimeout" in concern


def test_every_operation_has_what_is_left_and_no_older_limit(
    side: Side, proxy: ReplicaSet, database: str, recorder: Recorder, instrument: Instrument
) -> None:
    instrument(timeout_mode="cursor_lifetime")
    uri = f"{proxy.uri}{'&' if '?' in proxy.uri else '?'}timeoutMS={TIMEOUT}"
    scene = Scene(side, uri, side.client(uri, **OLDER), database)
    scene.prepare()
    seen: dict[str, list[Any]] = {}
    silent = []
    for owner, operations in BY_CLASS.items():
        for each in operations:
            recorder.commands.clear()
            # The server does not know every command; it was sent.
            with contextlib.suppress(PyMongoError):
                each.call(scene)
            name = f"{owner}.{each.name}"
            if not recorder.commands:
                silent.append(name)
            seen[name] = [next(iter(command)) for command in recorder.commands if wrong(command)]
    assert silent == []
    assert {name: commands for name, commands in seen.items() if commands} == {}


PAUSE = 0.05
"""Seconds that pass between two commands; no clock is as coarse."""


def pausing() -> OnCommands:
    """Lets time pass after each command, so that what is left must be less for the next."""

    def pause(_: Any) -> None:
        time.sleep(PAUSE)

    return OnCommands(succeeded=pause, failed=pause)


def falls(found: list[int]) -> bool:
    """Each by what has passed since the one before; the round trip taken off may differ."""
    return all(before - after >= PAUSE * 1000 / 2 for before, after in itertools.pairwise(found))


def _transaction(side: Side, coll: Any, end: str, **options: Any) -> None:
    with session_of(side, coll.database.client) as session:
        side.do(session.start_transaction, **options)
        side.do(coll.insert_one, {}, session=session)
        side.do(getattr(session, end))


REPEATED: dict[str, tuple[Any, Any]] = {
    "find": (lambda s, c: s.do(c.find_one), lambda: CutBefore("find", times=2)),
    "insert": (lambda s, c: s.do(c.insert_one, {}), lambda: CutBefore("insert", times=2)),
    "aggregate": (
        lambda s, c: s.do(c.count_documents, {}),
        lambda: Fail("aggregate", times=2, code=6),
    ),
    "commitTransaction": (
        lambda s, c: _transaction(s, c, "commit_transaction"),
        lambda: CutBefore("commitTransaction", times=2),
    ),
    "abortTransaction": (
        lambda s, c: _transaction(s, c, "abort_transaction"),
        lambda: CutBefore("abortTransaction"),
    ),
    "update": (
        lambda s, c: s.do(c.bulk_write, [UpdateOne({}, {"$set": {"a": 1}})]),
        lambda: FailWriteConcern("update", times=2, code=91, labels=["RetryableWriteError"]),
    ),
}


@pytest.mark.parametrize("command", REPEATED)
def test_each_attempt_has_what_is_left_then(
    command: str, side: Side, proxy: ReplicaSet, database: str, recorder: Recorder,
    instrument: Instrument,
) -> None:  # fmt: skip
    """A commit that is repeated asks for a majority, without the ``wtimeout`` that goes with it. An
    abort is repeated once."""
    instrument()
    call, fault = REPEATED[command]
    client = side.client(proxy.uri, event_listeners=[pausing()], timeoutMS=TIMEOUT, **OLDER)
    coll = client[database].coll
    side.do(coll.insert_one, {"_id": 0})
    recorder.commands.clear()
    proxy.inject(fault())
    call(side, coll)
    sent = recorder.named(command)
    assert len(sent) == (2 if command == "abortTransaction" else 3)
    assert not any(map(wrong, sent))
    assert falls([each["maxTimeMS"] for each in sent])
    if command == "commitTransaction":
        assert [each.get("writeConcern", {}).get("w") for each in sent[1:]] == ["majority"] * 2


def min_rtt(client: Any) -> float:
    (server,) = client.topology_description.server_descriptions().values()
    return float(server.min_round_trip_time)


@pytest.fixture
def closed() -> Closed:
    return Closed()


@pytest.fixture
def distant(side: Side, proxy: ReplicaSet, closed: Closed) -> Any:
    """A client whose server is RTT seconds away, and that has measured it."""
    proxy.inject(Latency(RTT))
    client = side.client(proxy.uri, event_listeners=[closed], **OLDER)
    side.do(client.admin.command, "ping")
    waiting = (wait_until, lambda: min_rtt(client) >= RTT)
    # Not on the event loop: it is the client's monitor that measures.
    side.do(*waiting if side.runner is None else (asyncio.to_thread, *waiting))
    return client


def test_the_round_trip_is_taken_off(
    side: Side, recorder: Recorder, distant: Any, database: str, instrument: Instrument
) -> None:
    instrument(timeout_ms=TIMEOUT)
    side.do(distant[database].coll.find_one)
    (find,) = recorder.named("find")
    assert TIMEOUT - SLACK < find["maxTimeMS"] <= TIMEOUT - RTT * 1000


@pytest.mark.parametrize("options", [{}, {"attempt_timeout_ms": TIMEOUT}])
def test_nothing_is_sent_where_the_round_trip_does_not_fit(
    options: dict[str, int], side: Side, recorder: Recorder, distant: Any, closed: Closed,
    database: str, instrument: Instrument,
) -> None:  # fmt: skip
    """And its connection is back in the pool."""
    telemetry = instrument(**options)
    side.do(distant[database].coll.insert_one, {})
    with override(timeout_ms=int(RTT * 1000 / 2)), pytest.raises(ExecutionTimeout) as caught:
        side.do(distant[database].coll.find_one)
    assert isinstance(caught.value, OperationTimeoutError)
    assert caught.value.stage is Stage.NOT_SENT
    assert telemetry.decisions.events[-1].rule is Rule.DEADLINE
    assert telemetry.decisions.events[-1].reason is RetryReason.UNKNOWN, "not the server's fault"
    assert recorder.named("find") == []
    assert (closed.made, closed.reasons) == (1, [])
    assert side.do(distant[database].coll.find_one) is not None
    assert closed.made == 1


CALLS: dict[str, Any] = {
    "find": lambda s, c: s.do(c.find_one),
    "bulk": lambda s, c: s.do(c.insert_many, [{}, {}]),
    "client's bulk": lambda s, c: s.do(
        c.database.client.bulk_write, [InsertOne({}, namespace=c.full_name)]
    ),
}


@pytest.mark.parametrize("name", cases(CALLS, {"client's bulk": "8.0"}))
def test_nothing_is_sent_with_less_than_a_millisecond_left(
    name: str,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    instrument: Instrument,
) -> None:
    """pymongo 4.20 sends ``maxTimeMS: 0``, which to the server is no limit at all."""
    coll = side.client(proxy.uri, **OLDER)[database].coll
    side.do(coll.find_one)
    recorder.commands.clear()
    # So short a time cannot be met otherwise; what else asks has its connection and its server.
    for module in (_csot, driver.csot):
        monkeypatch.setattr(module, "remaining", lambda: 0.0009 if _csot.get_timeout() else None)
    monkeypatch.setattr(_csot, "get_rtt", lambda: 0.0)
    with pymongo.timeout(5):
        # Its socket has no more time either.
        with contextlib.suppress(PyMongoError):
            CALLS[name](side, coll)
    assert [each["maxTimeMS"] for each in recorder.commands] == [0], "mended in pymongo?"
    recorder.commands.clear()
    instrument(timeout_ms=5000)
    with pytest.raises(OperationTimeoutError) as caught:
        CALLS[name](side, coll)
    assert caught.value.stage is Stage.NOT_SENT
    assert "remaining timeout:0.00090 < 1 ms" in str(caught.value)
    assert recorder.commands == []


@pytest.fixture(params=[None, 0, TIMEOUT])
def timeout_ms(request: pytest.FixtureRequest, instrument: Instrument) -> Any:
    instrument()
    return request.param


@pytest.fixture
def coll(side: Side, proxy: ReplicaSet, database: str, timeout_ms: int | None) -> Any:
    return side.client(proxy.uri, timeoutMS=timeout_ms)[database].coll


def test_the_applications_own_limits(
    side: Side, coll: Any, recorder: Recorder, timeout_ms: int | None
) -> None:
    """A deadline has one of its own, a timeout without end has none; without either they hold.

    A document for ``command()`` is never looked at: a deadline writes over it, and that is all.
    """
    side.do(coll.find_one, max_time_ms=7000)
    side.do(coll.count_documents, {}, maxTimeMS=7000)
    side.do(coll.create_index, "a", maxTimeMS=7000)
    side.do(coll.database.command, {"ping": 1, "maxTimeMS": 7000})
    *sent, ping = [each.get("maxTimeMS") for each in recorder.commands]
    assert len(sent) == 3
    if timeout_ms == TIMEOUT:
        assert all(TIMEOUT - SLACK < limit <= TIMEOUT for limit in (*sent, ping))
    else:
        assert sent == [7000 if timeout_ms is None else None] * 3
        assert ping == 7000


def test_the_commit_limit_of_a_transaction(
    side: Side, coll: Any, recorder: Recorder, timeout_ms: int | None
) -> None:
    side.do(coll.insert_one, {})
    _transaction(side, coll, "commit_transaction", max_commit_time_ms=7000)
    (commit,) = recorder.named("commitTransaction")
    limit = commit.get("maxTimeMS")
    if timeout_ms == TIMEOUT:
        assert TIMEOUT - SLACK < limit <= TIMEOUT
    else:
        assert limit == (7000 if timeout_ms is None else None)


@pytest.mark.parametrize("timeout_ms", [None, 0, TIMEOUT])
def test_the_sockets_own_timeout(
    timeout_ms: int | None, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """Set aside by any timeout, by one without end too; in force again where there is none."""
    instrument()
    client = side.client(proxy.uri, socketTimeoutMS=500, retryReads=False, maxPoolSize=1)
    wait_for_server(side, client)
    coll = client[database].coll
    proxy.inject(Slow(0.8))
    if timeout_ms is not None:
        with override(timeout_ms=timeout_ms):
            side.do(coll.find_one)
    with pytest.raises(NetworkTimeout):
        side.do(coll.find_one)


def test_the_wtimeout_of_a_collection(
    side: Side, coll: Any, recorder: Recorder, timeout_ms: int | None
) -> None:
    coll = coll.with_options(write_concern=WriteConcern("majority", wtimeout=9000))
    side.do(coll.insert_one, {})
    side.do(coll.insert_many, [{}, {}])
    expected = {"w": "majority"} | ({"wtimeout": 9000} if timeout_ms is None else {})
    assert [each["writeConcern"] for each in recorder.named("insert")] == [expected] * 2
