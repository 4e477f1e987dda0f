"""A command on its socket under a deadline: all reads of a reply together, writes, and what becomes
of the connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

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


@pytest.fixture
def timed_out(side: Side, instrument: Instrument) -> Callable[..., Any]:
    """``timed_out(uri, strike, call)``: the error of a call that no time is left for once its
    connection is struck, which is closed with it."""
    instrument()

    def expire(uri: str, strike: Callable[[], object], call: Callable[[Any], Any]) -> Any:
        closed = Closed()
        client = side.client(uri, event_listeners=[closed])
        wait_for_server(side, client)
        assert closed.reasons == []
        strike()
        with override(timeout_ms=SHORT), pytest.raises(OperationTimeoutError) as caught:
            side.do(call, client)
        assert "error" in closed.reasons
        assert SHORT / 1000 <= caught.value.elapsed_s < PLENTY_MS / 1000 / 4
        assert isinstance(caught.value, NetworkTimeout)
        return caught.value

    return expire


def test_the_timeout_is_that_of_all_reads_of_a_reply_together(
    trickle: Trickle, database: str, timed_out: Callable[..., Any]
) -> None:
    assert SHORT / 1000 > 10 * EVERY
    timed_out(trickle.uri, trickle.slow.set, lambda client: client[database].coll.find_one())
    trickle.slow.clear()


def test_a_write_to_a_socket_ends_with_the_deadline(
    trickle: Trickle, database: str, timed_out: Callable[..., Any]
) -> None:
    large = {"_id": LARGE}
    error = timed_out(
        trickle.uri, trickle.hears.clear, lambda c: c[database].coll.insert_one(large)
    )
    trickle.hears.set()
    assert error.stage is Stage.IN_FLIGHT


def test_a_connection_whose_reply_did_not_come_in_time_is_closed(
    proxy: ReplicaSet, database: str, timed_out: Callable[..., Any]
) -> None:
    silent = Silent("find")
    timed_out(proxy.uri, lambda: proxy.inject(silent), lambda c: c[database].coll.find_one())
