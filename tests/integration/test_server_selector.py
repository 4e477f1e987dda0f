"""Servers chosen by load: through the client's selector, counted as long as an attempt lasts."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pymongo
import pytest
from pymongo import ReadPreference
from pymongo.errors import AutoReconnect, OperationFailure
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.selection import selector
from pymongo_resilience_instrumentation.selection.selector import AttemptCount
from pymongo_resilience_instrumentation.tools.testbed import CutBefore, Fail, Latency, Reset, Slow
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.busy_pools import Silent
from support.clients import SentCommands, Side, wait_until
from support.telemetry import Instrument

import pymongo_resilience
from pymongo_resilience import status
from pymongo_resilience.server_choice import server_load
from pymongo_resilience.testbed import ReplicaSet, ShardedCluster, Standalone

pytestmark = [pytest.mark.each_setup, pytest.mark.oldest]

BY_LOAD = {"server_selection": "least_loaded"}
BY_LATENCY = {"server_selection": "peak_ewma"}
ANYWHERE = {"localThresholdMS": 60_000}


def in_flight(client: Any) -> dict[str, int | None]:
    """Servers with attempts in progress."""
    return {each.address: each.in_flight for each in status(client).servers if each.in_flight}


class Watching(SentCommands):
    """Where each command went, and what was in progress then."""

    client: Any = None
    then: Callable[[], None] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str, dict[str, int | None]]] = []

    def started(self, event: Any) -> None:
        if self.client is not None:
            address = "{}:{}".format(*event.connection_id)
            self.seen.append((event.command_name, address, in_flight(self.client)))
        if self.then is not None:
            self.then()

    def where(self, command: str) -> list[str]:
        return [address for name, address, _ in self.seen if name == command]


def watched(side: Side, uri: str, members: int, **options: Any) -> tuple[Any, Watching]:
    watching = Watching()
    client = side.client(uri, event_listeners=[watching], **options)
    side.do(client.admin.command, "ping")
    if members > 1:
        side.wait_for_members(client, members)
    watching.client = client
    return client, watching


def nearest(client: Any, database: str) -> Any:
    return client.get_database(database, read_preference=ReadPreference.NEAREST).coll


class Interruption(BaseException):
    """As KeyboardInterrupt, which would end the test run."""


def interrupt() -> None:
    raise Interruption


def cancel() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("fault", "then", "ends_with", "attempts"),
    [
        (None, None, None, 1),
        (lambda: Fail("find", code=2), None, OperationFailure, 1),
        (lambda: CutBefore("find", 2), None, None, 3),
        (lambda: CutBefore("find", 2), None, AutoReconnect, 2),
        (None, interrupt, Interruption, 1),
        (None, cancel, asyncio.CancelledError, 1),
    ],
    ids=["well", "an error", "retried", "given up", "interrupted", "cancelled"],
)
def test_an_attempt_counts_on_its_server_until_it_is_over(
    fault: Any,
    then: Any,
    ends_with: type[BaseException] | None,
    attempts: int,
    side: Side,
    replica_set: ReplicaSet,
    database: str,
    instrument: Instrument,
) -> None:
    instrument(**BY_LOAD, timeout_ms=None if ends_with is AutoReconnect else 20_000)
    client, watching = watched(side, replica_set.uri, 3, **ANYWHERE)
    if fault is not None:
        replica_set.inject(fault())
    watching.then = then
    if ends_with is None:
        side.do(nearest(client, database).find_one)
    else:
        with pytest.raises(ends_with):
            side.do(nearest(client, database).find_one)
    watching.then = None
    finds = [seen for seen in watching.seen if seen[0] == "find"]
    assert len(finds) == attempts
    for _, address, then_in_flight in finds:
        assert then_in_flight == {address: 1}
    assert in_flight(client) == {}


def test_a_batch_is_counted_on_the_cursor_s_server(
    side: Side, replica_set: ReplicaSet, database: str, control: Any, instrument: Instrument
) -> None:
    """The driver selects it by its address, without the selector."""
    control[database].coll.insert_many([{} for _ in range(6)])
    instrument(**BY_LOAD)
    client, watching = watched(side, replica_set.uri, 3, **ANYWHERE)
    assert len(side.documents(nearest(client, database).find(batch_size=2))) == 6
    batches = [seen for seen in watching.seen if seen[0] == "getMore"]
    (server,) = set(watching.where("find"))
    assert len(batches) >= 2
    assert all(seen == ("getMore", server, {server: 1}) for seen in batches)
    assert in_flight(client) == {}


def test_a_transaction_is_counted_on_its_mongos(
    side: Side, cluster: ShardedCluster, database: str, control: Any, instrument: Instrument
) -> None:
    control[database].coll.insert_one({"_id": 1})
    instrument(**BY_LOAD)
    client, watching = watched(side, cluster.uri, len(cluster.members), **ANYWHERE)
    coll = client[database].coll
    session = side.do(client.start_session)
    side.do(session.start_transaction)
    for _ in range(3):
        side.do(coll.find_one, {"_id": 1}, session=session)
    side.do(session.commit_transaction)
    side.do(session.end_session)
    (server,) = set(watching.where("find"))
    ours = [seen for seen in watching.seen if seen[0] in {"find", "commitTransaction"}]
    assert [flight for _, _, flight in ours] == [{server: 1}] * 4
    assert in_flight(client) == {}


class LoadBalancer(Standalone):
    """A server that a load balancer has in front of it, as its hello says."""

    def describe(self, member: Any, hello: dict[str, Any]) -> None:
        super().describe(member, hello)
        hello["serviceId"] = 1


@pytest.mark.parametrize(
    ("bed", "options"),
    [(Standalone, {"directConnection": True}), (LoadBalancer, {"loadBalanced": True})],
    ids=["direct", "load balanced"],
)
def test_where_there_is_one_address_it_is_counted_as_well(
    bed: Any,
    options: dict[str, Any],
    side: Side,
    server: EmbeddedServer,
    database: str,
    instrument: Instrument,
) -> None:
    """The driver never calls a selector there."""
    instrument(**BY_LOAD)
    asked: list[Any] = []
    with bed(server.address) as single:
        host, port = single.address
        client, watching = watched(
            side, f"mongodb://{host}:{port}/", 1, server_selector=asked.append, **options
        )
        side.do(client[database].coll.find_one)
        assert watching.seen == [("find", f"{host}:{port}", {f"{host}:{port}": 1})]
        (verdict,) = pymongo_resilience.explain_selection(client, writes=True)
        assert (verdict.eligible, in_flight(client), asked) == (True, {}, [])
        side.do(client.close)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on Windows")
def test_in_a_forked_child_nothing_is_in_progress(
    proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(**BY_LOAD)
    watching = Watching()
    with pymongo.MongoClient[Any](proxy.uri, event_listeners=[watching]) as client:
        client.admin.command("ping")
        seen: list[tuple[dict[str, int | None], int]] = []

        def fork() -> None:
            child = os.fork()
            if child == 0:
                os._exit(len(in_flight(client)))
            seen.append((in_flight(client), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))

        watching.then = fork
        client[database].coll.find_one()
        watching.then = None
        assert seen == [({proxy.members[0].host_and_port: 1}, 0)]


def test_what_is_selected_outside_of_an_attempt_counts_nothing(
    side: Side, replica_set: ReplicaSet, instrument: Instrument
) -> None:
    instrument(**BY_LOAD)
    client, _ = watched(side, replica_set.uri, 3, **ANYWHERE)
    topology = client._topology
    chosen = side.do(topology.select_servers, ReadPreference.NEAREST, "test")
    assert len(chosen) == 1, "the selector has chosen"
    assert in_flight(client) == {}


def test_it_counts_before_anybody_else_can_select(
    side: Side,
    replica_set: ReplicaSet,
    database: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instrument(**BY_LOAD)
    client, watching = watched(side, replica_set.uri, 3, **ANYWHERE)
    taken: list[tuple[str, bool]] = []
    take = AttemptCount.take

    def noting(count: AttemptCount, address: str) -> None:
        taken.append((address, client._topology._lock.locked()))
        take(count, address)

    monkeypatch.setattr(AttemptCount, "take", noting)
    side.do(nearest(client, database).find_one)
    (server,) = watching.where("find")
    assert taken == [(server, True), (server, False)], "in the selector, and once it is over"


def test_the_server_with_fewer_attempts_is_taken(
    side: Side, replica_set: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(**BY_LOAD, timeout_ms=20_000)
    client, watching = watched(side, replica_set.uri, 3, **ANYWHERE)
    coll = nearest(client, database)
    busy = replica_set.members[1]
    silent = Silent("find")
    replica_set.inject(silent, on=1)
    enough = threading.Event()

    def read_on() -> None:
        while not enough.is_set():
            coll.find_one()

    async def read_on_async() -> None:
        while not enough.is_set():
            await coll.find_one()

    async def begin() -> Any:
        return asyncio.create_task(read_on_async())

    def held() -> bool:
        return in_flight(client) == {busy.host_and_port: 1} and silent.injected == 1

    thread = threading.Thread(target=read_on)
    task = None
    if side.runner is None:
        thread.start()
    else:
        task = side.do(begin)
    side.wait_until(held)
    watching.seen.clear()
    for _ in range(20):
        side.do(coll.find_one)
    others = {member.host_and_port for member in replica_set.members} - {busy.host_and_port}
    assert set(watching.where("find")) == others
    enough.set()
    replica_set.inject(Reset(), on=1)
    if task is None:
        thread.join(10)
    else:
        side.do(asyncio.wait, [task])
    assert in_flight(client) == {}


def next_reads(side: Side, coll: Any, watching: Watching) -> list[str]:
    """Where a hundred go, one after the other: none is in progress where the next one goes."""
    watching.seen.clear()
    for _ in range(100):
        side.do(coll.find_one)
    return watching.where("find")


def test_a_slow_member_loses_its_reads_and_gets_them_back(
    side: Side,
    replica_set: ReplicaSet,
    database: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instrument(**BY_LATENCY)
    client, watching = watched(side, replica_set.uri, 3, **ANYWHERE)
    coll, slow = nearest(client, database), replica_set.members[1].host_and_port
    assert slow in next_reads(side, coll, watching)
    replica_set.inject(Slow(0.5), on=1)
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        side.do(coll.find_one)
    assert next_reads(side, coll, watching).count(slow) <= 2
    replica_set.clear()
    monkeypatch.setattr(server_load, "DECAY", 0.02)
    wait_until(lambda: next_reads(side, coll, watching).count(slow) > 20)
    assert in_flight(client) == {}


def test_what_has_no_choice_of_servers_tells_of_no_latency(
    side: Side, replica_set: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """A write may wait for other members, and a batch for documents to come."""
    instrument(**BY_LATENCY)
    client, _ = watched(side, replica_set.uri, 3, **ANYWHERE)
    latencies = client._topology_settings.server_selector.counts.latencies
    coll = nearest(client, database)
    side.do(coll.insert_many, [{} for _ in range(6)])
    assert latencies._latencies == {}
    cursor = coll.find(batch_size=2)
    side.do(cursor.next)
    ((address, noted),) = latencies._latencies.items()
    side.documents(cursor)
    assert latencies._latencies == {address: noted}


def test_a_server_outside_of_the_latency_window_is_not_chosen(
    side: Side, replica_set: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(**BY_LOAD)
    client, watching = watched(side, replica_set.uri, 3, localThresholdMS=100)
    far = replica_set.members[2]
    replica_set.inject(Latency(1.0), on=2)

    def far_away() -> bool:
        rtt = {each.address: each.round_trip_time for each in status(client).servers}
        others = [rtt[each.host_and_port] or 1.0 for each in replica_set.members[:2]]
        return (rtt[far.host_and_port] or 0.0) > min(others) + 0.15

    side.wait_until(far_away)
    for _ in range(20):
        side.do(nearest(client, database).find_one)
    assert len(watching.where("find")) == 20
    assert far.host_and_port not in watching.where("find")


@pytest.mark.parametrize("option", ["server_selector", "Server_Selector"])
def test_the_application_s_own_selector_is_called_first(
    option: str, side: Side, replica_set: ReplicaSet, database: str, instrument: Instrument
) -> None:
    wanted = replica_set.members[1]
    seen: list[int] = []

    def own(servers: list[Any]) -> list[Any]:
        seen.append(len(servers))
        return [each for each in servers if each.address == wanted.address] or servers

    instrument(**BY_LOAD)
    client, watching = watched(side, replica_set.uri, 3, **ANYWHERE, **{option: own})
    seen.clear()
    for _ in range(10):
        side.do(nearest(client, database).find_one)
    assert set(watching.where("find")) == {wanted.host_and_port}
    assert seen == [3] * 10


def test_what_the_application_s_own_selector_raises_is_raised(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(**BY_LOAD)

    def own(servers: list[Any]) -> list[Any]:
        raise LookupError("none today")

    client = side.client(proxy.uri, server_selector=own)
    with pytest.raises(LookupError, match="none today"):
        side.do(client[database].coll.find_one)
    assert in_flight(client) == {}


def _all(servers: list[Any]) -> list[Any]:
    return servers


def test_a_client_made_from_another_s_keywords_has_one_selector_of_its_own(
    side: Side, server: EmbeddedServer, instrument: Instrument
) -> None:
    instrument(**BY_LOAD)
    first = side.do(side.client, server.uri, server_selector=_all)
    second = side.do(first._duplicate)
    side.clients.append(second)
    theirs, its = (each._topology_settings.server_selector for each in (first, second))
    assert its is not theirs
    assert its.own is _all
    assert its.counts is not theirs.counts


def test_what_is_no_selector_is_the_driver_s_to_refuse(
    side: Side, server: EmbeddedServer, instrument: Instrument
) -> None:
    instrument(**BY_LOAD)
    with pytest.raises((TypeError, ValueError), match="must be a callable"):
        side.client(server.uri, server_selector="nearest")


@pytest.mark.parametrize(
    "options",
    [{}, {"circuit_breaker": "off"}, BY_LOAD | {"config_strategy": "driver"}],
    ids=["the default", "no breakers", "the strategy driver"],
)
def test_a_client_has_no_selector_of_ours_where_nobody_needs_it(
    options: dict[str, Any],
    side: Side,
    server: EmbeddedServer,
    database: str,
    instrument: Instrument,
    caplog: pytest.LogCaptureFixture,
) -> None:
    instrument(**options)
    client = side.do(side.client, server.uri)
    assert not isinstance(client._topology_settings.server_selector, selector.ServerSelector)
    side.do(client[database].coll.find_one)
    told = "server_selection has no effect" in caplog.text
    assert told is ("config_strategy" in options)


def test_switched_off_the_driver_chooses(
    side: Side, replica_set: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(**BY_LOAD)
    client, _ = watched(side, replica_set.uri, 3, **ANYWHERE)
    pymongo_resilience.uninstrument()
    chosen = side.do(client._topology.select_servers, ReadPreference.NEAREST, "test")
    assert len(chosen) == 3
    side.do(nearest(client, database).find_one)


def test_a_fault_of_ours_leaves_the_choice_to_the_driver(
    side: Side,
    replica_set: ReplicaSet,
    database: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instrument(**BY_LOAD)
    client, _ = watched(side, replica_set.uri, 3, **ANYWHERE)

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(selector, "choose", broken)
    chosen = side.do(client._topology.select_servers, ReadPreference.NEAREST, "test")
    assert len(chosen) == 3
    side.do(nearest(client, database).find_one)
    assert in_flight(client) == {}


def test_a_server_that_left_is_forgotten(
    side: Side,
    replica_set: ReplicaSet,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No member of the test bed ever leaves: it is the client's answer that is stated."""
    instrument(server_selection="peak_ewma")
    client, _ = watched(side, replica_set.uri, 3, **ANYWHERE)
    ours = client._topology_settings.server_selector
    latencies = ours.counts.latencies
    for member in replica_set.members:
        latencies.end(member.host_and_port, latencies.begin(), succeeded=True)
    stays = replica_set.members[0]
    monkeypatch.setattr(driver.selection, "known_addresses", lambda _: {stays.address})
    ours(list(client.topology_description.server_descriptions().values()))
    assert list(latencies._latencies) == [stays.host_and_port]


