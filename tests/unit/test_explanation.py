"""What is said of each server, for each rule that can leave it out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st
from pymongo.errors import AutoReconnect
from pymongo.read_preferences import (
    Nearest,
    Primary,
    PrimaryPreferred,
    Secondary,
    SecondaryPreferred,
    make_read_preference,
)
from pymongo.server_selectors import any_server_selector, writable_server_selector
from pymongo_resilience_instrumentation.driver import csot
from pymongo_resilience_instrumentation.selection.selection_explained import _verdicts
from support.examples import scaled
from support.topologies import found, server, topology

from pymongo_resilience.client_status import SelectionRule

if TYPE_CHECKING:
    from pymongo.server_description import ServerDescription
    from pymongo.topology_description import TopologyDescription

DB1 = server("db1", "RSPrimary", last_update=500.0, last_write=500.0)


def replica_set(*servers: ServerDescription) -> TopologyDescription:
    led = any(each.server_type_name == "RSPrimary" for each in servers)
    return topology("ReplicaSetWithPrimary" if led else "ReplicaSetNoPrimary", *servers)


def beside_primary(**facts: Any) -> TopologyDescription:
    return replica_set(DB1, server("db2", **facts))


STALE = {"last_update": 500.0, "last_write": 380.0}
FAR = replica_set(server("db1", "RSPrimary", rtt=0.02), server("db2", rtt=0.12))
TAGGED = Secondary(tag_sets=[{"dc": "sf"}, {"dc": "ldn", "rack": "1"}])
R = SelectionRule
Case = tuple["TopologyDescription", Any, dict[str, Any], str, SelectionRule | None, str]
CASES: dict[str, Case] = {
    # name: (servers, selector, options, of which server, the rule that leaves it out, what is said)
    "primary": (replica_set(DB1), Primary(), {}, "db1", None, "primary, eligible"),
    "not checked yet": (
        replica_set(DB1, server("db2", "Unknown")), Primary(), {},
        "db2", R.AVAILABILITY, "unknown: not checked yet",
    ),
    "writes": (
        beside_primary(), writable_server_selector, {},
        "db2", R.MODE, "secondary, excluded: writes go to the primary",
    ),
    "mode": (beside_primary(), PrimaryPreferred(), {}, "db2", R.MODE, "mode primaryPreferred"),
    "mode, of the primary": (beside_primary(), Secondary(), {}, "db1", R.MODE, "mode secondary"),
    "the last resort": (
        beside_primary(), SecondaryPreferred(tag_sets=[{"dc": "ny"}]), {}, "db1", None, "eligible",
    ),
    "arbiter": (
        replica_set(DB1, server("db2", "RSArbiter")), Nearest(), {}, "db2", R.MODE, "arbiter",
    ),
    "ghost": (
        topology("Unknown", server("db1", "RSGhost")), Primary(), {},
        "db1", R.MODE, "the deployment is Unknown",
    ),
    "stale": (
        beside_primary(**STALE), Secondary(max_staleness=90), {},
        "db2", R.STALENESS, "stale by 130 s, allowed 90 s",
    ),
    "a little too stale": (
        beside_primary(last_update=500.0, last_write=419.96), Nearest(max_staleness=90), {},
        "db2", R.STALENESS, "stale by 90.1 s",
    ),
    "stale, without a primary": (
        replica_set(server("db2", last_write=380.0), server("db3", last_write=500.0)),
        Secondary(max_staleness=90), {}, "db2", R.STALENESS, "130 s",
    ),
    "tags": (
        beside_primary(tags={"dc": "ny", "rack": 2}), TAGGED, {},
        "db2", R.TAGS, "tags {dc: ny, rack: 2}, wanted {dc: sf}, else {dc: ldn, rack: 1}",
    ),
    "the application": (
        beside_primary(), Secondary(), {"own": lambda _: ()},
        "db2", R.APPLICATION, "server selector",
    ),
    "a breaker": (
        replica_set(DB1, server("db2"), server("db3")), Secondary(),
        {"breakers": {("db2", 27017): 3.2}},
        "db2", R.CIRCUIT_BREAKER, "circuit breaker open, next probe in 3.2 s",
    ),
    "the latency window": (
        FAR, Nearest(), {"threshold": 0.015},
        "db2", R.LATENCY, "round-trip time 120 ms, the latency window ends at 35 ms",
    ),
    "the first rule of several": (
        replica_set(DB1, server("db2", last_update=500.0, last_write=1.0, rtt=9.0)),
        Secondary(tag_sets=[{"dc": "ny"}, {}], max_staleness=90), {"threshold": 0.015},
        "db2", R.STALENESS, "stale",
    ),
    "bound": (
        replica_set(DB1), any_server_selector, {}, "db1", R.BOUND, "bound to another server",
    ),
    "one address": (topology("Single", DB1), any_server_selector, {}, "db1", None, "eligible"),
    "a load balancer": (
        topology("LoadBalanced", DB1), any_server_selector, {}, "db1", None, "eligible",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_rule_that_leaves_a_server_out(name: str) -> None:
    described, selector, options, host, rule, said = CASES[name]
    verdicts = _verdicts(described, None, selector, **{"own": None, **options})
    (verdict,) = [each for each in verdicts if each.address.startswith(host)]
    assert (verdict.excluded_by, verdict.eligible) == (rule, rule is None)
    assert verdict.text.startswith(f"{verdict.address} ")
    assert said in verdict.text


def test_a_server_that_cannot_be_reached_has_the_age_of_its_error() -> None:
    refused = AutoReconnect("db3:27017: connection refused")
    absent = server("db3", "Unknown", error=refused, last_update=csot.now() - 2.11)
    verdict = _verdicts(replica_set(DB1, absent), None, Primary(), own=None)[1]
    assert re.search(r" unknown: connection refused 2\.\d s ago$", verdict.text)


HOSTS = ("db1", "db2", "db3", "db4")
KINDS = ["RSSecondary"] * 5 + ["RSArbiter", "RSGhost", "RSOther", "Unknown"]
TAGS = st.dictionaries(st.sampled_from("xy"), st.sampled_from("12"), max_size=2)


@st.composite
def deployments(draw: st.DrawFn) -> TopologyDescription:
    kind = draw(st.sampled_from(["Sharded", "ReplicaSetNoPrimary", "ReplicaSetWithPrimary"]))
    kinds = ["Mongos", "Unknown"] if kind == "Sharded" else KINDS
    servers = [
        server(
            host,
            "RSPrimary"
            if host == "db1" and kind == "ReplicaSetWithPrimary"
            else draw(st.sampled_from(kinds)),
            tags=draw(TAGS),
            last_write=1000 - draw(st.sampled_from([0, 80, 100, 150])),
            last_update=1000,
            rtt=draw(st.sampled_from([0, 8, 16, 17])) / 1024,
        )
        for host in HOSTS
    ]
    return topology(kind, *servers, threshold_ms=16000 / 1024)


@st.composite
def selectors(draw: st.DrawFn) -> Any:
    mode = draw(st.integers(0, 4))
    if mode == 0:
        return draw(st.sampled_from([Primary(), writable_server_selector]))
    tag_sets = draw(st.none() | st.lists(TAGS, min_size=1, max_size=3))
    return make_read_preference(mode, tag_sets, draw(st.sampled_from([-1, 90, 110])))


@settings(max_examples=scaled(200))
@given(described=deployments(), selector=selectors(), refused=st.sets(st.sampled_from(HOSTS)))
def test_who_is_eligible_is_who_the_driver_would_choose_from(
    described: TopologyDescription, selector: Any, refused: set[str]
) -> None:
    def own(servers: Any) -> list[Any]:
        return [each for each in servers if each.address[0] not in refused]

    verdicts = _verdicts(described, None, selector, own=own, threshold=16 / 1024)
    eligible = [each.address.removesuffix(":27017") for each in verdicts if each.eligible]
    assert eligible == found(described, selector, own)
