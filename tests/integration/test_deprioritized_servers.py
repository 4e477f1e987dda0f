"""The server that failed is avoided on the retry, in every topology, and while selection waits."""

from __future__ import annotations

import time
from typing import Any

import pymongo
import pytest
from conftest import Instrument, Side
from pymongo import ReadPreference
from pymongo_resilience_instrumentation import deprioritized
from pymongo_resilience_instrumentation.testbed import ReplicaSet, ShardedCluster
from pymongo_resilience_instrumentation.testbed.faults import CutBefore, Fail, Overload

pytestmark = pytest.mark.oldest


class Gate:
    """A server selector of an application: notes the candidates, and closes after an attempt.

    Where it wants none of the others, it is shown all servers: a closed look are two calls.
    """

    def __init__(self) -> None:
        self.closed_looks = 0
        self.seen: list[set[Any]] = []

    def __call__(self, servers: list[Any]) -> list[Any]:
        self.seen.append({server.address for server in servers})
        return [] if len(self.seen) <= 2 * self.closed_looks else servers


def retry(
    side: Side,
    uri: str,
    database: str,
    instrument: Instrument,
    looks: int,
    config: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[Any, list[set[Any]]]:
    """One read that fails once: the server it failed on, and the candidates of each later look."""
    gate = Gate()
    client = side.client(uri, server_selector=gate, localThresholdMS=60_000, **options)
    coll = client.get_database(database, read_preference=ReadPreference.NEAREST).coll
    side.do(client.admin.command, "ping")
    side.wait_for_members(client, uri.count("127.0.0.1:"))

    class ClosesTheGate:
        def on_event(self, event: Any) -> None:
            failed.append(event.server)
            gate.seen.clear()
            gate.closed_looks = looks

    failed: list[str] = []
    telemetry = instrument(timeout_ms=20_000, **(config or {}))
    closing = ClosesTheGate()
    telemetry.decisions.on_event = closing.on_event  # type: ignore[method-assign]
    side.do(coll.find_one)
    (server,) = failed
    host, port = server.split(":")
    assert deprioritized._failed.get() == (), "nothing of it is left behind"
    return (host, int(port)), gate.seen


@pytest.mark.parametrize("looks", [0, 1, 3], ids=lambda n: f"waits {n} times")
@pytest.mark.parametrize("fault", [CutBefore, Overload])
def test_in_a_replica_set(
    fault: Any,
    looks: int,
    side: Side,
    replica_set: ReplicaSet,
    database: str,
    instrument: Instrument,
) -> None:
    replica_set.inject(fault("find"))
    failed, seen = retry(side, replica_set.uri, database, instrument, looks)
    assert len(seen) == 2 * looks + 1
    assert all(failed not in candidates and candidates for candidates in seen[::2])


@pytest.mark.parametrize("looks", [0, 1, 3], ids=lambda n: f"waits {n} times")
def test_in_a_sharded_cluster(
    looks: int, side: Side, cluster: ShardedCluster, database: str, instrument: Instrument
) -> None:
    cluster.inject(Overload("find"))
    failed, seen = retry(side, cluster.uri, database, instrument, looks)
    assert len(seen) == 2 * looks + 1
    assert all(failed not in candidates and candidates for candidates in seen[::2])


def test_where_there_is_no_other_it_is_used(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    proxy.inject(Overload("find"))
    failed, seen = retry(side, proxy.uri, database, instrument, 1)
    assert seen == [{failed}] * 3


def test_an_application_s_selector_may_want_the_one_that_failed(
    side: Side, replica_set: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """As it gets it from plain pymongo, which forgets about the failure when it has to wait."""
    telemetry = instrument(timeout_ms=20_000)
    wanted = [replica_set.members[1].address]

    def only_the_wanted(servers: list[Any]) -> list[Any]:
        return [each for each in servers if not wanted or each.address in wanted]

    client = side.client(replica_set.uri, server_selector=only_the_wanted)
    coll = client.get_database(database, read_preference=ReadPreference.NEAREST).coll
    side.do(coll.find_one)
    replica_set.inject(Overload("find"))
    started = time.monotonic()
    side.do(coll.find_one)
    assert time.monotonic() - started < 10, "it was not kept from the client until the deadline"
    wanted.clear()  # close() looks for the primary
    assert len(telemetry.decisions.events) == 1


def test_another_client_s_operation_avoids_nothing(
    proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """An application's listener reads through a client of its own while the retry is due."""
    telemetry = instrument(timeout_ms=5_000)
    seen: list[Any] = []
    with (
        pymongo.MongoClient(proxy.uri) as client,
        pymongo.MongoClient(proxy.uri, server_selector=_noting(seen)) as audit,
    ):
        client[database].coll.find_one()
        audit[database].coll.find_one()
        telemetry.decisions.on_event = lambda event: audit[database].log.find_one()  # type: ignore[method-assign]
        proxy.inject(CutBefore("find"))
        seen.clear()
        client[database].coll.find_one()
        assert seen == [1], "one look, at the one server there is"


def _noting(seen: list[Any]) -> Any:
    def selector(servers: list[Any]) -> list[Any]:
        seen.append(len(servers))
        return servers

    return selector


def test_a_client_may_say_no(
    side: Side, replica_set: ReplicaSet, database: str, instrument: Instrument
) -> None:
    replica_set.inject(Overload("find"))
    failed, seen = retry(
        side, replica_set.uri, database, instrument, 0, enableOverloadRetargeting=False
    )
    assert [failed in candidates for candidates in seen] == [True]


def unreachable(command: str) -> Fail:
    """An error without overload after which the driver itself still thinks well of the server."""
    return Fail(command, code=6)


OFF = {"overload_retargeting": False}
MONGODB = {"config_strategy": "mongodb"}


@pytest.mark.parametrize(
    ("config", "fault", "avoids"),
    [
        ({}, unreachable, True),
        (MONGODB, unreachable, False),
        (MONGODB, Overload, True),
        (OFF, unreachable, False),
        (OFF, Overload, False),
    ],
)
def test_what_switches_it_off(
    config: dict[str, Any],
    fault: Any,
    avoids: bool,
    side: Side,
    replica_set: ReplicaSet,
    database: str,
    instrument: Instrument,
) -> None:
    replica_set.inject(fault("find"))
    failed, seen = retry(side, replica_set.uri, database, instrument, 0, config)
    assert [failed not in candidates for candidates in seen] == [avoids]


@pytest.mark.parametrize("config", [OFF, MONGODB, OFF | MONGODB])
@pytest.mark.parametrize("fault", [unreachable, Overload])
def test_a_sharded_cluster_always_has_it(
    config: dict[str, Any],
    fault: Any,
    side: Side,
    cluster: ShardedCluster,
    database: str,
    instrument: Instrument,
) -> None:
    """Retryable Reads, "Selecting the server for retry": a MUST, whatever a client says."""
    cluster.inject(fault("find"))
    own = {"enableOverloadRetargeting": False}
    failed, seen = retry(side, cluster.uri, database, instrument, 0, config, **own)
    assert [failed not in candidates for candidates in seen] == [True]
