"""Which servers a retry avoids: an overloaded one, and in a sharded cluster each that failed."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pymongo import ReadPreference
from pymongo.read_preferences import Secondary, make_read_preference
from pymongo_resilience_instrumentation.tools.testbed import Fail, Overload, SkewedClock
from support.clients import Side, wait_until
from support.telemetry import Instrument

from pymongo_resilience import explain_selection
from pymongo_resilience.client_status import SelectionRule
from pymongo_resilience.testbed import ReplicaSet, ShardedCluster

pytestmark = [pytest.mark.each_setup, pytest.mark.oldest]


MODES = {"primaryPreferred": 1, "secondaryPreferred": 3, "nearest": 4}


class Candidates:
    """A server selector of an application: notes what it is shown."""

    def __init__(self) -> None:
        self.seen: list[set[Any]] = []

    def __call__(self, servers: list[Any]) -> list[Any]:
        self.seen.append({server.address for server in servers})
        return servers


def retry(
    side: Side,
    uri: str,
    database: str,
    instrument: Instrument,
    config: dict[str, Any] | None = None,
    preference: Any = ReadPreference.NEAREST,
    **options: Any,
) -> tuple[Any, list[set[Any]]]:
    """One read that fails once: the server it failed on, and the candidates of each later look."""
    candidates = Candidates()
    client = side.client(uri, server_selector=candidates, localThresholdMS=60_000, **options)
    coll = client.get_database(database, read_preference=preference).coll
    side.do(client.admin.command, "ping")
    side.wait_for_members(client, uri.count("127.0.0.1:"))

    def on_event(event: Any) -> None:
        failed.append(event.server)
        candidates.seen.clear()

    failed: list[str] = []
    telemetry = instrument(**(config or {}))
    telemetry.decisions.on_event = on_event  # type: ignore[method-assign]
    side.do(coll.find_one)
    (server,) = failed
    host, port = server.split(":")
    return (host, int(port)), candidates.seen


@pytest.mark.parametrize("deployment", ["replica_set", "cluster"])
def test_an_overloaded_server_is_avoided(
    deployment: str,
    side: Side,
    request: pytest.FixtureRequest,
    database: str,
    instrument: Instrument,
) -> None:
    servers = request.getfixturevalue(deployment)
    servers.inject(Overload("find"))
    failed, seen = retry(side, servers.uri, database, instrument)
    assert [failed in candidates for candidates in seen] == [False]
    assert seen[0]


def test_a_server_that_was_avoided_is_eligible_for_the_next_operation(
    side: Side, replica_set: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """pymongo keeps in its description what the last look has left."""
    instrument()
    client = side.client(replica_set.uri, localThresholdMS=60_000)
    coll = client.get_database(database, read_preference=ReadPreference.NEAREST).coll
    side.do(client.admin.command, "ping")
    side.wait_for_members(client, 3)
    replica_set.inject(Overload("find"))
    side.do(coll.find_one)
    verdicts = explain_selection(client, ReadPreference.NEAREST)
    assert [each.excluded_by for each in verdicts] == [None] * 3


def test_where_there_is_no_other_it_is_used(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    proxy.inject(Overload("find"))
    failed, seen = retry(side, proxy.uri, database, instrument)
    assert seen == [{failed}]


def test_an_application_s_selector_may_want_the_one_that_failed(
    side: Side, replica_set: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """As it gets it from plain pymongo, which forgets about the failure when it has to wait."""
    telemetry = instrument()
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


def unreachable(command: str) -> Fail:
    """An error without overload after which the driver itself still thinks well of the server."""
    return Fail(command, code=6)


ON = {"overload_retargeting": True}
OFF = {"overload_retargeting": False}
MONGODB = {"config_strategy": "mongodb"}
PREFERRED = [ReadPreference.PRIMARY_PREFERRED, ReadPreference.SECONDARY_PREFERRED]
OTHERS = [ReadPreference.SECONDARY, ReadPreference.NEAREST]


@pytest.mark.parametrize("config", [{}, ON, MONGODB], ids=str)
def test_only_an_overloaded_server_is_avoided(
    config: dict[str, Any],
    side: Side,
    replica_set: ReplicaSet,
    database: str,
    instrument: Instrument,
) -> None:
    """Retryable Reads, 2026-02-23: after any other error the server stays a candidate."""
    replica_set.inject(unreachable("find"))
    failed, seen = retry(side, replica_set.uri, database, instrument, config)
    assert [failed in candidates for candidates in seen] == [True]


@pytest.mark.parametrize(
    ("config", "own", "preferences"),
    [
        ({}, None, OTHERS),
        (MONGODB, None, OTHERS),
        (ON, None, OTHERS + PREFERRED),
        (OFF, None, []),
        ({}, True, OTHERS + PREFERRED),
        (OFF, True, OTHERS + PREFERRED),
        ({}, False, []),
        (ON, False, []),
    ],
    ids=["unset", "mongodb", "on", "off", "own on", "off, own on", "own off", "on, own off"],
)
@pytest.mark.parametrize("preference", PREFERRED + OTHERS, ids=lambda each: type(each).__name__)
def test_who_is_moved_off_an_overloaded_server(
    preference: Any,
    config: dict[str, Any],
    own: bool | None,
    preferences: list[Any],
    replica_set: ReplicaSet,
    database: str,
    instrument: Instrument,
) -> None:
    side = Side("sync", None)
    replica_set.inject(Overload("find"))
    options = {} if own is None else {"enableOverloadRetargeting": own}
    failed, seen = retry(side, replica_set.uri, database, instrument, config, preference, **options)
    avoided = [failed not in candidates for candidates in seen]
    side.close()
    assert avoided == [preference in preferences]


def make_stale(side: Side, servers: ReplicaSet, *members: int) -> None:
    """By an hour; they may be behind by ninety seconds."""
    for member in members:
        servers.inject(SkewedClock(-3600), on=member)
    client = side.client(servers.uri)

    def are_stale() -> bool:
        side.do(client.admin.command, "ping")
        found = explain_selection(client, Secondary(max_staleness=90))
        stale = [each for each in found if each.excluded_by is SelectionRule.STALENESS]
        return len(stale) == len(members)

    wait_until(are_stale)


@pytest.mark.parametrize(
    ("mode", "own"),
    [("primaryPreferred", {}), ("nearest", {}),
     ("primaryPreferred", {"enableOverloadRetargeting": True}),
     ("secondaryPreferred", {"enableOverloadRetargeting": True})],
    ids=["primaryPreferred", "nearest", "primaryPreferred, own on", "secondaryPreferred, own on"],
)  # fmt: skip
@pytest.mark.parametrize("fault", [unreachable, Overload])
def test_no_retry_reads_a_member_that_is_too_stale(
    fault: Any,
    mode: str,
    own: dict[str, Any],
    side: Side,
    replica_set: ReplicaSet,
    database: str,
    instrument: Instrument,
) -> None:
    """An overloaded primary is not avoided where staleness would be measured without it."""
    make_stale(side, replica_set, 1, 2)
    replica_set.inject(fault("find"))
    preference = make_read_preference(MODES[mode], None, 90)
    failed, seen = retry(side, replica_set.uri, database, instrument, preference=preference, **own)
    assert failed == replica_set.members[0].address
    assert seen
    assert all(candidates == {failed} for candidates in seen)


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
    failed, seen = retry(side, cluster.uri, database, instrument, config, **own)
    assert [failed not in candidates for candidates in seen] == [True]
