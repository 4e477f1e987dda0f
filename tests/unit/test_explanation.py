"""What is said of each server, for each rule that can leave it out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.engine.topologies import primary, reading, replica_set, secondary, server, unknown

from pymongo_resilience.eligibility import Criteria, SelectionRule
from pymongo_resilience.explanation import explain
from pymongo_resilience.read_preference import Mode
from pymongo_resilience.server_description import (
    ServerDescription,
    ServerType,
    TopologyDescription,
    TopologyType,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

DB1 = primary("db1:27017", last_update=500.0, last_write=500.0)
NOW = {"last_update": 500.0, "last_write": 500.0}


def said_of(name: str, topology: TopologyDescription, criteria: Criteria) -> str:
    [text] = [str(v) for v in explain(topology, criteria) if v.address.startswith(name)]
    return text


def beside_primary(server: ServerDescription, criteria: Criteria) -> str:
    return said_of("db2", replica_set(DB1, server), criteria)


def test_who_may_be_chosen() -> None:
    [verdict] = explain(replica_set(DB1), Criteria())
    assert (verdict.eligible, verdict.excluded_by) == (True, None)
    assert str(verdict) == "db1:27017 primary, eligible"


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({}, "not checked yet"),
        ({"error": "connection refused", "error_age": 2.11}, "connection refused 2.1 s ago"),
        ({"error": "connection refused"}, "connection refused"),
    ],
)
def test_who_is_not_there(known: dict[str, object], said: str) -> None:
    topology = replica_set(DB1, unknown("db3:27017", **known))
    assert said_of("db3", topology, Criteria()) == f"db3:27017 unknown: {said}"


def test_who_may_have_become_primary() -> None:
    other = server("db2:27017", ServerType.POSSIBLE_PRIMARY)
    assert beside_primary(other, Criteria()) == "db2:27017 possible primary: not checked yet"


@pytest.mark.parametrize(
    ("criteria", "why"),
    [
        (Criteria(write=True), "writes go to the primary"),
        (Criteria(), "mode primary"),
        (reading(Mode.PRIMARY_PREFERRED), "mode primaryPreferred, and a primary is there"),
    ],
)
def test_secondaries_that_the_mode_leaves_out(criteria: Criteria, why: str) -> None:
    said = beside_primary(secondary("db2:27017"), criteria)
    assert said == f"db2:27017 secondary, excluded: {why}"


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        (Mode.SECONDARY, "mode secondary"),
        (Mode.SECONDARY_PREFERRED, "mode secondaryPreferred, and a secondary is eligible"),
    ],
)
def test_a_primary_that_the_mode_leaves_out(mode: Mode, why: str) -> None:
    topology = replica_set(DB1, secondary("db2:27017"))
    assert said_of("db1", topology, reading(mode)) == f"db1:27017 primary, excluded: {why}"


def test_members_that_are_never_read_from() -> None:
    said = beside_primary(server("db2:27017", ServerType.ARBITER), reading(Mode.NEAREST))
    assert said == "db2:27017 arbiter, excluded: neither primary nor secondary"


@pytest.mark.parametrize(
    ("type_", "why"),
    [
        (TopologyType.UNKNOWN, "what the deployment is, is not known yet"),
        (TopologyType.SHARDED, "the deployment is Sharded"),
    ],
)
def test_servers_that_do_not_belong_to_the_deployment(type_: TopologyType, why: str) -> None:
    topology = TopologyDescription(type_, (server("db1:27017", ServerType.GHOST),))
    assert said_of("db1", topology, Criteria()) == f"db1:27017 ghost, excluded: {why}"


@pytest.mark.parametrize(
    ("written", "why"),
    [
        (380.0, "stale by 130 s, allowed 90 s"),
        (419.96, "stale by 90.1 s, allowed 90 s"),
        (None, "staleness unknown, allowed 90 s"),
    ],
)
@pytest.mark.parametrize("mode", [Mode.SECONDARY, Mode.SECONDARY_PREFERRED, Mode.NEAREST])
def test_who_is_too_stale(written: float | None, why: str, mode: Mode) -> None:
    late = secondary("db2:27017", last_update=500.0, last_write=written)
    said = beside_primary(late, reading(mode, max_staleness=90))
    assert said == f"db2:27017 secondary, excluded: {why}"


def test_who_has_the_wrong_tags() -> None:
    tagged = secondary("db2:27017", tags={"dc": "ny", "rack": 2})
    asked = reading(Mode.SECONDARY, {"dc": "sf"}, {"dc": "ldn", "rack": "1"})
    assert beside_primary(tagged, asked) == (
        "db2:27017 secondary, excluded: tags {dc: ny, rack: 2}, "
        "wanted {dc: sf} or {dc: ldn, rack: 1}"
    )


def test_whose_tags_come_later() -> None:
    topology = replica_set(
        DB1, secondary("db2:27017", tags={"dc": "ldn"}), secondary("db3:27017", tags={"dc": "ny"})
    )
    assert said_of("db2", topology, reading(Mode.SECONDARY, {"dc": "ny"}, {"dc": "ldn"})) == (
        "db2:27017 secondary, excluded: tags {dc: ldn}, another server matches an earlier tag set"
    )


def test_who_failed_just_now() -> None:
    topology = replica_set(DB1, secondary("db2:27017"), secondary("db3:27017"))
    said = said_of("db2", topology, reading(Mode.SECONDARY, deprioritized={"db2:27017"}))
    assert said == "db2:27017 secondary, excluded: deprioritized, another server can serve"


def test_where_only_servers_that_failed_are_left_none_is_excluded() -> None:
    said = beside_primary(
        secondary("db2:27017"), reading(Mode.SECONDARY, deprioritized={"db2:27017"})
    )
    assert said == "db2:27017 secondary, eligible"


def test_whom_the_application_does_not_want() -> None:
    def nobody(servers: list[ServerDescription]) -> Iterable[ServerDescription]:
        return ()

    said = beside_primary(secondary("db2:27017"), reading(Mode.SECONDARY, server_selector=nobody))
    assert said == ("db2:27017 secondary, excluded: left out by the application's server selector")


def test_whose_breaker_is_open() -> None:
    topology = replica_set(DB1, secondary("db2:27017"), secondary("db3:27017"))
    asked = reading(Mode.SECONDARY, open_breakers={"db2:27017": 3.2})
    said = said_of("db2", topology, asked)
    assert said == "db2:27017 secondary, excluded: circuit breaker open, next probe in 3.2 s"


def test_an_open_breaker_is_told_of_the_only_server_as_well() -> None:
    said = beside_primary(
        secondary("db2:27017"), reading(Mode.SECONDARY, open_breakers={"db2:27017": 3.0})
    )
    assert said == "db2:27017 secondary, eligible, circuit breaker open, next probe in 3 s"


def test_who_is_too_far_away() -> None:
    topology = replica_set(
        primary("db1:27017", average_rtt=0.02),
        secondary("db2:27017", average_rtt=0.12),
        secondary("db3:27017"),
    )
    assert said_of("db2", topology, reading(Mode.NEAREST)) == (
        "db2:27017 secondary, excluded: round-trip time 120 ms, the latency window ends at 35 ms"
    )
    assert said_of("db3", topology, reading(Mode.NEAREST)) == (
        "db3:27017 secondary, excluded: no round-trip time measured yet"
    )


def test_the_rule_that_excluded_a_server_is_the_first_that_did() -> None:
    late_and_far = secondary("db2:27017", last_update=500.0, last_write=1.0, average_rtt=9.0)
    topology = replica_set(DB1, late_and_far, secondary("db3:27017", average_rtt=0.1, **NOW))
    asked = reading(
        Mode.SECONDARY, {"dc": "ny"}, {}, max_staleness=90, open_breakers={"db2:27017": 1.0}
    )
    verdicts = {each.address[:3]: each.excluded_by for each in explain(topology, asked)}
    assert verdicts == {"db1": SelectionRule.MODE, "db2": SelectionRule.STALENESS, "db3": None}


def test_who_is_there_while_the_operation_is_bound_to_another() -> None:
    topology = replica_set(DB1, unknown("db3:27017"))
    verdicts = explain(topology, Criteria(bound_elsewhere=True))
    assert [(str(each), each.excluded_by) for each in verdicts] == [
        (
            "db1:27017 primary, excluded: the operation is bound to another server",
            SelectionRule.BOUND,
        ),
        ("db3:27017 unknown: not checked yet", SelectionRule.AVAILABILITY),
    ]


@pytest.mark.parametrize("kind", [TopologyType.SINGLE, TopologyType.LOAD_BALANCED])
def test_where_there_is_one_address_every_operation_is_bound_to_it(kind: TopologyType) -> None:
    (verdict,) = explain(TopologyDescription(kind, (DB1,)), Criteria(bound_elsewhere=True))
    assert verdict.eligible
