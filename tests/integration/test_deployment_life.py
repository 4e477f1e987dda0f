"""The life of a deployment: its ports, its end, what ``clear`` mends, and who may be struck."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymongo
import pytest
from support.clients import wait_until
from support.free_ports import consecutive_free_ports
from support.raw_client import RawClient, ask

from pymongo_resilience.testbed import (
    BlackHole,
    CutBefore,
    Election,
    EmbeddedServer,
    Latency,
    PoolClearingStorm,
    RateLimit,
    Refuse,
    ReplicaSet,
    Reset,
    Restart,
    RollingRestart,
    Scenario,
    ShardedCluster,
    SkewedClock,
    Slow,
    TestbedError,
)

HELLO = {"hello": 1}


def test_a_first_port_is_followed_by_the_others(server: EmbeddedServer) -> None:
    first = consecutive_free_ports(3)
    with ReplicaSet(server.address, port=first) as replica_set:
        assert [member.address for member in replica_set.members] == [
            ("127.0.0.1", port) for port in range(first, first + 3)
        ]
        assert ask(("127.0.0.1", first + 2), HELLO)["tags"] == {"member": "2"}


def test_a_port_that_is_taken_is_one_error_that_leaves_nothing_behind() -> None:
    with socket.create_server(("127.0.0.1", consecutive_free_ports(2) + 1)) as other:
        taken = other.getsockname()[1]
        before = open_files()
        deployment = ReplicaSet(members=2, port=taken - 1)
        with pytest.raises(TestbedError, match=rf"127\.0\.0\.1:{taken}: Address already in use"):
            deployment.start()
        assert open_files() == before
        with pytest.raises(TestbedError, match="is not running"):
            deployment.server_address  # noqa: B018 (a property that raises)


def open_files() -> list[str]:
    """What this process has open, without names that change by themselves."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with_name = str(each.readlink()) if each.is_symlink() else ""
        found.append(with_name.split(":")[0])
    return sorted(found)


LASTING: dict[str, Callable[[], Any]] = {
    "black hole": lambda: BlackHole(60),
    "refuse": lambda: Refuse(60),
    "restart": lambda: Restart(60, gap=60),
    "rolling restart": lambda: RollingRestart(60, pause=60, gap=60),
    "election": lambda: Election(60),
    "pool-clearing storm": lambda: PoolClearingStorm(10_000, every=0.01),
    "latency": lambda: Latency(60, jitter=1),
    "slow": lambda: Slow(60),
    "rate limit": lambda: RateLimit(0.001, burst=1),
    "skewed clock": lambda: SkewedClock(-86_400),
    "cut": lambda: CutBefore(times=10_000),
}


@pytest.mark.parametrize("name", LASTING)
def test_clear_mends_in_the_middle(replica_set: ReplicaSet, database: str, name: str) -> None:
    insert: dict[str, Any] = {"insert": "coll", "documents": [{}], "$db": database}
    with RawClient(replica_set.address) as held:
        fault = LASTING[name]()
        done = replica_set.inject(fault)
        with contextlib.suppress(OSError):
            for _ in range(2):  # the rate limit lets the first one pass
                held.send(HELLO if name == "skewed clock" else insert)
        wait_until(lambda: fault.injected)
        replica_set.clear()
        started = time.monotonic()
        done.result(5)
        with contextlib.suppress(ConnectionError):
            # Whatever becomes of it: nobody is left waiting.
            held.receive()
    assert replica_set.primary is not None
    assert ask(replica_set.primary.address, insert)["ok"] == 1
    for member in replica_set.members:
        hello = ask(member.address, HELLO)
        assert abs(hello["lastWrite"]["lastWriteDate"].timestamp() - time.time()) < 60
        assert [ask(member.address, {"ping": 1})["ok"] for _ in range(3)] == [1] * 3
    assert time.monotonic() - started < 5


def test_clear_ends_a_scenario(replica_set: ReplicaSet) -> None:
    played = replica_set.play(Scenario().after(0.05, Reset).after(60, Reset).after(60, Reset))
    wait_until(lambda: replica_set.injected()["Reset"] == 3)
    replica_set.clear()
    played.result(5)
    assert not asyncio.all_tasks(replica_set._loop)


@pytest.mark.parametrize("name", LASTING)
def test_stop_leaves_no_thread_no_socket_and_no_task(
    server: EmbeddedServer,
    control: pymongo.MongoClient[Any],
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    control.admin.command("ping")
    gc.collect()
    files, threads = open_files(), threading.active_count()
    with ReplicaSet(server.address) as replica_set:
        addresses = [member.address for member in replica_set.members]
        with RawClient(replica_set.address) as idle, RawClient(addresses[1]) as busy:
            assert idle.ask({"ping": 1})["ok"] == 1
            replica_set.play(Scenario().after(60, Reset))
            fault = LASTING[name]()
            replica_set.inject(fault)
            with contextlib.suppress(OSError):
                for _ in range(2):
                    busy.send(HELLO if name == "skewed clock" else {"ping": 1})
            wait_until(lambda: fault.injected)
            started = time.monotonic()
            replica_set.stop()
            assert time.monotonic() - started < 5
            assert not asyncio.all_tasks(replica_set._loop)
    # Fewer where other tests' clients are collected meanwhile.
    wait_until(lambda: open_files() <= files and threading.active_count() <= threads)
    for address in addresses:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=1)
    gc.collect()
    assert [each for each in caplog.records if each.name == "asyncio"] == []
    with pytest.raises(TestbedError, match="is not running"):
        replica_set.inject(Reset())


def test_a_stopped_deployment_can_be_started_again(server: EmbeddedServer) -> None:
    replica_set = ReplicaSet(server.address)
    for _ in range(2):
        with replica_set:
            replica_set.inject(Election(gap=0.01)).result(5)
            assert replica_set.primary is replica_set.members[1]
            with pytest.raises(TestbedError, match="is running already"):
                replica_set.start()
    replica_set.stop()


@pytest.mark.parametrize("on", ["primry", "", 3, -1, True, 1.0, None])
def test_a_target_that_is_not_there_is_one_error(replica_set: ReplicaSet, on: Any) -> None:
    with pytest.raises(ValueError, match=f"^on is {on!r}, but must be .* a member: 0 to 2$"):
        replica_set.inject(Reset(), on=on)
    assert replica_set.injected() == {}


@pytest.mark.parametrize("fault", [Election(), SkewedClock(1)])
def test_a_fault_that_needs_replication_says_so(cluster: ShardedCluster, fault: Any) -> None:
    kind = type(fault).__name__
    with pytest.raises(ValueError, match=rf"^{kind} needs a ReplicaSet.* a Sharded"):
        cluster.inject(fault)
    cluster.inject(Restart(0.01)).result(5)
