"""Every supported read against every failure of the Retryable Reads text: repeated, and right.

Without a timeout there is one retry, so each failure that is repeated is repeated once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo_resilience_instrumentation.tools.testbed.fault import Answer, Cut
from support.busy_pools import Silent, Waiting, the_only_connection_taken
from support.clients import Side, wait_until
from support.supported_reads import READS, Read, fill, fill_files
from support.telemetry import Instrument, Telemetry
from support.wait_helpers import wait_for_server

from pymongo_resilience.errors import RetryReason
from pymongo_resilience.events import RetryScheduled
from pymongo_resilience.testbed import (
    CutAfter,
    CutAtHandshake,
    CutBefore,
    EmbeddedServer,
    Fail,
    Interception,
    Refuse,
    ReplicaSet,
)

CODES = (6, 7, 89, 91, 134, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436)
SHUTDOWN, NOT_PRIMARY = 91, 10107
IDLE_MS = 1


@pytest.fixture(autouse=True)
def quick_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the failures make a client look at its server again before it can go on."""
    monkeypatch.setattr("pymongo.common.MIN_HEARTBEAT_INTERVAL", 0.001)


class Only(Interception):
    """Another fault, for the commands of one collection."""

    def __init__(self, fault: Interception, collection: str | None) -> None:
        super().__init__()
        self.fault, self.collection = fault, collection

    @property
    def is_over(self) -> bool:
        return self.fault.is_over

    def on_request(self, request: Any, connection: Any) -> Any:
        if self.collection not in (None, next(iter(request.body.values()))):
            return None
        return self.fault.on_request(request, connection)


class RefusedAtHandshake(CutAtHandshake):
    """Answers the first hello of a connection of the pool with an error."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code

    def on_request(self, request: Any, connection: Any) -> Any:
        if not isinstance(super().on_request(request, connection), Cut):
            return None
        return Answer({"ok": 0.0, "errmsg": "not now", "code": self.code})


@pytest.fixture
def filled(control: Any, database: str) -> str:
    fill(control, database)
    fill_files(control, database)
    return database


def retried(telemetry: Telemetry) -> list[RetryReason]:
    """Why each retry was made; fails if one was declined."""
    events = telemetry.decisions.events
    assert all(isinstance(event, RetryScheduled) for event in events), events
    return [event.reason for event in events]


Made = Callable[[Read], Interception]
NETWORK = {RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT}
# pymongo puts the labels of overload on what ends a connection in its handshake.
NO_CONNECTION = {RetryReason.SOCKET_NOT_AVAILABLE, RetryReason.OVERLOADED}
STATE = {RetryReason.NOT_PRIMARY}
CODED = {RetryReason.NOT_PRIMARY, RetryReason.TEMPORARILY_UNAVAILABLE}


def _answers(code: int) -> Made:
    return lambda read: Only(Fail(read.command, code=code), read.collection)


FAILURES: dict[str, tuple[Made, set[RetryReason]]] = {
    **{f"code {code}": (_answers(code), CODED) for code in CODES},
    "cut before": (lambda read: Only(CutBefore(read.command), read.collection), NETWORK),
    "reply lost": (lambda read: Only(CutAfter(read.command), read.collection), NETWORK),
    "cut at the handshake": (lambda read: CutAtHandshake(), NO_CONNECTION),
    "shutdown at the handshake": (lambda read: RefusedAtHandshake(SHUTDOWN), STATE),
    "not primary at the handshake": (lambda read: RefusedAtHandshake(NOT_PRIMARY), STATE),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_every_failure(
    read: Read, side: Side, proxy: ReplicaSet, filled: str, instrument: Instrument
) -> None:
    telemetry = instrument(base_backoff_ms=1, retry_budget="off")
    db = side.client(proxy.uri, maxIdleTimeMS=IDLE_MS)[filled]
    side.do(db.command, "ping")
    for name, (fault, reasons) in FAILURES.items():
        if "handshake" in name:
            # The pool's connection is too old by then, and the read makes a new one.
            time.sleep(2 * IDLE_MS / 1000)
        proxy.inject(fault(read))
        assert read.call(side, db) == read.expected, name
        (reason,) = retried(telemetry)
        assert reason in reasons, name
        telemetry.clear()


@pytest.mark.parametrize("name", ["find", "Collection.watch"])
def test_a_read_that_is_not_answered_in_time(
    name: str, side: Side, proxy: ReplicaSet, filled: str, instrument: Instrument
) -> None:
    """A socket timeout; under a deadline the driver sets ``socketTimeoutMS`` aside."""
    telemetry = instrument()
    read = READS[name]
    client = side.client(proxy.uri, socketTimeoutMS=1000)
    wait_for_server(side, client)
    db = client[filled]
    proxy.inject(Silent(read.command))
    assert read.call(side, db) == read.expected
    assert retried(telemetry) == [RetryReason.NO_REPLY]


@pytest.mark.parametrize("name", ["find", "MongoClient.watch"])
def test_a_pool_that_is_cleared_while_the_read_waits_for_a_connection(
    name: str, side: Side, proxy: ReplicaSet, filled: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    read, waiting = READS[name], Waiting()
    client = side.client(proxy.uri, maxPoolSize=1, event_listeners=[waiting])
    with the_only_connection_taken(side, client, proxy):
        telemetry.clear()
        waiting.asked = 0

        def cut() -> None:
            wait_until(lambda: waiting.asked)
            # The monitor cannot make the pool ready again before the waiting read has noticed.
            proxy.inject(Refuse(1.0))

        cutting = threading.Thread(target=cut)
        cutting.start()
        result = read.call(side, client[filled])
        cutting.join()
    assert result == read.expected
    events = [event for event in telemetry.decisions.events if event.operation != "runCommand"]
    assert [(type(event), event.reason) for event in events] == [
        (RetryScheduled, RetryReason.SOCKET_NOT_AVAILABLE)
    ]


USER = {"username": "root", "password": "only-for-the-tests"}


@pytest.fixture(scope="module")
def locked() -> Iterator[EmbeddedServer]:
    """A server that asks for a user."""
    with EmbeddedServer(user=USER["username"], password=USER["password"]) as running:
        with MongoClient[Any](running.uri) as client:
            fill(client, "locked")
        yield running


AUTHENTICATION: dict[str, Callable[[], Interception]] = {
    "cut": lambda: CutBefore("saslContinue"),
    "shutdown": lambda: Fail("saslContinue", code=SHUTDOWN),
    "not primary": lambda: Fail("saslContinue", code=NOT_PRIMARY),
    "host unreachable": lambda: Fail("saslContinue", code=6),
}


@pytest.mark.parametrize("failure", AUTHENTICATION)
def test_an_authentication_that_fails_for_a_passing_reason(
    failure: str, side: Side, locked: EmbeddedServer, instrument: Instrument
) -> None:
    telemetry = instrument(base_backoff_ms=1)
    read = READS["find"]
    with ReplicaSet(locked.address, members=1) as proxy:
        client = side.client(proxy.uri, **USER)
        fault = AUTHENTICATION[failure]()
        proxy.inject(fault)
        assert read.call(side, client["locked"]) == read.expected
        side.do(client.close)
    assert fault.injected == 1
    assert len(retried(telemetry)) == 1
