"""The server that failed is avoided on the retry, in every topology, and while selection waits."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Instrument, Side
from pymongo import ReadPreference
from pymongo_resilience_instrumentation import deprioritized
from pymongo_resilience_instrumentation.testbed import ReplicaSet, ShardedCluster
from pymongo_resilience_instrumentation.testbed.faults import CutBefore, Overload

pytestmark = pytest.mark.oldest


class Gate:
    """A server selector of an application: notes the candidates, and closes after an attempt."""

    def __init__(self) -> None:
        self.closed_looks = 0
        self.seen: list[set[Any]] = []

    def __call__(self, servers: list[Any]) -> list[Any]:
        self.seen.append({server.address for server in servers})
        if self.closed_looks:
            self.closed_looks -= 1
            return []
        return servers


def retry(
    side: Side, uri: str, database: str, instrument: Instrument, looks: int, **options: Any
) -> tuple[Any, list[set[Any]]]:
    """One read that fails once: the server it failed on, and the candidates of each later look."""
    gate = Gate()
    client = side.client(uri, server_selector=gate, localThresholdMS=60_000, **options)
    coll = client.get_database(database, read_preference=ReadPreference.NEAREST).coll
    side.do(client.admin.command, "ping")

    class ClosesTheGate:
        def on_event(self, event: Any) -> None:
            failed.append(event.server)
            gate.seen.clear()
            gate.closed_looks = looks

    failed: list[str] = []
    telemetry = instrument(timeout_ms=20_000)
    closing = ClosesTheGate()
    telemetry.decisions.on_event = closing.on_event  # type: ignore[method-assign]
    side.do(coll.find_one)
    (server,) = failed
    host, port = server.split(":")
    assert deprioritized._failed.get() is None, "nothing of it is left behind"
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
    assert len(seen) == looks + 1
    assert all(failed not in candidates and candidates for candidates in seen)


@pytest.mark.parametrize("looks", [0, 1, 3], ids=lambda n: f"waits {n} times")
def test_in_a_sharded_cluster(
    looks: int, side: Side, cluster: ShardedCluster, database: str, instrument: Instrument
) -> None:
    cluster.inject(Overload("find"))
    failed, seen = retry(side, cluster.uri, database, instrument, looks)
    assert len(seen) == looks + 1
    assert all(failed not in candidates and candidates for candidates in seen)


def test_where_there_is_no_other_it_is_used(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    proxy.inject(Overload("find"))
    failed, seen = retry(side, proxy.uri, database, instrument, 1)
    assert seen == [{failed}, {failed}]


def test_a_client_may_say_no(
    side: Side, replica_set: ReplicaSet, database: str, instrument: Instrument
) -> None:
    replica_set.inject(Overload("find"))
    failed, seen = retry(
        side, replica_set.uri, database, instrument, 0, enableOverloadRetargeting=False
    )
    assert [failed in candidates for candidates in seen] == [True]
