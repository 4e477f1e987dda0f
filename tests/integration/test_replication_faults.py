"""Elections, restarts and clocks: what each does, how long, how often, and what it leaves alone."""

from __future__ import annotations

import socket
import time
from typing import Any

import pymongo
import pytest
from bson import Int64
from support.clients import Side, wait_until
from support.raw_client import RawClient, ask, new_session

from pymongo_resilience.testbed import (
    CutAfter,
    Election,
    EmbeddedServer,
    Refuse,
    ReplicaSet,
    Restart,
    RollingRestart,
    ShardedCluster,
    SkewedClock,
    Standalone,
)

Document = dict[str, Any]
HELLO: Document = {"hello": 1}


def answers(address: tuple[str, int]) -> bool:
    try:
        return bool(ask(address, {"ping": 1})["ok"])
    except ConnectionError:
        return False


def test_an_election_is_a_gap_and_then_the_next_member(
    replica_set: ReplicaSet, database: str
) -> None:
    gap = 2.0
    insert = {"insert": "coll", "documents": [{}], "$db": database}
    fault = Election(gap)
    with RawClient(replica_set.address) as client:
        assert client.ask(insert)["ok"] == 1
        started = time.monotonic()
        done = replica_set.inject(fault)
        # In force when inject has returned: everybody refuses, nobody is told of a primary.
        assert replica_set.primary is None
        assert client.ask(insert)["code"] == 10107
        assert client.ask({"find": "coll", "$db": database})["code"] == 13435
        assert [ask(each.address, insert)["code"] for each in replica_set.members] == [10107] * 3
        assert not done.done()
        done.result(5)
        assert gap <= replica_set.elected_at - started < gap + 1.5
        assert replica_set.primary is replica_set.members[1]
        # The connection has stayed, to a secondary now.
        assert client.ask(insert)["code"] == 10107
    assert ask(replica_set.members[1].address, insert)["ok"] == 1
    assert (fault.injected, replica_set.injected()) == (1, {"Election": 1})


@pytest.mark.parametrize(("members", "down", "winner"), [(1, [], 0), (3, [1], 2), (3, [1, 2], 0)])
def test_an_election_passes_over_members_that_are_down(
    server: EmbeddedServer, members: int, down: list[int], winner: int
) -> None:
    with ReplicaSet(server.address, members=members) as replica_set:
        before = ask(replica_set.address, HELLO)["electionId"]
        for index in down:
            replica_set.inject(Refuse(60), on=index)
        replica_set.inject(Election(0.01)).result(5)
        assert replica_set.primary is replica_set.members[winner]
        assert ask(replica_set.members[winner].address, HELLO)["electionId"] > before


def test_the_longer_of_two_gaps_holds(replica_set: ReplicaSet) -> None:
    """Neither another election nor a member that comes back ends a gap early."""
    long = replica_set.inject(Election(60))
    short = [replica_set.inject(Election(0.05)), replica_set.inject(Restart(0.05, 0.05), on=2)]
    for each in short:
        each.result(5)
    assert replica_set.primary is None
    assert not long.done()
    replica_set.clear()
    assert replica_set.primary is replica_set.members[1]


@pytest.mark.parametrize("make", [Refuse, Restart])
def test_where_all_are_down_one_that_returns_is_elected(replica_set: ReplicaSet, make: Any) -> None:
    done = replica_set.inject(make(1.0))
    replica_set.inject(Election(0.01)).result(5)
    assert replica_set.primary is None
    done.result(5)
    assert replica_set.primary is not None
    assert ask(replica_set.address, HELLO)["primary"] == replica_set.primary.host_and_port


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "with an open transaction"])
def test_a_restart_of_the_primary(replica_set: ReplicaSet, database: str, busy: bool) -> None:
    insert: Document = {"insert": "coll", "documents": [{}, {}, {}], "$db": database}
    first = replica_set.members[0]
    with RawClient(first.address) as client:
        assert client.ask(insert)["ok"] == 1
        before = client.ask(HELLO)
        cursor = client.ask({"find": "coll", "batchSize": 1, "$db": database})["cursor"]["id"]
        if busy:
            envelope = {"lsid": new_session(), "txnNumber": Int64(1), "autocommit": False}
            client.ask({**insert, **envelope, "startTransaction": True})
        fault = Restart(60, gap=1.0)
        started = time.monotonic()
        done = replica_set.inject(fault, on="primary")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(first.address, timeout=1)
        with pytest.raises(ConnectionResetError):
            client.receive()
    assert replica_set.primary is None
    wait_until(lambda: replica_set.primary)
    assert replica_set.primary is replica_set.members[1]
    assert time.monotonic() - started >= 1.0
    assert not done.done(), "replaced while it was away"
    assert not answers(first.address)
    replica_set.clear()
    after = ask(first.address, HELLO)
    assert (after["secondary"], after["primary"]) == (True, replica_set.primary.host_and_port)
    assert after["topologyVersion"]["processId"] != before["topologyVersion"]["processId"]
    more = {"getMore": cursor, "collection": "coll", "$db": database}
    assert ask(first.address, more)["codeName"] == "CursorNotFound"
    assert fault.injected == 1


