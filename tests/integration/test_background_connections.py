"""Connections that the pool makes ahead (minPoolSize): no operation's timeout is theirs."""

from __future__ import annotations

import time
from typing import Any

import pytest
from closed_connections import Closed
from closing import background_by_hand, run_background
from conftest import Instrument, Side
from handshakes import HELLO, LOGIN, USER, Handshakes, find_server
from pymongo_resilience_instrumentation.testbed import EmbeddedServer, ReplicaSet
from pymongo_resilience_instrumentation.testbed.gate import Gate
from waiting import PLENTY_MS

__all__ = ["background_by_hand"]
pytestmark = [pytest.mark.oldest, pytest.mark.usefixtures("background_by_hand")]
OWN = 400
"""Milliseconds."""


def seconds_in_background(side: Side, client: Any) -> float:
    started = time.monotonic()
    run_background(side, client)
    return time.monotonic() - started


@pytest.mark.parametrize("timeouts", [{}, {"timeoutMS": PLENTY_MS}, {"timeoutMS": 50}], ids=str)
def test_a_socket_is_made_within_the_connect_timeout(
    timeouts: dict[str, int], side: Side, server: EmbeddedServer, instrument: Instrument
) -> None:
    instrument()
    closed = Closed()
    with Gate(server.address) as gate:
        options: dict[str, Any] = {"minPoolSize": 1, "connectTimeoutMS": OWN, **timeouts}
        client = side.client(gate.uri, event_listeners=[closed], **options)
        find_server(side, client)
        gate.shut()
        took = seconds_in_background(side, client)
        gate.open()
    assert (closed.made, closed.reasons) == (1, ["error"])
    assert OWN / 1000 <= took < PLENTY_MS / 1000 / 4


@pytest.mark.parametrize("silent", [HELLO, LOGIN])
def test_without_a_timeout_a_handshake_has_that_of_the_socket(
    silent: str, side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    instrument()
    closed, handshakes = Closed(), Handshakes()
    proxy.inject(handshakes)
    options: dict[str, Any] = {"minPoolSize": 1, "socketTimeoutMS": OWN, **USER}
    client = side.client(proxy.uri, event_listeners=[closed], **options)
    find_server(side, client)
    handshakes.silent = silent
    took = seconds_in_background(side, client)
    handshakes.silent = None
    assert (closed.made, closed.reasons) == (1, ["error"])
    assert OWN / 1000 <= took < PLENTY_MS / 1000 / 4
