"""What is said of each server, for each rule that can leave it out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.engine.topologies import primary, reading, replica_set, secondary, server, unknown

from pymongo_resilience.server_choice.eligibility import (
    Criteria,
    Mode,
    SelectionRule,
    ServerVerdict,
    explain,
)
from pymongo_resilience.server_choice.server_description import (
    ServerDescription,
    ServerType,
    TopologyDescription,
    TopologyType,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

DB1 = primary("db1:27017", last_update=500.0, last_write=500.0)
NOW = {"last_update": 500.0, "last_write": 500.0}


def verdict_of(name: str, topology: TopologyDescription, criteria: Criteria) -> ServerVerdict:
    [verdict] = [v for v in explain(topology, criteria) if v.address.startswith(name)]
    return verdict


def beside_primary(server: ServerDescription, criteria: Criteria) -> ServerVerdict:
    return verdict_of("db2", replica_set(DB1, server), criteria)


def check(verdict: ServerVerdict, rule: SelectionRule | None, *facts: str) -> None:
    """What left the server out; and what one who reads about it is told: which, and the facts."""
    assert verdict.excluded_by is rule
    assert verdict.text.startswith(f"{verdict.address} ")
    assert [fact for fact in facts if fact not in verdict.text] == []


def test_who_may_be_chosen() -> None:
    [verdict] = explain(replica_set(DB1), Criteria())
    assert verdict.eligible
    check(verdict, None, "primary")


@pytest.mark.parametrize(
    ("known", "facts"),
    [
        ({}, []),
        ({"error": "connection refused", "error_age": 2.11}, ["connection refused", "2.1 s"]),
        ({"error": "connection refused"}, ["connection refused"]),
    ],
)
def test_who_is_not_there(known: dict[str, object], facts: list[str]) -> None:
    topology = replica_set(DB1, unknown("db3:27017", **known))
    verdict = verdict_of("db3", topology, Criteria())
    check(verdict, SelectionRule.AVAILABILITY, "unknown", *facts)


def test_who_may_have_become_primary() -> None:
    other = server("db2:27017", ServerType.POSSIBLE_PRIMARY)
    check(beside_primary(other, Criteria()), SelectionRule.AVAILABILITY, "possible primary")


@pytest.mark.parametrize(
    ("criteria", "fact"),
    [
        (Criteria(write=True), "writes"),
        (Criteria(), "mode primary"),
        (reading(Mode.PRIMARY_PREFERRED), "mode primaryPreferred"),
    ],
)
def test_secondaries_that_the_mode_leaves_out(criteria: Criteria, fact: str) -> None:
    check(beside_primary(secondary("db2:27017"), criteria), SelectionRule.MODE, "secondary", fact)


@pytest.mark.parametrize("mode", [Mode.SECONDARY, Mode.SECONDARY_PREFERRED])
def test_a_primary_that_the_mode_leaves_out(mode: Mode) -> None:
    topology = replica_set(DB1, secondary("db2:27017"))
    verdict = verdict_of("db1", topology, reading(mode))
    check(verdict, SelectionRule.MODE, "primary", f"mode {mode.value}")


def test_members_that_are_never_read_from() -> None:
    verdict = beside_primary(server("db2:27017", ServerType.ARBITER), reading(Mode.NEAREST))
    check(verdict, SelectionRule.MODE, "arbiter")


@pytest.mark.parametrize(
    ("type_", "fact"), [(TopologyType.UNKNOWN, "Unknown"), (TopologyType.SHARDED, "Sharded")]
)
def test_servers_that_do_not_belong_to_the_deployment(type_: TopologyType, fact: str) -> None:
    topology = TopologyDescription(type_, (server("db1:27017", ServerType.GHOST),))
    check(verdict_of("db1", topology, Criteria()), SelectionRule.MODE, "ghost", fact)


@pytest.mark.parametrize(
    ("written", "fact"), [(380.0, "130 s"), (419.96, "90.1 s"), (None, "unknown")]
)
@pytest.mark.parametrize("mode", [Mode.SECONDARY, Mode.SECONDARY_PREFERRED, Mode.NEAREST])
def test_who_is_too_stale(written: float | None, fact: str, mode: Mode) -> None:
    late = secondary("db2:27017", last_update=500.0, last_write=written)
    verdict = beside_primary(late, reading(mode, max_staleness=90))
    check(verdict, SelectionRule.STALENESS, fact, "90 s")


def test_who_has_the_wrong_tags() -> None:
    tagged = secondary("db2:27017", tags={"dc": "ny", "rack": 2})
    asked = reading(Mode.SECONDARY, {"dc": "sf"}, {"dc": "ldn", "rack": "1"})
    sets = ("{dc: ny, rack: 2}", "{dc: sf}", "{dc: ldn, rack: 1}")
    check(beside_primary(tagged, asked), SelectionRule.TAGS, *sets)


def test_whose_tags_come_later() -> None:
    topology = replica_set(
        DB1, secondary("db2:27017", tags={"dc": "ldn"}), secondary("db3:27017", tags={"dc": "ny"})
    )
    asked = reading(Mode.SECONDARY, {"dc": "ny"}, {"dc": "ldn"})
    check(verdict_of("db2", topology, asked), SelectionRule.TAGS, "{dc: ny}, else {dc: ldn}")


def test_who_failed_just_now() -> None:
    topology = replica_set(DB1, secondary("db2:27017"), secondary("db3:27017"))
    asked = reading(Mode.SECONDARY, deprioritized={"db2:27017"})
    check(verdict_of("db2", topology, asked), SelectionRule.DEPRIORITIZED, "deprioritized")


def test_where_only_servers_that_failed_are_left_none_is_excluded() -> None:
    asked = reading(Mode.SECONDARY, deprioritized={"db2:27017"})
    assert beside_primary(secondary("db2:27017"), asked).eligible


def test_whom_the_application_does_not_want() -> None:
    def nobody(servers: list[ServerDescription]) -> Iterable[ServerDescription]:
        return ()

    asked = reading(Mode.SECONDARY, server_selector=nobody)
    verdict = beside_primary(secondary("db2:27017"), asked)
    check(verdict, SelectionRule.APPLICATION, "server selector")


def test_whose_breaker_is_open() -> None:
    topology = replica_set(DB1, secondary("db2:27017"), secondary("db3:27017"))
    asked = reading(Mode.SECONDARY, open_breakers={"db2:27017": 3.2})
    verdict = verdict_of("db2", topology, asked)
    check(verdict, SelectionRule.CIRCUIT_BREAKER, "circuit breaker", "3.2 s")


def test_an_open_breaker_is_told_of_the_only_server_as_well() -> None:
    asked = reading(Mode.SECONDARY, open_breakers={"db2:27017": 3.0})
    check(beside_primary(secondary("db2:27017"), asked), None, "circuit breaker", " 3 s")


def test_who_is_too_far_away() -> None:
    topology = replica_set(
        primary("db1:27017", average_rtt=0.02),
        secondary("db2:27017", average_rtt=0.12),
        secondary("db3:27017"),
    )
    far, unmeasured = (verdict_of(name, topology, reading(Mode.NEAREST)) for name in ("db2", "db3"))
    check(far, SelectionRule.LATENCY, "120 ms", "35 ms")
    check(unmeasured, SelectionRule.LATENCY, "not measured")


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
    there, unknown_yet = explain(topology, Criteria(bound_elsewhere=True))
    check(there, SelectionRule.BOUND, "primary", "another server")
    check(unknown_yet, SelectionRule.AVAILABILITY, "unknown")


@pytest.mark.parametrize("kind", [TopologyType.SINGLE, TopologyType.LOAD_BALANCED])
def test_where_there_is_one_address_every_operation_is_bound_to_it(kind: TopologyType) -> None:
    (verdict,) = explain(TopologyDescription(kind, (DB1,)), Criteria(bound_elsewhere=True))
    assert verdict.eligible
