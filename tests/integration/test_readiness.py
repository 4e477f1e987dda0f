"""``readiness(client)``: what a probe is told, from what the client knows already."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any

import pymongo
import pytest
from pymongo import ReadPreference
from pymongo.server_description import ServerDescription
from support.clients import SentCommands, Side
from support.fake_servers import Peer, is_silent
from support.telemetry import Instrument

from pymongo_resilience import ConfigurationError, readiness
from pymongo_resilience.client_status import Readiness
from pymongo_resilience.testbed import BlackHole, Election, Fail, Refuse, ReplicaSet, ShardedCluster

pytestmark = pytest.mark.oldest

HOST_UNREACHABLE = 6
LONG = 600_000
"""Milliseconds: longer than the test."""


@pytest.fixture(params=[False, True], ids=["plain", "instrumented"])
def instrumented(request: pytest.FixtureRequest, instrument: Instrument) -> bool:
    if request.param:
        instrument()
    return bool(request.param)


def ready(client: Any, **options: Any) -> tuple[bool, bool]:
    found = readiness(client, **options)
    return found.ready_to_write, found.ready_to_read


def connect(side: Side, client: Any, members: int = 3) -> None:
    side.do(client.admin.command, "ping")
    side.wait_for_members(client, members)
    side.wait_until(lambda: ready(client) == (True, True))


@pytest.mark.usefixtures("instrumented")
def test_a_healthy_client_is_ready_and_nothing_is_sent(
    side: Side, replica_set: ReplicaSet, sent: SentCommands
) -> None:
    client = side.client(replica_set.uri, event_listeners=[sent])
    connect(side, client)
    sent.started_events.clear()
    took, found = [], []
    for _ in range(100):
        began = time.perf_counter()
        found.append(readiness(client))
        took.append(time.perf_counter() - began)
    assert found[-1].why_not == ""
    assert ready(client, read_preference=ReadPreference.SECONDARY) == (True, True)
    assert found[0].since == pytest.approx(found[-1].since, abs=1)
    assert 0 <= time.time() - found[-1].since < 60
    assert sent.started_events == []
    assert min(took) < 0.005


@pytest.mark.usefixtures("instrumented")
def test_a_client_that_has_not_begun_says_what_to_do(side: Side) -> None:
    client = side.client("mongodb://db1,db2/", connect=False)
    found = readiness(client)
    assert (found.ready_to_write, found.ready_to_read) == (False, False)
    assert "aconnect()" in found.why_not


@pytest.mark.usefixtures("instrumented")
def test_an_election_does_not_take_a_client_out(side: Side, replica_set: ReplicaSet) -> None:
    client = side.client(replica_set.uri, read_preference=ReadPreference.PRIMARY_PREFERRED)
    connect(side, client)
    before = readiness(client).since
    replica_set.inject(Election(gap=2))
    side.wait_until(lambda: readiness(client).why_not)
    found = readiness(client)
    assert (found.ready_to_write, found.ready_to_read) == (True, True)
    assert found.why_not == "no writes: the replica set has no primary at the moment"
    assert found.since > before
    assert ready(client, grace_ms=0) == (False, True), "no grace period"
    side.wait_until(lambda: not readiness(client).why_not)
    assert readiness(client).since > found.since


def test_after_the_grace_period_it_is_not_ready_and_says_so_once(
    side: Side, replica_set: ReplicaSet, instrument: Instrument, caplog: pytest.LogCaptureFixture
) -> None:
    telemetry = instrument()
    caplog.set_level(logging.INFO, "pymongo_resilience")
    client = side.client(replica_set.uri)
    connect(side, client)
    replica_set.inject(Refuse(60))
    side.wait_until(lambda: ready(client, grace_ms=300) == (False, False))
    # The other members may be refused later than the one that was lost first.
    reason = "no writes and reads: nothing listens on that port (127.0.0.1"
    side.wait_until(lambda: readiness(client, grace_ms=300).why_not.startswith(reason))
    found = readiness(client, grace_ms=300)
    assert time.time() - found.since >= 0.3

    def gauge() -> dict[str, int]:
        return {
            attributes["pymongo_resilience.ready_to"]: point.value
            for attributes, point in telemetry.points("pymongo_resilience.ready")
        }

    assert gauge() == {"write": 0, "read": 0}
    replica_set.clear()
    side.wait_until(lambda: ready(client, grace_ms=300) == (True, True))
    assert gauge() == {"write": 1, "read": 1}
    lines = [each.getMessage().partition(":")[0] for each in caplog.records]
    shown = [each for each in lines if each.startswith("a client is")]
    assert shown == [
        *("a client is ready to write", "a client is ready to read"),
        *("a client is not ready to write", "a client is not ready to read"),
        *("a client is ready to write", "a client is ready to read"),
    ]


def test_between_two_calls_the_changes_are_noticed(
    side: Side, replica_set: ReplicaSet, instrument: Instrument
) -> None:
    """The grace period counts from the loss, not from the call that has noticed it."""
    instrument()
    client = side.client(replica_set.uri)
    connect(side, client)
    replica_set.inject(Refuse(60))
    side.wait_until(lambda: not client.topology_description.known_servers)
    lost = time.time()
    side.wait_until(lambda: time.time() - lost > 0.5)
    assert ready(client, grace_ms=400) == (False, False)
    assert readiness(client).since < lost + 0.3
    replica_set.clear()


@pytest.mark.usefixtures("instrumented")
def test_a_primary_that_hangs_is_noticed_by_its_late_answer(
    side: Side, replica_set: ReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pymongo_resilience_instrumentation.public_api.readiness.LATE", 0.2)
    client = side.client(replica_set.uri)
    connect(side, client)
    answered = time.time()
    replica_set.inject(BlackHole(60))
    took: list[float] = []

    def red() -> bool:
        began = time.perf_counter()
        found = ready(client, grace_ms=900)
        took.append(time.perf_counter() - began)
        return found == (False, False)

    side.wait_until(lambda: "has not answered a check" in readiness(client, grace_ms=LONG).why_not)
    assert readiness(client).since == pytest.approx(answered, abs=5)
    side.wait_until(red)
    assert min(took) < 0.005
    replica_set.clear()


def test_what_is_hopeless_has_no_grace(
    side: Side, replica_set: ReplicaSet, instrument: Instrument
) -> None:
    instrument()
    # Closing the client waits that long for a server.
    client = side.client(replica_set.uri, serverSelectionTimeoutMS=500)
    connect(side, client)
    # As after a certificate that has expired: each check finds the same.
    error = pymongo.errors.AutoReconnect("SSL handshake failed: certificate has expired")
    topology = client._topology

    def found() -> tuple[bool, bool]:
        for at in topology.description.server_descriptions():
            side.do(topology.on_change, ServerDescription(at, error=error))
        return ready(client, grace_ms=LONG)

    for monitor in [each._monitor for each in topology._servers.values()]:
        side.do(monitor.close)
    assert found() == (True, True), "one check proves nothing"
    began = time.monotonic()
    assert found() == (False, False)
    assert time.monotonic() - began < LONG / 1000 / 10
    assert "the server's TLS certificate has expired" in readiness(client).why_not


@pytest.mark.usefixtures("instrumented")
def test_a_wrong_set_name_is_red_before_the_grace_is_over(
    side: Side, replica_set: ReplicaSet
) -> None:
    uri = replica_set.uri.partition("?")[0]
    began = time.monotonic()
    client = side.client(uri, replicaSet="another", connect=True)
    if side.runner is not None:
        side.do(client.aconnect)
    side.wait_until(lambda: "no server belongs to the replica set" in readiness(client).why_not)
    assert ready(client) == (False, False)
    assert time.monotonic() - began < 10


@pytest.mark.usefixtures("instrumented")
def test_a_server_that_never_answers_is_never_ready(side: Side) -> None:
    with Peer(is_silent) as peer:
        client = side.client(peer.uri)
        if side.runner is not None:
            side.do(client.aconnect)
        found = readiness(client)
        assert (found.ready_to_write, found.ready_to_read) == (False, False)
        assert found.why_not.startswith("no writes and reads: ")


@pytest.mark.usefixtures("instrumented")
def test_a_client_that_is_connected_to_a_secondary_reads(
    side: Side, replica_set: ReplicaSet
) -> None:
    address = replica_set.members[1].host_and_port
    client = side.client(f"mongodb://{address}/?directConnection=true")
    side.do(client.admin.command, "ping")
    found = readiness(client)
    assert (found.ready_to_write, found.ready_to_read) == (False, True)
    assert "not the primary" in found.why_not


@pytest.mark.usefixtures("instrumented")
def test_routers_and_tags(side: Side, cluster: ShardedCluster, replica_set: ReplicaSet) -> None:
    client = side.client(cluster.uri)
    side.do(client.admin.command, "ping")
    assert ready(client) == (True, True)
    client = side.client(replica_set.uri)
    connect(side, client)
    nowhere = pymongo.read_preferences.Secondary(tag_sets=[{"region": "nowhere"}])
    found = readiness(client, nowhere)
    assert (found.ready_to_write, found.ready_to_read) == (True, False)
    assert found.why_not == (
        "no reads: servers are reachable, but none matches the read preference"
    )


def test_an_open_circuit_breaker_counts(
    side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    instrument(
        circuit_breaker="always", circuit_breaker_minimum_calls=1, circuit_breaker_open_s=60.0
    )
    client = side.client(proxy.uri)
    connect(side, client, 1)
    proxy.inject(Fail("update", times=100, code=HOST_UNREACHABLE))
    for _ in range(2):
        with contextlib.suppress(pymongo.errors.PyMongoError):
            side.do(client.test.coll.update_many, {}, {"$set": {"n": 1}})
    side.wait_until(lambda: "circuit breaker" in readiness(client).why_not)
    assert ready(client) == (True, True), "within the grace period"
    assert ready(client, grace_ms=0) == (False, False)
    proxy.clear()


@pytest.mark.usefixtures("instrumented")
def test_a_closed_client_is_not_ready(side: Side, proxy: ReplicaSet) -> None:
    client = side.client(proxy.uri)
    connect(side, client, 1)
    side.do(client.close)
    found = readiness(client)
    assert (found.ready_to_write, found.ready_to_read) == (False, False)
    assert found.why_not.endswith("after close")


def test_wrong_arguments(side: Side) -> None:
    client = side.client("mongodb://db1/", connect=False)
    with pytest.raises(TypeError, match="readiness"):
        readiness("mongodb://user:secret@db1/")
    with pytest.raises(TypeError, match="not a read preference"):
        readiness(client, "secondary")
    with pytest.raises(ConfigurationError, match="grace_ms"):
        readiness(client, grace_ms=-1)
    assert isinstance(readiness(client), Readiness)
