"""What pools, monitors and retry budgets are measured by: points compared whole."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymongo
import pytest
from opentelemetry.sdk.metrics.export import HistogramDataPoint
from pymongo.errors import OperationFailure, WaitQueueTimeoutError
from support.busy_pools import the_only_connection_taken
from support.clients import POLLING, Side, wait_until
from support.pool_connections import Closed
from support.telemetry import Instrument, Telemetry

from pymongo_resilience.testbed import Overload, Refuse, ReplicaSet

CONNECTION = "db.client.connection."
POOL = CONNECTION + "pool.name"
SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)


def shown(telemetry: Telemetry, *metrics: str) -> dict[str, Any]:
    """Attributes and value of each metric's points; of a histogram, how much it has counted."""
    found: dict[str, Any] = {}
    for metric in metrics:
        found[metric] = []
        for attributes, point in telemetry.points(metric):
            value = getattr(point, "value", None)
            if isinstance(point, HistogramDataPoint):
                assert point.explicit_bounds == SECONDS
                assert 0 <= point.min <= point.max < 10
                value = point.count
            found[metric].append((attributes, value))
    return found


def address_of(proxy: ReplicaSet) -> dict[str, Any]:
    host, port = proxy.members[0].address
    return {"server.address": host, "server.port": port}


def pool_of(proxy: ReplicaSet, number: int = 1) -> dict[str, str]:
    return {POOL: "{}:{}#{}".format(*proxy.members[0].address, number)}


@pytest.fixture(autouse=True)
def _no_client_is_left_to_be_collected() -> None:
    gc.collect()