@pytest.mark.parametrize("broken", ["take", "release"])
def test_a_fault_of_ours_with_the_counts_changes_nothing(
    broken: str,
    side: Side,
    replica_set: ReplicaSet,
    database: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    instrument(**BY_LOAD)
    client, _ = watched(side, replica_set.uri, 3, **ANYWHERE)

    def raises(*_: Any) -> None:
        raise LookupError("ours")

    monkeypatch.setattr(AttemptCount, broken, raises)
    assert side.do(nearest(client, database).find_one) is None
    with pytest.raises(OperationFailure):
        side.do(nearest(client, database).find_one, {"$no": 1})
    assert "internal error in pymongo-resilience" in caplog.text


def test_a_server_that_is_left_out_serves_only_where_there_is_no_other(
    side: Side, replica_set: ReplicaSet, instrument: Instrument
) -> None:
    """What circuit breakers say; here it is said by hand."""
    instrument(**BY_LOAD)
    client, _ = watched(side, replica_set.uri, 3, **ANYWHERE)
    left_out = {member.host_and_port for member in replica_set.members[:2]}
    ours = client._topology_settings.server_selector
    ours._breakers = SimpleNamespace(
        without_open=lambda servers: (
            [each for each in servers if "{}:{}".format(*each.address) not in left_out] or servers
        )
    )

    def chosen() -> set[str]:
        (each,) = side.do(client._topology.select_servers, ReadPreference.NEAREST, "test")
        return {"{}:{}".format(*each.description.address)}

    assert chosen() == {replica_set.members[2].host_and_port}
    left_out.add(replica_set.members[2].host_and_port)
    assert chosen() <= left_out
