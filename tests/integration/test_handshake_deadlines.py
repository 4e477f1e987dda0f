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
from pymongo_resilience.events import RetryScheduled
from pymongo_resilience.strategies import RetryAction
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


class Answers:
    """A strategy that has the next handshake answered."""

    def __init__(self, handshakes: Handshakes) -> None:
        self._handshakes = handshakes

    def retry_after(self, operation: Any, failure: Any, /) -> RetryAction:
        self._handshakes.silent = None
        return RetryAction()


@pytest.mark.parametrize("silent", [HELLO, LOGIN])
def test_it_ends_with_the_selection_timeout_and_is_repeated_since_nothing_was_sent(
    silent: str, side: Side, proxy: ReplicaSet, database: str, handshakes: Handshakes,
    instrument: Instrument,
) -> None:  # fmt: skip
    """pymongo alone goes on until the deadline, so that nobody asks another server meanwhile."""
    telemetry = instrument(strategy=Answers(handshakes), timeout_ms=PLENTY_MS)
    client = side.client(proxy.uri, serverSelectionTimeoutMS=ITS_OWN, **USER)
    find_server(side, client)
    telemetry.clear()
    handshakes.silent = silent
    side.do(client[database].coll.update_many, {}, {"$set": {"changed": True}})
    (event,) = telemetry.decisions.events
    assert isinstance(event, RetryScheduled)
    (span,) = telemetry.operations()
    assert ITS_OWN / 1000 / 2 < (span.end_time - span.start_time) / 1e9 < PLENTY_MS / 1000 / 2


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
