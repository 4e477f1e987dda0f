"""Monitors that are woken: a check that is cancelled ends at once, and a lost server is checked
again soon.

The driver looks twice a second whether a check was cancelled or asked for. Here it would look once
a minute, so a test that waits for it fails.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bson
import pymongo
import pytest
import trustme
import wrapt
from pymongo.monitoring import ServerHeartbeatListener
from pymongo_resilience_instrumentation import driver
from support.child_programs import run
from support.clients import Side, wait_until
from support.fake_servers import BlackHolePort, Peer, with_tls
from support.free_ports import consecutive_free_ports
from support.telemetry import Instrument

import pymongo_resilience
from pymongo_resilience.testbed import (
    CutAfter,
    EmbeddedServer,
    Fail,
    ReplicaSet,
    Restart,
    ShardedCluster,
)

pytestmark = [pytest.mark.each_setup, pytest.mark.oldest]
RETRYABLE = ["RetryableWriteError"]
NEVER = 60.0
"""Seconds after which the driver itself would notice."""
STREAMING = {"serverMonitoringMode": "stream", "heartbeatFrequencyMS": 60_000}


@pytest.fixture(autouse=True)
def slow_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymongo.network_layer._POLL_TIMEOUT", NEVER)
    monkeypatch.setattr("pymongo.common.MIN_HEARTBEAT_INTERVAL", NEVER)


class Heartbeats(ServerHeartbeatListener):
    def __init__(self) -> None:
        self.begun: list[bool] = []
        """Whether it waits for news, of each that was begun."""
        self.begun_at: list[float] = []
        self.failures: list[str] = []

    def started(self, event: Any) -> None:
        self.begun.append(event.awaited)
        self.begun_at.append(time.monotonic())

    def succeeded(self, event: Any) -> None: ...

    def failed(self, event: Any) -> None:
        self.failures.append(type(event.reply).__name__)


def made(side: Side, uri: str, **options: Any) -> tuple[Any, Heartbeats]:
    """A client whose monitor waits for news."""
    beats = Heartbeats()
    client = side.do(side.client, uri, event_listeners=[beats], **STREAMING, **options)
    side.do(client.admin.command, "ping")
    side.wait_until(lambda: any(beats.begun))
    side.wait_until(lambda: all(reads(each) for each in monitors(client)))
    return client, beats


def monitors(client: Any) -> list[Any]:
    return [server._monitor for server in client._topology._servers.values()]


def reads(monitor: Any) -> bool:
    return "_pymongo_resilience_read" in vars(monitor)


def ended(monitor: Any) -> bool:
    executor = monitor._executor
    if hasattr(executor, "_task"):
        return bool(executor._task.done())
    try:
        return not executor._thread.is_alive()
    except ReferenceError:
        return True


def test_after_a_cut_the_operation_goes_on_at_once(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    client, beats = made(side, proxy.uri)
    closed = len(beats.begun)
    for number in range(3):
        proxy.inject(CutAfter("insert"))
        side.do(client[database].coll.insert_one, {"_id": number})
        side.wait_until(lambda: beats.begun[-1])
    assert side.do(client[database].coll.count_documents, {}) == 3
    assert len(beats.begun) - closed == 3 * 2, "a new connection's hello, and one that awaits news"
    assert beats.failures == ["_OperationCancelled"] * 3, "as the driver's own"


def test_a_cut_clears_the_pool_once(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    client, _ = made(side, proxy.uri)
    (server,) = client._topology._servers.values()
    generation = server.pool.gen.get_overall()
    proxy.inject(CutAfter("insert"))
    side.do(client[database].coll.insert_one, {})
    assert server.pool.gen.get_overall() == generation + 1


ELSEWHERE = {"topologyVersion": {"processId": bson.ObjectId(), "counter": bson.Int64(0)}}
"""As of a shard whose error a router relays: by this, the error is not older than what is known."""
REPLIES: dict[str, Callable[[], Any]] = {
    "not primary": lambda: Fail("insert", code=10107, labels=RETRYABLE, more=ELSEWHERE),
    "recovering": lambda: Fail("insert", code=11602, labels=RETRYABLE, more=ELSEWHERE),
}


@pytest.mark.parametrize("name", REPLIES)
def test_a_server_that_a_reply_made_unknown_is_checked_at_once(
    name: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """pymongo checks it when the awaited hello returns, here after a minute."""
    instrument()
    client, beats = made(side, proxy.uri)
    for number in range(3):
        proxy.inject(REPLIES[name]())
        side.do(client[database].coll.insert_one, {"_id": number})
        side.wait_until(lambda: beats.begun[-1])
    assert side.do(client[database].coll.count_documents, {}) == 3
    assert "_OperationCancelled" in beats.failures


def test_a_router_that_relays_not_primary_serves_at_once(
    side: Side, cluster: ShardedCluster, database: str, instrument: Instrument
) -> None:
    instrument()
    client, _ = made(side, f"mongodb://{cluster.members[0].host_and_port}/")
    cluster.inject(Fail("find", code=11602, more=ELSEWHERE))
    assert side.do(client[database].coll.find_one) is None
    assert side.do(client[database].coll.find_one) is None


def test_while_replies_go_on_the_operation_goes_on_without_a_timeout(
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """pymongo would wait for ten seconds before its one retry: so long they may go on."""
    monkeypatch.setattr("pymongo.common.MIN_HEARTBEAT_INTERVAL", 0.02)
    instrument()
    client, _ = made(side, proxy.uri)
    proxy.inject(Fail("find", code=11602, more=ELSEWHERE, times=6))
    assert side.do(client[database].coll.find_one) is None


def wrappers_of(name: str) -> set[int]:
    """How many wrappers each class has around the method: another feature may need one as well."""
    owners = {
        *driver.clients.classes("topology", "Topology"),
        *driver.clients.classes("monitor", "Monitor"),
    }
    found = set()
    for cls in driver.clients.defining(name, *owners):
        method, count = vars(cls)[name], 0
        while isinstance(method, wrapt.FunctionWrapper):
            method, count = method.__wrapped__, count + 1
        found.add(count)
    return found


@pytest.mark.parametrize(
    ("disabled", "name"),
    [
        ("woken_checks", driver.monitors.CANCEL),
        ("woken_checks", driver.monitors.REQUEST),
        ("quick_checks", driver.monitors.CHANGE),
    ],
)
def test_switched_off_nothing_is_wrapped(instrument: Instrument, disabled: str, name: str) -> None:
    instrument(disabled_recovery=("interruptions", "rejections"))
    (others_off,) = wrappers_of(name)
    pymongo_resilience.uninstrument()
    instrument(disabled_recovery=(disabled, "interruptions", "rejections"))
    (without,) = wrappers_of(name)
    pymongo_resilience.uninstrument()
    instrument()
    (everything,) = wrappers_of(name)
    assert everything >= others_off > without


@pytest.mark.parametrize(("timeout_ms", "wrapped"), [(None, False), (20_000, True)])
def test_one_retry_as_mongodb_specifies_does_not_come_sooner_than_pymongos(
    timeout_ms: int | None, wrapped: bool, instrument: Instrument
) -> None:
    instrument(
        config_strategy="mongodb", timeout_ms=timeout_ms, disabled_recovery=("interruptions",)
    )
    for name in (driver.monitors.CANCEL, driver.monitors.REQUEST):
        assert wrappers_of(name) == {int(wrapped)}


def test_monitors_end_with_their_client(
    side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    instrument()
    client, _ = made(side, proxy.uri)
    found = monitors(client)
    side.do(client.close)
    side.wait_until(lambda: all(ended(each) for each in found))
    for each in found:  # a second time, of what is closed
        each.cancel_check()
        each.request_check()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    made = trustme.CA()
    file: Path = tmp_path_factory.mktemp("tls") / "authority.pem"
    made.cert_pem.write_to_path(str(file))
    return SimpleNamespace(certificates=made, file=str(file))


@pytest.fixture
def encrypted(proxy: ReplicaSet, authority: SimpleNamespace) -> Iterator[Peer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.certificates.issue_cert("127.0.0.1").configure_cert(context)
    address = proxy.members[0].address
    with Peer(with_tls(address, context)) as peer:
        yield peer


def test_a_check_over_tls_is_woken_as_well(
    side: Side,
    proxy: ReplicaSet,
    encrypted: Peer,
    authority: SimpleNamespace,
    database: str,
    instrument: Instrument,
) -> None:
    instrument()
    client, beats = made(side, encrypted.uri, tls=True, tlsCAFile=authority.file)
    for number in range(2):
        proxy.inject(CutAfter("insert"))
        side.do(client[database].coll.insert_one, {"_id": number})
        side.wait_until(lambda: beats.begun[-1])
    assert beats.failures == ["_OperationCancelled"] * 2
    found = monitors(client)
    side.do(client.close)
    side.wait_until(lambda: all(ended(each) for each in found))


def test_pyopenssls_sockets_are_woken_by_their_own_method() -> None:
    ends: list[int] = []
    interface = SimpleNamespace(conn=SimpleNamespace(sock_shutdown=ends.append))
    driver.connections.shut_down(SimpleNamespace(conn=interface))
    assert ends == [socket.SHUT_RDWR]


def test_a_monitor_that_connects_goes_on(
    side: Side, server: EmbeddedServer, database: str, instrument: Instrument
) -> None:
    instrument()
    with BlackHolePort(server.address) as port:
        port.shut()
        client = side.do(side.client, port.uri, **STREAMING)
        if side.runner is not None:
            side.do(client.aconnect)
        else:
            client._connect()
        side.wait_until(lambda: monitors(client))
        (monitor,) = monitors(client)
        monitor.cancel_check()
        port.open()
        side.do(client[database].coll.insert_one, {})
        port.shut()
        side.do(client.close)
    side.wait_until(lambda: ended(monitor))


def test_a_fork_leaves_the_parents_connections_alone(server: EmbeddedServer) -> None:
    with ReplicaSet(server.address, members=1) as replica_set:
        answer, _ = run("fork_with_waiting_monitors", replica_set.uri)
    assert answer == {"child": "ok", "failed heartbeats": 0, "closed connections": 0, "found": True}


def test_a_server_that_comes_back_is_found_long_before_the_driver_looks(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    client, _ = made(side, proxy.uri)
    proxy.inject(Restart(0.3))
    side.do(client[database].coll.insert_one, {"_id": 1})
    assert side.do(client[database].coll.find_one) == {"_id": 1}


def test_a_server_that_was_never_reached_is_checked_as_the_driver_does(
    side: Side, instrument: Instrument, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pymongo.common.MIN_HEARTBEAT_INTERVAL", 0.2)
    instrument()
    beats = Heartbeats()
    client = side.do(
        side.client,
        f"mongodb://127.0.0.1:{consecutive_free_ports(1)}/",
        event_listeners=[beats],
        serverSelectionTimeoutMS=500,
    )

    def is_checked() -> bool:
        with pytest.raises(pymongo.errors.ServerSelectionTimeoutError):
            side.do(client.admin.command, "ping")
        return len(beats.failures) >= 3

    wait_until(is_checked)
    assert all(later - earlier > 0.19 for earlier, later in pairwise(beats.begun_at))


def test_a_lost_servers_monitor_looks_as_the_driver_does_once_the_library_is_off(
    side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    instrument()
    client, _ = made(side, proxy.uri)
    (executor,) = [each._executor for each in monitors(client)]
    proxy.inject(Restart(1))
    side.wait_until(lambda: executor._min_interval < 1)
    pymongo_resilience.uninstrument()
    found, executor._min_interval = executor._min_interval, 0.1  # close() waits for it
    assert found == NEVER
