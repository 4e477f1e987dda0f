"""A command that takes longer than ``socketTimeoutMS`` is sent as often as by plain pymongo.

The server goes on with each attempt that the client gives up. Under a configured timeout, retries
until the deadline would pile up on a server that is merely slow. A server that has frozen answers
no check either: there, further retries are what finds the next primary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pymongo import InsertOne
from pymongo.errors import NetworkTimeout, PyMongoError
from support.busy_pools import Silent
from support.child_programs import run
from support.clients import SentCommands, Side
from support.severable_path import INSIDE, can_sever
from support.small_batches import SmallBatches
from support.telemetry import Instrument
from support.wait_helpers import wait_for_server

from pymongo_resilience import OperationTimeoutError, retry_info
from pymongo_resilience.errors import Rule
from pymongo_resilience.testbed import ReplicaSet, SilentPrimary
from pymongo_resilience.testing import set_active

pytestmark = pytest.mark.each_setup
SHORT_MS = 250
"""``socketTimeoutMS``: many times as long as a check takes."""
CALLS: dict[str, Callable[[Any], Any]] = {
    "find": lambda coll: coll.find_one({}),
    "insert": lambda coll: coll.insert_one({}),
    "update": lambda coll: coll.update_one({}, {"$set": {"a": 1}}),
}


@pytest.mark.parametrize("monitoring", ["stream", "poll"])
@pytest.mark.parametrize("name", CALLS)
def test_it_is_sent_as_often_as_by_pymongo(
    name: str, monitoring: str, side: Side, proxy: ReplicaSet, database: str,
    instrument: Instrument,
) -> None:  # fmt: skip
    proxy.inject(Silent(name, times=99))

    def sent_by(client: Any, sent: SentCommands) -> int:
        wait_for_server(side, client)
        with pytest.raises(NetworkTimeout) as caught:
            side.do(CALLS[name], client[database].coll)
        assert not isinstance(caught.value, OperationTimeoutError)
        assert f"socketTimeoutMS: {SHORT_MS}.0ms" in str(caught.value)
        return len(sent.named(name))

    def fresh() -> tuple[Any, SentCommands]:
        sent = SentCommands()
        options = {"serverMonitoringMode": monitoring, "heartbeatFrequencyMS": 10_000}
        client = side.client(proxy.uri, event_listeners=[sent], socketTimeoutMS=SHORT_MS, **options)
        return client, sent

    with set_active(False):
        plain = sent_by(*fresh())
    assert plain == 2
    telemetry = instrument()
    assert sent_by(*fresh()) == plain
    assert telemetry.decisions.events[-1].rule is Rule.TIME_LIMIT


def test_the_error_names_the_limit(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    client = side.client(proxy.uri, socketTimeoutMS=SHORT_MS)
    wait_for_server(side, client)
    proxy.inject(Silent("find", times=99))
    with pytest.raises(NetworkTimeout) as caught:
        side.do(client[database].coll.find_one)
    assert "socketTimeoutMS ended it while the server answered" in str(caught.value)
    info = retry_info(caught.value)
    assert info is not None
    assert (info.rule, info.attempts) == (Rule.TIME_LIMIT, 2)


class SilentTo(Silent):
    """Does not answer the attempts of these numbers."""

    def __init__(self, command: str, *numbers: int) -> None:
        super().__init__(command)
        self.left, self._numbers = 0, numbers

    def on_request(self, request: Any, connection: Any) -> Any:
        if request.command_name != self._command:
            return None
        self.left += 1
        return super().on_request(request, connection) if self.left in self._numbers else None


def test_each_command_of_a_bulk_has_its_retry(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    requests = [InsertOne({"_id": number}) for number in range(3)]

    def bulk(name: str) -> None:
        client = side.client(proxy.uri, socketTimeoutMS=SHORT_MS)
        wait_for_server(side, client)
        side.do(client[database][name].bulk_write, requests)
        assert side.do(client[database][name].count_documents, {}) == len(requests)

    for name in ("plain", "ours"):
        proxy.clear()
        # The first attempt of each command, and the retry of none.
        proxy.inject(SmallBatches(1))
        proxy.inject(SilentTo("insert", 1, 3, 5))
        if name == "plain":
            with set_active(False):
                bulk(name)
        else:
            instrument()
            bulk(name)


@pytest.mark.parametrize("name", CALLS)
def test_a_frozen_primary_is_survived(
    name: str, side: Side, replica_set: ReplicaSet, database: str, instrument: Instrument
) -> None:
    def call() -> Any:
        client = side.client(replica_set.uri, socketTimeoutMS=SHORT_MS)
        wait_for_server(side, client)
        side.wait_for_members(client, 3)
        replica_set.inject(SilentPrimary(30, gap=1.5))
        return side.do(CALLS[name], client[database].coll)

    with set_active(False), pytest.raises(PyMongoError):
        call()
    replica_set.clear()
    instrument(timeout_ms=20_000)
    call()


@pytest.mark.skipif(
    not can_sever(), reason="needs unshare and ip, and leave to make network namespaces"
)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_dead_connections_to_a_server_that_lives(kind: str) -> None:
    """A firewall has forgotten the pool's connections: no reply comes, whatever the server does."""
    plain, _ = run("forgotten_pool", kind, "plain", prefix=INSIDE)
    assert plain["error"] == "NetworkTimeout"
    ours, _ = run("forgotten_pool", kind, "with a timeout", prefix=INSIDE)
    assert ours["error"] is None
