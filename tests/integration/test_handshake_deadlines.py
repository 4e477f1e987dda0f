"""A connection that is made under a deadline: what its commands have of it, and who ends them.

Authentication is PLAIN, which is one command, and answered by the test.
"""

from __future__ import annotations

from typing import Any

import pymongo
import pytest
from pymongo.errors import AutoReconnect, NetworkTimeout
from support.clients import SentCommands, Side
from support.handshakes import HELLO, LOGIN, USER, Handshakes, find_server
from support.telemetry import Instrument
from support.transactions import LOW, DriversTime, drivers_time, limits
from support.wait_helpers import PLENTY_MS

from pymongo_resilience import OperationTimeoutError, override
from pymongo_resilience.errors import RetryReason
from pymongo_resilience.testbed import ReplicaSet

__all__ = ["drivers_time"]
pytestmark = pytest.mark.oldest

ITS_OWN = 1000
"""Milliseconds; of a timeout that ends a handshake."""


@pytest.fixture
def handshakes(proxy: ReplicaSet) -> Handshakes:
    made = Handshakes()
    proxy.inject(made)
    return made


def test_the_operations_limit_is_made_when_its_connection_is_there(
    side: Side, proxy: ReplicaSet, database: str, handshakes: Handshakes, instrument: Instrument,
    drivers_time: DriversTime,
) -> None:  # fmt: skip
    """A quarter of the time passes at each command of the handshake."""
    instrument()
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent], **USER)
    find_server(side, client)
    handshakes.commands.clear()
    handshakes.clock = drivers_time
    with override(timeout_ms=LOW):
        side.do(client[database].coll.find_one)
    handshakes.clock = None
    # Pinned: pymongo 4.17 to 4.20 give these no maxTimeMS, deadline or not.
    assert handshakes.commands == [(HELLO, None), (LOGIN, None)]
    (find,) = limits(sent, "find")
    assert find is not None
    assert LOW / 4 < find <= LOW / 2


@pytest.mark.parametrize("silent", [HELLO, LOGIN])
def test_a_handshake_ends_with_the_deadline(
    silent: str, side: Side, proxy: ReplicaSet, database: str, handshakes: Handshakes,
    instrument: Instrument,
) -> None:  # fmt: skip
    instrument()
    client = side.client(proxy.uri, **USER)
    find_server(side, client)
    handshakes.silent = silent
    with override(timeout_ms=ITS_OWN), pytest.raises(OperationTimeoutError) as caught:
        side.do(client[database].coll.find_one)
    handshakes.silent = None
    assert isinstance(caught.value, AutoReconnect)
    assert ITS_OWN / 1000 <= caught.value.elapsed_s < PLENTY_MS / 1000 / 2


LIMITS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bare": ({}, {}),
    "process": ({"timeout_ms": PLENTY_MS}, {}),
    "override": ({}, {"timeout_ms": PLENTY_MS}),
    "zero": ({}, {"timeout_ms": 0}),
}
"""The arguments of ``instrument()``, and of the ``override`` around the operation."""


@pytest.mark.parametrize("limit", LIMITS)
def test_the_selection_timeout_limits_no_handshake(
    limit: str, side: Side, proxy: ReplicaSet, database: str, handshakes: Handshakes,
    instrument: Instrument,
) -> None:  # fmt: skip
    """pymongo alone connects, however short it is."""
    process, block = LIMITS[limit]
    handshakes.slow_hello = 0.5

    def connects() -> None:
        client = side.client(proxy.uri, serverSelectionTimeoutMS=300, **USER)
        find_server(side, client)
        side.do(client[database].coll.insert_one, {})

    connects()
    telemetry = instrument(**process)
    with override(**block):
        connects()
    assert telemetry.decisions.events == []


@pytest.mark.parametrize("silent", [HELLO, LOGIN])
def test_a_handshake_that_the_deadline_ends_is_no_overload(
    silent: str, side: Side, proxy: ReplicaSet, database: str, handshakes: Handshakes,
    instrument: Instrument,
) -> None:  # fmt: skip
    """pymongo labels each connection that cannot be made so. No server rejected anything."""
    telemetry = instrument(timeout_ms=ITS_OWN)
    client = side.client(proxy.uri, **USER)
    find_server(side, client)
    handshakes.silent = silent
    with pytest.raises(OperationTimeoutError) as caught:
        side.do(client[database].coll.find_one)
    handshakes.silent = None
    assert not caught.value.has_error_label("SystemOverloadedError")
    assert {event.reason for event in telemetry.decisions.events} == {
        RetryReason.SOCKET_NOT_AVAILABLE
    }


@pytest.mark.parametrize("silent", [HELLO, LOGIN])
def test_without_a_deadline_the_sockets_own_timeout_ends_it(
    silent: str, side: Side, proxy: ReplicaSet, database: str, handshakes: Handshakes,
    instrument: Instrument,
) -> None:  # fmt: skip
    instrument(max_retries=0)
    options: dict[str, Any] = {"socketTimeoutMS": ITS_OWN, "retryReads": False}
    client = side.client(proxy.uri, **options, **USER)
    find_server(side, client)
    handshakes.silent = silent
    with pytest.raises(NetworkTimeout) as caught:
        side.do(client[database].coll.find_one)
    handshakes.silent = None
    assert type(caught.value) is pymongo.errors.NetworkTimeout