@pytest.mark.parametrize(("least", "most"), [(0, 0), (0, 7), (1, 9)])
def test_a_pools_connections_limits_and_times(
    least: int, most: int, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(metrics="all")
    client = side.do(side.client, proxy.uri, maxPoolSize=most, minPoolSize=least)
    for _ in range(3):
        side.do(client[database].coll.find_one)
    pool = pool_of(proxy)
    of_a_pool = {
        "count": [
            (pool | {CONNECTION + "state": state}, n) for state, n in (("idle", 1), ("used", 0))
        ],
        "pending_requests": [(pool, 0)],
        "max": [(pool, most)] if most else [],  # 0 is no limit
        "idle.max": [(pool, most)] if most else [],
        "idle.min": [(pool, least)],
        "create_time": [(pool, 1)],
        "wait_time": [(pool, 3)],
        "use_time": [(pool, 3)],
        "timeouts": [],
    }
    expected = {CONNECTION + name: points for name, points in of_a_pool.items()}
    assert shown(telemetry, *expected) == expected


def waiting(telemetry: Telemetry) -> list[int]:
    return [point.value for _, point in telemetry.points(CONNECTION + "pending_requests")]


def test_who_waits_is_pending_until_out_of_time(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(config_strategy="driver")
    client = side.do(
        side.client, proxy.uri, maxPoolSize=1, waitQueueTimeoutMS=1500, retryReads=False
    )
    with the_only_connection_taken(side, client, proxy):
        coll = client[database].coll
        if side.runner is None:
            with ThreadPoolExecutor() as pool:
                finding = pool.submit(coll.find_one)
                wait_until(lambda: waiting(telemetry) == [1])
            errors = [finding.exception()]
        else:

            async def find_and_look() -> list[Any]:
                task = asyncio.create_task(coll.find_one())
                await asyncio.to_thread(wait_until, lambda: waiting(telemetry) == [1])
                return await asyncio.gather(task, return_exceptions=True)

            errors = side.do(find_and_look)
        assert [type(error) for error in errors] == [WaitQueueTimeoutError]
        expected = {
            CONNECTION + "pending_requests": [(pool_of(proxy), 0)],
            CONNECTION + "timeouts": [(pool_of(proxy), 1)],
        }
        assert shown(telemetry, *expected) == expected
        proxy.clear()


def test_who_is_cancelled_is_not_pending_any_more(
    proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    side = Side("async", asyncio.Runner())
    client = side.do(side.client, proxy.uri, maxPoolSize=1)

    async def cancel() -> None:
        task = asyncio.create_task(client[database].coll.find_one())
        await asyncio.to_thread(wait_until, lambda: waiting(telemetry) == [1])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with the_only_connection_taken(side, client, proxy):
        side.do(cancel)
        assert waiting(telemetry) == [0]
        proxy.clear()
    side.close()


def test_two_clients_of_one_server_are_told_apart_until_one_is_closed_or_collected(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(retry_budget="tokens", retry_token_capacity=9)

    def client() -> Any:
        made = side.do(side.client, proxy.uri)
        side.do(made[database].coll.find_one)
        return made

    def numbers() -> tuple[list[str], list[str]]:
        pools = [attributes[POOL] for attributes, _ in telemetry.points(CONNECTION + "max")]
        tokens = telemetry.points("pymongo_resilience.retry_budget.tokens")
        return (
            [name.rpartition("#")[2] for name in pools],
            [attributes["pymongo_resilience.client"] for attributes, _ in tokens],
        )

    first, second = client(), client()
    assert sorted(numbers()[0]) == sorted(numbers()[1]) == ["1", "2"]
    side.do(first.close)
    assert numbers() == (["2"], ["2"])
    third = client()
    assert sorted(numbers()[0]) == ["1", "2"]
    side.do(second.close)
    side.do(third.close)
    assert numbers() == ([], [])


def test_a_client_that_is_collected_is_gone_from_the_gauges(
    proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(retry_budget="tokens")
    client: Any = pymongo.MongoClient(proxy.uri)
    client[database].coll.find_one()
    gauges = (
        CONNECTION + "count", CONNECTION + "pending_requests", CONNECTION + "max",
        CONNECTION + "idle.max", CONNECTION + "idle.min", "pymongo_resilience.server.state",
        "pymongo_resilience.server.rtt", "pymongo_resilience.retry_budget.tokens",
    )  # fmt: skip
    assert all(shown(telemetry, *gauges).values())
    del client

    def gone() -> bool:
        gc.collect()
        return not any(shown(telemetry, *gauges).values())

    wait_until(gone)


def test_a_clients_retry_budget(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(retry_budget="tokens", retry_token_capacity=5, base_backoff_ms=1)
    client = side.do(side.client, proxy.uri)
    proxy.inject(Overload("find", times=2))
    side.do(client[database].coll.find_one)
    expected = {
        # Two taken; the success gave back 1.1.
        "pymongo_resilience.retry_budget.tokens": [({"pymongo_resilience.client": "1"}, 4.1)]
    }
    assert shown(telemetry, *expected) == expected


def test_heartbeats_that_succeed_and_fail(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    client = side.do(side.client, proxy.uri)
    side.do(client[database].coll.find_one)
    polled = address_of(proxy) | {"pymongo_resilience.awaited": False}
    ((attributes, count),) = shown(telemetry, "pymongo_resilience.heartbeat.duration")[
        "pymongo_resilience.heartbeat.duration"
    ]
    assert (attributes, count >= 1) == (polled, True)
    assert telemetry.points("pymongo_resilience.heartbeat.failures") == []
    proxy.inject(Refuse(60))

    def failed() -> list[Any]:
        # By the monitor alone: after an error of the pool's it would begin with a new connection.
        return telemetry.points("pymongo_resilience.heartbeat.failures")

    ((attributes, point),) = side.wait_until(failed)
    proxy.clear()
    assert (attributes, point.value >= 1) == (polled, True)


@pytest.mark.parametrize("mode", ["stream", "poll"])
def test_a_client_that_is_closed_fails_no_heartbeat(
    side: Side, replica_set: ReplicaSet, instrument: Instrument, mode: str
) -> None:
    telemetry = instrument()
    client = side.do(side.client, replica_set.uri, serverMonitoringMode=mode)
    side.do(client.admin.command, "ping")
    side.wait_for_members(client, 3)
    side.wait_until(lambda: telemetry.points("pymongo_resilience.heartbeat.duration"))
    side.do(client.close)
    side.do(asyncio.sleep if side.runner is not None else time.sleep, 0.7)
    assert telemetry.points("pymongo_resilience.heartbeat.failures") == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_client_whose_loop_was_given_up_while_somebody_waited_is_collected(
    proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument()

    async def begin() -> weakref.ref[Any]:
        client: Any = pymongo.AsyncMongoClient(proxy.uri, maxPoolSize=1, **POLLING)
        coll = client[database].coll
        await coll.insert_many([{}, {}, {}])
        cursor = coll.find(cursor_type=pymongo.CursorType.EXHAUST, batch_size=1)
        await cursor.next()  # has the connection until it is closed
        waits.append(asyncio.create_task(coll.find_one()))
        await asyncio.to_thread(wait_until, lambda: waiting(telemetry) == [1])
        return weakref.ref(client)

    waits: list[asyncio.Task[Any]] = []
    loop = asyncio.new_event_loop()
    client = loop.run_until_complete(begin())
    loop.close()
    waits.clear()
    gc.collect()
    assert client() is None
    assert waiting(telemetry) == []


def test_handshakes_that_an_overloaded_server_rejects(
    side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    telemetry, pools = instrument(base_backoff_ms=1), Closed()
    client = side.do(side.client, proxy.uri, maxIdleTimeMS=1, event_listeners=[pools])
    side.do(client.db.coll.find_one)

    def rejected() -> int:
        with contextlib.suppress(OperationFailure):
            side.do(client.db.coll.find_one)
        return pools.made - pools.ready

    proxy.inject(Overload("hello", times=10))  # the monitors' are among them
    side.wait_until(rejected)
    name = "pymongo_resilience.rejected_handshakes"
    assert shown(telemetry, name) == {name: [(pool_of(proxy), pools.made - pools.ready)]}
    [(_, made)] = shown(telemetry, CONNECTION + "create_time")[CONNECTION + "create_time"]
    assert made == pools.ready
