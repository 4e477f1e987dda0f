"""Under a deadline every wait is cut: for a server, for a place in the pool, for a socket.

How long a wait was is measured with generous bounds, and how long it was to be to the millisecond:
what was handed to the driver's own wait is written down, and that is what is asserted.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pymongo
import pytest
from busy_pools import the_only_connection_taken
from conftest import Instrument, Side, wait_until
from pymongo import _csot
from pymongo.errors import (
    AutoReconnect,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
)
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.driver import deadline, waits
from pymongo_resilience_instrumentation.testbed import EmbeddedServer, ReplicaSet
from pymongo_resilience_instrumentation.testbed.gate import Gate

from pymongo_resilience import OperationTimeoutError, RetryAction, RetryScheduled, override
from pymongo_resilience.orchestrator import Rule
from pymongo_resilience.testing import set_active

pytestmark = pytest.mark.oldest

NOBODY = "mongodb://127.0.0.1:1/"
PLENTY_MS = 20_000
"""Of a deadline that is not to be reached."""
SOON = 5.0
"""Seconds; plain pymongo waits for all of PLENTY_MS."""
NOW = 1000.0
"""Seconds, where the clock stands still."""


def half_of(side: Side) -> Any:
    return driver.SYNC_HALF if side.runner is None else driver.ASYNC_HALF


# Each of the rules, on sockets.


def test_selection_ends_with_its_own_timeout_and_that_is_no_expiry(
    side: Side, instrument: Instrument
) -> None:
    """pymongo alone goes on until the deadline."""
    telemetry = instrument(timeout_ms=PLENTY_MS)
    coll = side.client(NOBODY, serverSelectionTimeoutMS=150)["db"].coll
    started = time.monotonic()
    with pytest.raises(ServerSelectionTimeoutError) as caught:
        side.do(coll.find_one)
    assert 0.15 <= time.monotonic() - started < SOON
    assert not isinstance(caught.value, OperationTimeoutError)
    assert [event.rule for event in telemetry.decisions.events] == [Rule.SELECTION]


def test_selection_that_ends_with_the_deadline_is_an_expiry(
    side: Side, instrument: Instrument
) -> None:
    telemetry = instrument()
    coll = side.client(NOBODY, serverSelectionTimeoutMS=PLENTY_MS)["db"].coll
    with override(timeout_ms=150), pytest.raises(OperationTimeoutError) as caught:
        side.do(coll.find_one)
    assert isinstance(caught.value, ServerSelectionTimeoutError)
    assert 0.15 <= caught.value.elapsed_s < SOON
    assert [event.rule for event in telemetry.decisions.events] == [Rule.DEADLINE]


@pytest.mark.parametrize("ends_with", ["the deadline", "serverSelectionTimeoutMS"])
def test_a_full_pool_is_waited_for_as_long_as_the_shorter_of_both(
    ends_with: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    by_deadline = ends_with == "the deadline"
    own = PLENTY_MS if by_deadline else 300
    client = side.client(proxy.uri, maxPoolSize=1, serverSelectionTimeoutMS=own)
    wait_for_server(side, client)
    with the_only_connection_taken(side, client, proxy):
        started = time.monotonic()
        with (
            override(timeout_ms=300 if by_deadline else PLENTY_MS),
            pytest.raises(WaitQueueTimeoutError) as caught,
        ):
            side.do(client[database].coll.find_one)
        took = time.monotonic() - started
        proxy.clear()
    assert 0.25 <= took < SOON
    assert isinstance(caught.value, OperationTimeoutError) == by_deadline
    rules = [each.rule for each in telemetry.decisions.events if each.operation == "find"]
    assert rules == [Rule.DEADLINE if by_deadline else Rule.UNKNOWN_REASON]


def wait_for_server(side: Side, client: Any) -> None:
    def answers() -> bool:
        try:
            return bool(side.do(client.admin.command, "ping"))
        except AutoReconnect:
            return False

    wait_until(answers)


@pytest.fixture
def gate(server: EmbeddedServer) -> Iterator[Gate]:
    with Gate(server.address) as running:
        yield running


@contextlib.contextmanager
def shut(gate: Gate) -> Iterator[None]:
    gate.shut()
    try:
        yield
    finally:
        # Closing a client wants a connection, too.
        gate.open()


ALWAYS_CONNECTS: dict[str, Any] = {"maxIdleTimeMS": 1}
"""A connection is too old once it is back in the pool."""


class Opens:
    """A strategy that lets the next attempt connect."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def retry_after(self, operation: Any, failure: Any, /) -> RetryAction:
        self._gate.open()
        return RetryAction()


