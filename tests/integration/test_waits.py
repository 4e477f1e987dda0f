"""Under a deadline every wait is cut: for a server, for a place in the pool, for a socket.

On real ones, with generous bounds; test_wait_plans.py has many of them, to the millisecond.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any

import pymongo
import pytest
from pymongo.errors import (
    AutoReconnect,
    NetworkTimeout,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
)
from support.busy_pools import the_only_connection_taken
from support.clients import Side
from support.fake_servers import BlackHolePort
from support.telemetry import Instrument
from support.wait_helpers import NOBODY, PLENTY_MS, half_of, wait_for_server

from pymongo_resilience import OperationTimeoutError, override
from pymongo_resilience.events import RetryScheduled
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.strategies import RetryAction
from pymongo_resilience.testbed import EmbeddedServer, ReplicaSet

pytestmark = pytest.mark.oldest

SOON = 5.0
"""Seconds; plain pymongo waits for all of PLENTY_MS."""


@contextlib.contextmanager
def takes(at_least: float) -> Iterator[None]:
    started = time.monotonic()
    yield
    assert at_least <= time.monotonic() - started < SOON


def test_selection_ends_with_its_own_timeout_and_that_is_no_expiry(
    side: Side, instrument: Instrument
) -> None:
    """pymongo alone goes on until the deadline."""
    telemetry = instrument(timeout_ms=PLENTY_MS)
    coll = side.client(NOBODY, serverSelectionTimeoutMS=150)["db"].coll
    with takes(0.15), pytest.raises(ServerSelectionTimeoutError) as caught:
        side.do(coll.find_one)
    assert not isinstance(caught.value, OperationTimeoutError)
    assert [event.rule for event in telemetry.decisions.events] == [Rule.SELECTION]


def test_selection_that_ends_with_the_deadline_is_an_expiry(
    side: Side, instrument: Instrument
) -> None:
    telemetry = instrument()
    coll = side.client(NOBODY, serverSelectionTimeoutMS=PLENTY_MS)["db"].coll
    with takes(0.15), override(timeout_ms=150), pytest.raises(OperationTimeoutError) as caught:
        side.do(coll.find_one)
    assert isinstance(caught.value, ServerSelectionTimeoutError)
    assert [event.rule for event in telemetry.decisions.events] == [Rule.DEADLINE]


def test_a_full_pool_is_waited_for_until_the_deadline(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """``serverSelectionTimeoutMS`` limits the selection alone, as in pymongo."""
    telemetry = instrument()
    client = side.client(proxy.uri, maxPoolSize=1, serverSelectionTimeoutMS=50)
    wait_for_server(side, client)
    with the_only_connection_taken(side, client, proxy):
        with takes(0.25), override(timeout_ms=300), pytest.raises(OperationTimeoutError) as caught:
            side.do(client[database].coll.find_one)
        proxy.clear()
    assert isinstance(caught.value, WaitQueueTimeoutError)
    rules = [each.rule for each in telemetry.decisions.events if each.operation == "find"]
    assert rules == [Rule.DEADLINE]


@pytest.mark.parametrize("timeout_ms", [None, 600])
def test_the_older_timeout_of_the_pool_holds_without_a_deadline_alone(
    timeout_ms: int | None, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    client = side.client(proxy.uri, maxPoolSize=1, waitQueueTimeoutMS=100, retryReads=False)
    wait_for_server(side, client)
    block = contextlib.nullcontext() if timeout_ms is None else override(timeout_ms=timeout_ms)
    with the_only_connection_taken(side, client, proxy):
        with (
            takes((timeout_ms or 100) / 1000),
            block,
            pytest.raises(WaitQueueTimeoutError) as caught,
        ):
            side.do(client[database].coll.find_one)
        proxy.clear()
    assert isinstance(caught.value, OperationTimeoutError) == (timeout_ms is not None)


@pytest.mark.parametrize("source", ["override", "client", "process", "pymongo.timeout"])
def test_a_timeout_without_end_leaves_a_full_pool_its_older_timeout(
    source: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(timeout_ms=0 if source == "process" else None)
    own: dict[str, Any] = {"timeoutMS": 0} if source == "client" else {}
    client = side.client(proxy.uri, maxPoolSize=1, waitQueueTimeoutMS=50, **own)
    wait_for_server(side, client)
    blocks = {"override": override(timeout_ms=0), "pymongo.timeout": pymongo.timeout(0)}
    with the_only_connection_taken(side, client, proxy):
        with (
            takes(0.05),
            blocks.get(source, override()),
            pytest.raises(WaitQueueTimeoutError) as caught,
        ):
            side.do(client[database].coll.insert_one, {})
        proxy.clear()
    assert not isinstance(caught.value, OperationTimeoutError)


@pytest.mark.parametrize("timeout_ms", [None, 0])
def test_selection_has_its_own_timeout_without_a_deadline_and_without_an_end(
    timeout_ms: int | None, side: Side, instrument: Instrument
) -> None:
    instrument(timeout_ms=timeout_ms)
    coll = side.client(NOBODY, serverSelectionTimeoutMS=150)["db"].coll
    with takes(0.15), pytest.raises(ServerSelectionTimeoutError) as caught:
        side.do(coll.find_one)
    assert not isinstance(caught.value, OperationTimeoutError)


@pytest.fixture
def gate(server: EmbeddedServer) -> Iterator[BlackHolePort]:
    with BlackHolePort(server.address) as running:
        yield running


@contextlib.contextmanager
def shut(gate: BlackHolePort) -> Iterator[None]:
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

    def __init__(self, gate: BlackHolePort) -> None:
        self._gate = gate

    def retry_after(self, operation: Any, failure: Any, /) -> RetryAction:
        self._gate.open()
        return RetryAction()


def test_connecting_ends_in_time_and_is_repeated_since_nothing_was_sent(
    gate: BlackHolePort, side: Side, database: str, instrument: Instrument
) -> None:
    """pymongo alone goes on until the deadline."""
    telemetry = instrument(strategy=Opens(gate), timeout_ms=PLENTY_MS)
    client = side.client(gate.uri, **ALWAYS_CONNECTS, connectTimeoutMS=500)
    wait_for_server(side, client)
    telemetry.clear()
    coll = client[database].coll
    with shut(gate), takes(0.4):
        # Not declared idempotent, and no retryable write: it is only since nothing was sent.
        side.do(coll.update_many, {}, {"$set": {"changed": True}})
    (event,) = telemetry.decisions.events
    assert isinstance(event, RetryScheduled)


def test_connecting_that_ends_with_its_own_timeout_is_no_expiry(
    gate: BlackHolePort, side: Side, database: str, instrument: Instrument
) -> None:
    """Where it is not repeated, it is the driver's error: the operation has time left."""
    instrument(timeout_ms=PLENTY_MS)
    client = side.client(gate.uri, connectTimeoutMS=300, retryReads=False, **ALWAYS_CONNECTS)
    wait_for_server(side, client)
    with shut(gate), pytest.raises(NetworkTimeout) as caught:
        side.do(client[database].coll.find_one)
    assert not isinstance(caught.value, OperationTimeoutError)
    assert caught.value.timeout


def test_connecting_ends_with_the_deadline(
    gate: BlackHolePort, side: Side, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    client = side.client(gate.uri, **ALWAYS_CONNECTS)
    wait_for_server(side, client)
    with shut(gate), takes(0.3):
        with override(timeout_ms=300), pytest.raises(OperationTimeoutError) as caught:
            side.do(client[database].coll.find_one)
    assert isinstance(caught.value, AutoReconnect)
    assert [event.rule for event in telemetry.decisions.events] == [Rule.DEADLINE]


def test_without_a_deadline_connecting_has_its_own_timeout(
    gate: BlackHolePort, side: Side, database: str, instrument: Instrument
) -> None:
    instrument(max_retries=0)
    client = side.client(gate.uri, connectTimeoutMS=300, retryReads=False, **ALWAYS_CONNECTS)
    wait_for_server(side, client)
    with shut(gate), takes(0.3), pytest.raises(NetworkTimeout) as caught:
        side.do(client[database].coll.find_one)
    assert not isinstance(caught.value, OperationTimeoutError)


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
        timed_out = pytest.raises((TimeoutError, AutoReconnect), match="timed out")
        with takes(0.2), pymongo.timeout(0.2), timed_out:
            side.do(connect, silent.getsockname(), options)