def test_whoever_keeps_a_member_down_longest_prevails(replica_set: ReplicaSet) -> None:
    short = [replica_set.inject(each, on=1) for each in (Restart(0.05), Refuse(0.05))]
    long = replica_set.inject(Refuse(60), on=1)
    for each in short:
        each.result(5)
    assert not answers(replica_set.members[1].address)
    assert not long.done()
    replica_set.clear()
    assert answers(replica_set.members[1].address)


def test_a_rolling_restart_takes_one_at_a_time(replica_set: ReplicaSet) -> None:
    versions = [ask(each.address, HELLO)["topologyVersion"] for each in replica_set.members]
    fault = RollingRestart(1.0, pause=0.05, gap=0.02)
    done = replica_set.inject(fault)
    down: list[int] = []

    def watched_to_the_end() -> bool:
        away = [each.index for each in replica_set.members if not each.is_listening]
        assert len(away) <= 1
        down.extend(index for index in away if index not in down)
        return done.done()

    wait_until(watched_to_the_end)
    assert (down, fault.injected) == ([0, 1, 2], 3)
    for member, version in zip(replica_set.members, versions, strict=True):
        now = ask(member.address, HELLO)["topologyVersion"]
        assert now["processId"] != version["processId"]
    # Each was the primary when its turn came.
    assert replica_set.primary is replica_set.members[0]
    assert str(ask(replica_set.address, HELLO)["electionId"])[-1] == "4"


@pytest.mark.parametrize("make", [ShardedCluster, Standalone])
def test_routers_and_a_standalone_restart_without_elections(
    server: EmbeddedServer, make: Any
) -> None:
    with make(server.address) as deployment:
        deployment.inject(Restart(60))
        assert not any(answers(member.address) for member in deployment.members)
        deployment.clear()
        deployment.inject(Restart(0.05)).result(5)
        assert all(answers(member.address) for member in deployment.members)


def test_a_client_sees_the_clock_of_the_member_it_is_told_of(
    side: Side, replica_set: ReplicaSet
) -> None:
    fault = SkewedClock(-3600)
    replica_set.inject(fault, on=1)
    client = side.client(replica_set.uri)

    def minutes_behind() -> list[int]:
        side.do(client.admin.command, "ping")
        servers = client.topology_description.server_descriptions()
        dates = [servers[each.address].last_write_date for each in replica_set.members]
        known = [date for date in dates if date is not None]
        return [round((known[0] - date) / 60) for date in known]

    wait_until(lambda: minutes_behind() == [0, 60, 0])
    assert fault.injected >= 1
    replica_set.clear()
    wait_until(lambda: minutes_behind() == [0, 0, 0])
    side.do(client.close)


def test_no_fault_makes_a_secondary_execute_a_write(
    replica_set: ReplicaSet, control: pymongo.MongoClient[Any], database: str
) -> None:
    """A reply that is lost on the way from a member which refuses is a refusal that is lost."""
    fault = CutAfter("insert")
    replica_set.inject(fault, on="secondary")
    insert = {"insert": "coll", "documents": [{}], "$db": database}
    with pytest.raises(ConnectionError):
        ask(replica_set.members[1].address, insert)
    assert (fault.injected, control[database].coll.count_documents({})) == (1, 0)