@pytest.mark.parametrize("shortest", ["connectTimeoutMS", "serverSelectionTimeoutMS"])
def test_connecting_ends_in_time_and_is_repeated_since_nothing_was_sent(
    shortest: str, gate: Gate, side: Side, database: str, instrument: Instrument
) -> None:
    """pymongo alone goes on until the deadline."""
    telemetry = instrument(strategy=Opens(gate), timeout_ms=PLENTY_MS)
    client = side.client(gate.uri, **ALWAYS_CONNECTS, **{shortest: 500})
    wait_for_server(side, client)
    telemetry.clear()
    coll = client[database].coll
    with shut(gate):
        started = time.monotonic()
        # Not declared idempotent, and no retryable write: it is only since nothing was sent.
        side.do(coll.update_many, {}, {"$set": {"changed": True}})
    assert 0.4 < time.monotonic() - started < SOON
    (event,) = telemetry.decisions.events
    assert isinstance(event, RetryScheduled)


def test_connecting_ends_with_the_deadline(
    gate: Gate, side: Side, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    client = side.client(gate.uri, **ALWAYS_CONNECTS)
    wait_for_server(side, client)
    with shut(gate), override(timeout_ms=300), pytest.raises(OperationTimeoutError) as caught:
        side.do(client[database].coll.find_one)
    assert isinstance(caught.value, AutoReconnect)
    assert 0.3 <= caught.value.elapsed_s < SOON
    assert [event.rule for event in telemetry.decisions.events] == [Rule.DEADLINE]


def test_a_selection_timeout_of_nothing_is_no_limit_to_connecting(
    side: Side, server: EmbeddedServer, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=PLENTY_MS)
    client = side.client(server.uri, serverSelectionTimeoutMS=0, **ALWAYS_CONNECTS)
    wait_for_server(side, client)
    telemetry.clear()
    assert side.do(client[database].coll.find_one) is None
    assert telemetry.decisions.events == []


def test_a_tls_handshake_with_a_silent_peer_ends_with_the_deadline(
    side: Side, instrument: Instrument
) -> None:
    """An async one takes 60 s in pymongo 4.17 to 4.20, deadline or not: asyncio's own default for
    what pymongo does not say."""
    instrument()
    options = side.client(
        NOBODY, connect=False, tls=True, connectTimeoutMS=PLENTY_MS
    ).options.pool_options
    connect = getattr(half_of(side).module("pool"), half_of(side).connect)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started = time.monotonic()
        with pymongo.timeout(0.2), pytest.raises((TimeoutError, AutoReconnect), match="timed out"):
            side.do(connect, silent.getsockname(), options)
    assert 0.2 <= time.monotonic() - started < SOON


# What is handed to the driver.


@dataclass(frozen=True)
class Wait:
    """A wait that pymongo asks for, and what of it is handed to its condition."""

    asked: float | None
    handed: float | None
    deadline: float | None = None
    attempt: float | None = None
    """Seconds until selection and checkout of the attempt must have ended."""


WAITS = [
    Wait(0.5, 0.5),
    Wait(None, None),
    Wait(0.5, 0.5, deadline=0),
    Wait(0.5, 0.5, deadline=0, attempt=0.1),
    Wait(0.5, 0.5, deadline=10),
    Wait(0.5, 0.2, deadline=0.2),
    Wait(None, 0.2, deadline=0.2),
    Wait(0.5, 0.1, deadline=10, attempt=0.1),
    Wait(10, 3, deadline=10, attempt=3),
    Wait(0.5, 0.2, deadline=0.2, attempt=3),
    Wait(0.5, 0.5, attempt=0.1),
    Wait(0.5, 0.001, deadline=10, attempt=-1),
]


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """For deadlines alone; asyncio's goes on."""
    for module in (_csot, waits, deadline):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: NOW))


@pytest.mark.usefixtures("stopped_clock")
@pytest.mark.parametrize("module", ["topology", "pool"])
@pytest.mark.parametrize("wait", WAITS, ids=str)
def test_a_wait_is_handed_what_is_left(
    wait: Wait, module: str, side: Side, monkeypatch: pytest.MonkeyPatch, instrument: Instrument
) -> None:
    handed = record_waits(side, monkeypatch)
    instrument()
    half = half_of(side)
    patched = getattr(half.module(module), half.wait)
    with pymongo.timeout(wait.deadline), a_call() as call:
        if wait.attempt is not None:
            call.waits_until = NOW + wait.attempt
        side.do(patched, "the condition", wait.asked)
        with set_active(False):
            side.do(patched, "the condition", wait.asked)
    assert handed == [pytest.approx(wait.handed), wait.asked]


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
        patch.setattr(half.module(name), half.wait, fake)
    return found


@contextlib.contextmanager
def a_call() -> Iterator[calls.Call]:
    call = calls.Call(None, "find", "db", "coll", acknowledged=True)
    calls.enter(call)
    yield call
    calls.leave(call)


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
) -> None:
    half = half_of(side)
    seen: list[float | None] = []

    def connect(*_: Any) -> None:
        seen.append(_csot.remaining())

    async def connect_async(*_: Any) -> None:
        seen.append(_csot.remaining())

    fake = connect if side.runner is None else connect_async
    monkeypatch.setattr(half.module("pool"), half.connect, fake)
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
