"""What is said of each server, for each rule that can leave it out."""

from __future__ import annotations

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

from pymongo_resilience.client_status import SelectionRule, ServerVerdict

if TYPE_CHECKING:
    from pymongo.server_description import ServerDescription
    from pymongo.topology_description import TopologyDescription

DB1 = server("db1", "RSPrimary", last_update=500.0, last_write=500.0)
NOW = {"last_update": 500.0, "last_write": 500.0}


def replica_set(*servers: ServerDescription) -> TopologyDescription:
    led = any(each.server_type_name == "RSPrimary" for each in servers)
    return topology("ReplicaSetWithPrimary" if led else "ReplicaSetNoPrimary", *servers)


def verdict_of(
    name: str, described: TopologyDescription, selector: Any, **options: Any
) -> ServerVerdict:
    verdicts = _verdicts(described, None, selector, own=options.pop("own", None), **options)
    [verdict] = [each for each in verdicts if each.address.startswith(name)]
    return verdict


def beside_primary(other: ServerDescription, selector: Any, **options: Any) -> ServerVerdict:
    return verdict_of("db2", replica_set(DB1, other), selector, **options)


def check(verdict: ServerVerdict, rule: SelectionRule | None, *facts: str) -> None:
    """What left the server out; and what one who reads about it is told: which, and the facts."""
    assert verdict.excluded_by is rule
    assert verdict.eligible is (rule is None)
    assert verdict.text.startswith(f"{verdict.address} ")
    assert [fact for fact in facts if fact not in verdict.text] == []


def test_who_may_be_chosen() -> None:
    check(verdict_of("db1", replica_set(DB1), Primary()), None, "primary")


@pytest.mark.parametrize(
    ("error", "facts"),
    [
        (None, "unknown: not checked yet"),
        (AutoReconnect("db3:27017: connection refused"), "unknown: connection refused 2.1 s ago"),
    ],
)
def test_who_is_not_there(error: Exception | None, facts: str) -> None:
    absent = server("db3", "Unknown", error=error, last_update=csot.now() - 2.11)
    verdict = verdict_of("db3", replica_set(DB1, absent), Primary())
    check(verdict, SelectionRule.AVAILABILITY, facts)


@pytest.mark.parametrize(
    ("selector", "fact"),
    [
        (writable_server_selector, "writes go to the primary"),
        (Primary(), "mode primary"),
        (PrimaryPreferred(), "mode primaryPreferred"),
    ],
)
def test_secondaries_that_the_mode_leaves_out(selector: Any, fact: str) -> None:
    check(beside_primary(server("db2"), selector), SelectionRule.MODE, "secondary", fact)


@pytest.mark.parametrize("preference", [Secondary(), SecondaryPreferred()])
def test_a_primary_that_the_mode_leaves_out(preference: Any) -> None:
    verdict = verdict_of("db1", replica_set(DB1, server("db2")), preference)
    check(verdict, SelectionRule.MODE, "primary", f"mode {preference.mongos_mode}")


def test_a_primary_is_the_last_resort_of_secondary_preferred() -> None:
    asked = SecondaryPreferred(tag_sets=[{"dc": "ny"}])
    described = replica_set(DB1, server("db2"))
    check(verdict_of("db1", described, asked), None, "primary")
    check(verdict_of("db2", described, asked), SelectionRule.TAGS)


def test_members_that_are_never_read_from() -> None:
    check(beside_primary(server("db2", "RSArbiter"), Nearest()), SelectionRule.MODE, "arbiter")


def test_servers_that_do_not_belong_to_the_deployment() -> None:
    described = topology("Unknown", server("db1", "RSGhost"))
    check(verdict_of("db1", described, Primary()), SelectionRule.MODE, "ghost", "Unknown")


@pytest.mark.parametrize(("written", "fact"), [(380.0, "130 s"), (419.96, "90.1 s")])
@pytest.mark.parametrize("preference", [Secondary, SecondaryPreferred, Nearest])
def test_who_is_too_stale(written: float, fact: str, preference: Any) -> None:
    late = server("db2", last_update=500.0, last_write=written)
    verdict = beside_primary(late, preference(max_staleness=90))
    check(verdict, SelectionRule.STALENESS, fact, "90 s")


def test_without_a_primary_the_newest_write_counts() -> None:
    late, fresh = server("db2", last_write=380.0), server("db3", last_write=500.0)
    verdict = verdict_of("db2", replica_set(late, fresh), Secondary(max_staleness=90))
    check(verdict, SelectionRule.STALENESS, "130 s", "90 s")


def test_who_has_the_wrong_tags() -> None:
    asked = Secondary(tag_sets=[{"dc": "sf"}, {"dc": "ldn", "rack": "1"}])
    verdict = beside_primary(server("db2", tags={"dc": "ny", "rack": 2}), asked)
    sets = ("{dc: ny, rack: 2}", "{dc: sf}, else {dc: ldn, rack: 1}")
    check(verdict, SelectionRule.TAGS, *sets)


def test_whom_the_application_does_not_want() -> None:
    verdict = beside_primary(server("db2"), Secondary(), own=lambda _: ())
    check(verdict, SelectionRule.APPLICATION, "server selector")


def test_whose_breaker_is_open() -> None:
    described = replica_set(DB1, server("db2"), server("db3"))
    verdict = verdict_of("db2", described, Secondary(), breakers={("db2", 27017): 3.2})
    check(verdict, SelectionRule.CIRCUIT_BREAKER, "circuit breaker", "3.2 s")


def test_who_is_too_far_away() -> None:
    near, far = server("db1", "RSPrimary", rtt=0.02), server("db2", rtt=0.12)
    verdict = verdict_of("db2", replica_set(near, far), Nearest(), threshold=0.015)
    check(verdict, SelectionRule.LATENCY, "120 ms", "35 ms")


def test_the_rule_that_excluded_a_server_is_the_first_that_did() -> None:
    late_and_far = server("db2", last_update=500.0, last_write=1.0, rtt=9.0)
    described = replica_set(DB1, late_and_far, server("db3", **NOW))
    asked = Secondary(tag_sets=[{"dc": "ny"}, {}], max_staleness=90)
    breakers = {("db2", 27017): 1.0}
    verdicts = _verdicts(described, None, asked, own=None, breakers=breakers, threshold=0.015)
    assert [each.excluded_by for each in verdicts] == [
        SelectionRule.MODE, SelectionRule.STALENESS, None,
    ]  # fmt: skip


def test_who_is_there_while_the_operation_is_bound_to_another() -> None:
    described = replica_set(DB1, server("db3", "Unknown"))
    there, unknown_yet = _verdicts(described, None, any_server_selector, own=None)
    check(there, SelectionRule.BOUND, "primary", "another server")
    check(unknown_yet, SelectionRule.AVAILABILITY, "unknown")


@pytest.mark.parametrize("kind", ["Single", "LoadBalanced"])
def test_where_there_is_one_address_every_operation_is_bound_to_it(kind: str) -> None:
    (verdict,) = _verdicts(topology(kind, DB1), None, any_server_selector, own=None)
    assert verdict.eligible


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
