"""A command on its socket under a deadline: all reads of a reply together, writes, and what becomes
of the connection."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pymongo.errors import NetworkTimeout
from support.busy_pools import Silent
from support.clients import Side
from support.pool_connections import Closed
from support.slow_sockets import EVERY, Trickle, trickling
from support.telemetry import Instrument
from support.wait_helpers import PLENTY_MS, wait_for_server

from pymongo_resilience import OperationTimeoutError, override
from pymongo_resilience.errors import Stage
from pymongo_resilience.testbed import EmbeddedServer, ReplicaSet

pytestmark = pytest.mark.oldest
SHORT = 300
"""Milliseconds; many times EVERY, and less than a reply takes at that pace."""
LARGE = "x" * 12_000_000
"""More than the buffers of a connection hold."""


@pytest.fixture
def trickle(server: EmbeddedServer) -> Iterator[Trickle]:
    with trickling(server.address) as running:
        yield running


def test_the_timeout_is_that_of_all_reads_of_a_reply_together(
    trickle: Trickle, side: Side, database: str, instrument: Instrument
) -> None:
    instrument()
    closed = Closed()
    client = side.client(trickle.uri, event_listeners=[closed])
    wait_for_server(side, client)
    trickle.slow.set()
    with override(timeout_ms=SHORT), pytest.raises(OperationTimeoutError) as caught:
        side.do(client[database].coll.find_one)
    trickle.slow.clear()
    assert SHORT / 1000 > 10 * EVERY
    assert SHORT / 1000 <= caught.value.elapsed_s < PLENTY_MS / 1000 / 4
    assert isinstance(caught.value, NetworkTimeout)
    assert "error" in closed.reasons


def test_a_write_to_a_socket_ends_with_the_deadline(
    trickle: Trickle, side: Side, database: str, instrument: Instrument
) -> None:
    instrument()
    closed = Closed()
    client = side.client(trickle.uri, event_listeners=[closed])
    wait_for_server(side, client)
    trickle.hears.clear()
    with override(timeout_ms=SHORT), pytest.raises(OperationTimeoutError) as caught:
        side.do(client[database].coll.insert_one, {"_id": LARGE})
    trickle.hears.set()
    assert SHORT / 1000 <= caught.value.elapsed_s < PLENTY_MS / 1000 / 4
    assert isinstance(caught.value, NetworkTimeout)
    assert caught.value.stage is Stage.IN_FLIGHT
    assert "error" in closed.reasons


def test_a_connection_whose_reply_did_not_come_in_time_is_closed(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    closed = Closed()
    client = side.client(proxy.uri, event_listeners=[closed])
    wait_for_server(side, client)
    assert closed.reasons == []
    proxy.inject(Silent("find"))
    with override(timeout_ms=SHORT), pytest.raises(OperationTimeoutError):
        side.do(client[database].coll.find_one)
    assert "error" in closed.reasons
