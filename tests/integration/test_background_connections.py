"""Connections that the pool makes ahead (minPoolSize): no operation's timeout is theirs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.clients import Side, wait_until
from support.fake_servers import BlackHolePort
from support.handshakes import HELLO, LOGIN, USER, Handshakes, find_server
from support.pool_connections import Closed
from support.telemetry import Instrument
from support.wait_helpers import PLENTY_MS

from pymongo_resilience.testbed import EmbeddedServer, ReplicaSet

pytestmark = pytest.mark.oldest
OWN = 400
"""Milliseconds."""
AHEAD: dict[str, Any] = {"minPoolSize": 1, "maxIdleTimeMS": 1}
"""Each run of the background task finds its connection too old, and makes another."""


@pytest.fixture(autouse=True)
def busy_background(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymongo.common.KILL_CURSOR_FREQUENCY", 0.05)


def seconds_until_one_failed(side: Side, closed: Closed) -> float:
    """From the making of the connection."""

    def failed() -> list[float]:
        return closed.failed_after

    waiting = (wait_until, failed)
    side.do(*waiting if side.runner is None else (asyncio.to_thread, *waiting))
    return closed.failed_after[0]


@pytest.mark.parametrize("timeouts", [{}, {"timeoutMS": PLENTY_MS}, {"timeoutMS": 50}], ids=str)
def test_a_socket_is_made_within_the_connect_timeout(
    timeouts: dict[str, int], side: Side, server: EmbeddedServer, instrument: Instrument
) -> None:
    instrument()
    closed = Closed()
    with BlackHolePort(server.address) as gate:
        options: dict[str, Any] = {"connectTimeoutMS": OWN, **AHEAD, **timeouts}
        # For one that slips in just before the gate is shut, and then waits for its hello.
        options["socketTimeoutMS"] = OWN
        client = side.client(gate.uri, event_listeners=[closed], **options)
        find_server(side, client)
        gate.shut()
        took = seconds_until_one_failed(side, closed)
        gate.open()
    assert OWN / 1000 <= took < PLENTY_MS / 1000 / 4


@pytest.mark.parametrize("silent", [HELLO, LOGIN])
def test_without_a_timeout_a_handshake_has_that_of_the_socket(
    silent: str, side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    instrument()
    closed, handshakes = Closed(), Handshakes()
    proxy.inject(handshakes)
    options: dict[str, Any] = {"socketTimeoutMS": OWN, **AHEAD, **USER}
    client = side.client(proxy.uri, event_listeners=[closed], **options)
    find_server(side, client)
    handshakes.silent = silent
    took = seconds_until_one_failed(side, closed)
    handshakes.silent = None
    assert OWN / 1000 <= took < PLENTY_MS / 1000 / 4


@pytest.mark.parametrize("source", ["client", "default"])
def test_a_handshake_slower_than_the_clients_timeout_fills_the_pool(
    source: str, side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    """As with plain pymongo: no operation waits for it."""
    instrument(timeout_ms=OWN // 4 if source == "default" else PLENTY_MS)
    closed, handshakes = Closed(), Handshakes()
    proxy.inject(handshakes)
    handshakes.slow_hello = OWN / 2 / 1000
    options: dict[str, Any] = {"minPoolSize": 1, **USER}
    if source == "client":
        options["timeoutMS"] = OWN // 4
    client = side.client(proxy.uri, event_listeners=[closed], **options)
    find_server(side, client)
    waiting = (wait_until, lambda: closed.ready)
    side.do(*waiting if side.runner is None else (asyncio.to_thread, *waiting))
    assert (closed.ready, closed.failed_after) == (1, [])
