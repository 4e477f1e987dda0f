"""Faults of the network: refused, reset, swallowed, delayed; on real sockets."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.monitoring import PoolClearedEvent
from support.clients import Side
from support.interruption import Journal
from support.raw_client import RawClient, ask

from pymongo_resilience.testbed import (
    BlackHole,
    CutAtHandshake,
    Latency,
    PoolClearingStorm,
    Refuse,
    ReplicaSet,
    Reset,
)

Document = dict[str, Any]
HELLO: Document = {"hello": 1}
PING: Document = {"ping": 1}
IDLE_MS = 50


@pytest.fixture
def insert(database: str) -> Document:
    return {"insert": "coll", "documents": [{}], "$db": database}


@pytest.fixture
def count(control: MongoClient[Any], database: str) -> Any:
    return lambda: control[database].coll.count_documents({})


def test_refuse_refuses_for_its_time_and_then_no_more(replica_set: ReplicaSet) -> None:
    fault = Refuse(1.5)
    with RawClient(replica_set.address) as open_before, RawClient(replica_set.address) as other:
        assert open_before.ask(PING)["ok"] == other.ask(HELLO)["ok"] == 1
        started = time.monotonic()
        done = replica_set.inject(fault, on=0)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(replica_set.address, timeout=1)
        for each in (open_before, other):
            with pytest.raises(ConnectionResetError):
                each.receive()
    assert ask(replica_set.members[1].address, PING)["ok"] == 1
    done.result(5)
    assert time.monotonic() - started >= 1.5
    assert ask(replica_set.address, PING)["ok"] == 1
    # Out of reach for a moment is not out of office.
    assert replica_set.primary is replica_set.members[0]
    assert fault.injected == 1


def test_reset_resets_once_whatever_is_under_way(replica_set: ReplicaSet) -> None:
    clients = [RawClient(member.address) for member in replica_set.members for _ in range(2)]
    try:
        for each in clients:
            assert each.ask(PING)["ok"] == 1
        fault = Reset()
        replica_set.inject(fault).result(1)
        for each in clients:
            with pytest.raises(ConnectionResetError):
                each.receive()
    finally:
        for each in clients:
            each.socket.close()
    assert fault.injected == 3
    assert [ask(member.address, PING)["ok"] for member in replica_set.members] == [1, 1, 1]


def test_a_storm_clears_the_pool_each_time(side: Side, replica_set: ReplicaSet) -> None:
    journal = Journal()
    client = side.client(replica_set.uri, event_listeners=[journal], serverMonitoringMode="auto")
    side.do(client.admin.command, "ping")
    fault = PoolClearingStorm(times=3, every=1.0)
    started = time.monotonic()
    done = replica_set.inject(fault, on="primary")
    side.wait_until(done.done)
    assert time.monotonic() - started >= 2 * 1.0

    def cleared() -> list[Any]:
        return [each.address for each in journal.events if isinstance(each, PoolClearedEvent)]

    side.wait_until(lambda: len(cleared()) == 3)
    assert cleared() == [replica_set.address] * 3
    assert fault.injected == 3
    side.do(client.admin.command, "ping")
    side.do(client.close)


def test_a_black_hole_swallows_and_executes_nothing(
    replica_set: ReplicaSet, insert: Document, count: Any
) -> None:
    fault = BlackHole(60)
    with RawClient(replica_set.address) as busy, RawClient(replica_set.address) as monitor:
        assert busy.ask(PING)["ok"] == 1
        replica_set.inject(fault, on=0)
        busy.send(insert)
        monitor.send(HELLO)
        with RawClient(replica_set.address) as late:
            late.send(PING)
            late.socket.settimeout(0.1)
            with pytest.raises(TimeoutError):
                late.receive()
            late.socket.settimeout(5)
            replica_set.clear()
            for each in (busy, monitor, late):
                with pytest.raises(ConnectionError):
                    each.receive()
    assert (fault.injected, count()) == (3, 0)
    assert ask(replica_set.address, insert)["ok"] == 1
    assert (fault.injected, count()) == (3, 1)


def test_latency_delays_hellos_and_commands_of_one_member(replica_set: ReplicaSet) -> None:
    fault = Latency(0.3, jitter=0.03, seed=1)
    replica_set.inject(fault, on=0)
    with RawClient(replica_set.address) as client:
        for command in (HELLO, PING) * 2:
            started = time.monotonic()
            assert client.ask(command)["ok"] == 1
            assert 0.3 <= time.monotonic() - started < 5
    assert fault.injected == 4
    with RawClient(replica_set.members[1].address) as client:
        fastest = min(_duration(client, PING) for _ in range(5))
    assert fastest < 0.3
    replica_set.clear()
    with RawClient(replica_set.address) as client:
        assert min(_duration(client, PING) for _ in range(5)) < 0.3


def _duration(client: RawClient, command: Document) -> float:
    started = time.monotonic()
    assert client.ask(command)["ok"] == 1
    return time.monotonic() - started


@pytest.mark.parametrize("times", [1, 2])
def test_a_cut_handshake_is_the_applications(
    side: Side, proxy: ReplicaSet, database: str, count: Any, times: int
) -> None:
    client = side.client(proxy.uri, maxIdleTimeMS=IDLE_MS)
    side.do(client[database].coll.insert_one, {})
    time.sleep(2 * IDLE_MS / 1000)  # the pool opens a new connection for the next operation
    fault = CutAtHandshake(times)
    proxy.inject(fault)
    side.do(client[database].coll.insert_one, {})
    assert (fault.injected, count()) == (times, 2)


def test_a_handshake_is_not_cut_where_no_monitor_is_connected(proxy: ReplicaSet) -> None:
    fault = CutAtHandshake()
    proxy.inject(fault)
    with RawClient(proxy.address) as monitor:
        assert monitor.ask(HELLO)["ok"] == 1
        with pytest.raises(ConnectionError):
            ask(proxy.address, HELLO)
        assert ask(proxy.address, HELLO)["ok"] == 1
    assert fault.injected == 1
