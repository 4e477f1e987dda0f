"""Which servers the rules leave, and in which order they are applied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.engine.topologies import (
    primary,
    reading,
    replica_set,
    secondary,
    server,
    suitable_of,
    unknown,
)

from pymongo_resilience.server_choice.eligibility import (
    LOCAL_THRESHOLD,
    Criteria,
    Mode,
    decide,
    in_latency_window,
    without_open_breakers,
)
from pymongo_resilience.server_choice.server_description import (
    ServerDescription,
    ServerType,
    TopologyDescription,
    TopologyType,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

NEW_YORK, LONDON = {"dc": "ny"}, {"dc": "ldn"}
STALE = {"last_update": 1000.0, "last_write": 800.0}
FRESH = {"last_update": 1000.0, "last_write": 1000.0}
MEMBERS = replica_set(primary("a"), secondary("b"), secondary("c"), unknown("d"))
LEADERLESS = replica_set(secondary("b"), secondary("c"), unknown("d"))


def addresses(servers: Iterable[ServerDescription]) -> str:
    return "".join(sorted(each.address for each in servers))


def left(topology: TopologyDescription, criteria: Criteria) -> str:
    return addresses(decide(topology, criteria).in_window)


@pytest.mark.parametrize(
    ("mode", "with_primary", "without"),
    [
        (Mode.PRIMARY, "a", ""),
        (Mode.PRIMARY_PREFERRED, "a", "bc"),
        (Mode.SECONDARY, "bc", "bc"),
        (Mode.SECONDARY_PREFERRED, "bc", "bc"),
        (Mode.NEAREST, "abc", "bc"),
    ],
)
def test_the_five_modes(mode: Mode, with_primary: str, without: str) -> None:
    assert left(MEMBERS, reading(mode)) == with_primary
    assert left(LEADERLESS, reading(mode)) == without


def test_writes_ignore_the_read_preference() -> None:
    asked = reading(Mode.SECONDARY, LONDON, max_staleness=1, write=True)
    assert left(MEMBERS, asked) == "a"
    assert left(LEADERLESS, asked) == ""


def test_without_a_secondary_the_primary_is_good_enough() -> None:
    alone = replica_set(primary("a"), unknown("b"))
    assert left(alone, reading(Mode.SECONDARY_PREFERRED, LONDON)) == "a"
    assert left(alone, reading(Mode.SECONDARY)) == ""


@pytest.mark.parametrize(
    ("topology", "type_", "suitable"),
    [
        (TopologyType.UNKNOWN, ServerType.GHOST, False),
        (TopologyType.SINGLE, ServerType.UNKNOWN, False),
        (TopologyType.SINGLE, ServerType.ARBITER, True),
        (TopologyType.SHARDED, ServerType.MONGOS, True),
        (TopologyType.SHARDED, ServerType.STANDALONE, False),
        (TopologyType.LOAD_BALANCED, ServerType.LOAD_BALANCER, True),
    ],
    ids=lambda each: getattr(each, "name", None),
)
@pytest.mark.parametrize("write", [False, True])
def test_without_replication_no_preference_counts(
    topology: TopologyType, type_: ServerType, suitable: bool, write: bool
) -> None:
    deployment = TopologyDescription(topology, (server("a", type_),))
    asked = reading(Mode.SECONDARY, LONDON, max_staleness=1, write=write)
    assert left(deployment, asked) == ("a" if suitable else "")


def test_staleness_is_applied_before_tags() -> None:
    topology = replica_set(
        primary("a", **FRESH),
        secondary("b", tags=NEW_YORK, **STALE),
        secondary("c", tags=LONDON, **FRESH),
    )
    assert left(topology, reading(Mode.SECONDARY, NEW_YORK, LONDON, max_staleness=120)) == "c"


def test_who_is_as_stale_as_allowed_is_eligible() -> None:
    late = secondary("b", last_update=1000.0, last_write=900.0)
    topology = replica_set(primary("a", **FRESH), late)
    assert left(topology, reading(Mode.SECONDARY, max_staleness=110)) == "b"
    assert left(topology, reading(Mode.SECONDARY, max_staleness=109)) == ""


def test_of_the_tag_sets_the_first_that_matches_a_server_counts() -> None:
    both = {**NEW_YORK, "rack": "2"}
    topology = replica_set(secondary("a", tags=LONDON), secondary("b", tags=both), secondary("c"))
    assert left(topology, reading(Mode.NEAREST, {"rack": "9"}, NEW_YORK, LONDON)) == "b"
    assert left(topology, reading(Mode.NEAREST, {"rack": "9"}, {})) == "abc"
    assert left(topology, reading(Mode.NEAREST, {"rack": "9"})) == ""


def test_tags_of_the_primary_do_not_matter_where_it_is_the_last_resort() -> None:
    topology = replica_set(primary("a", tags=NEW_YORK), secondary("b", tags=LONDON))
    assert left(topology, reading(Mode.SECONDARY_PREFERRED, NEW_YORK, LONDON)) == "b"
    assert left(topology, reading(Mode.PRIMARY_PREFERRED, LONDON)) == "a"
    assert left(topology, reading(Mode.NEAREST, LONDON)) == "b"


def test_what_has_no_date_of_its_last_write_may_be_too_stale() -> None:
    topology = replica_set(primary("a", **FRESH), secondary("b"), secondary("c", **FRESH))
    assert left(topology, reading(Mode.NEAREST, max_staleness=90)) == "ac"


def test_deprioritized_servers_are_the_last() -> None:
    assert left(MEMBERS, reading(Mode.SECONDARY, deprioritized={"b"})) == "c"
    assert left(MEMBERS, reading(Mode.SECONDARY, deprioritized={"b", "c"})) == "bc"
    assert left(MEMBERS, reading(Mode.SECONDARY_PREFERRED, deprioritized={"b", "c"})) == "a"
    assert left(MEMBERS, Criteria(write=True, deprioritized={"a"})) == "a"


def test_a_deprioritized_server_matches_no_tag_set_for_the_others() -> None:
    topology = replica_set(secondary("a", tags=NEW_YORK), secondary("b", tags=LONDON))
    asked = reading(Mode.SECONDARY, NEW_YORK, LONDON, deprioritized=["a"])
    assert left(topology, asked) == "b"


def test_avoiding_a_server_makes_no_other_one_fresher() -> None:
    # pymongo 4.20 measures against the servers that are left, and would read from b here: its
    # TopologyDescription.apply_selector takes the primary from the candidates.
    topology = replica_set(primary("a", **FRESH), secondary("b", **STALE))
    asked = reading(Mode.PRIMARY_PREFERRED, max_staleness=120, deprioritized=["a"])
    assert left(topology, asked) == "a"


def test_the_application_chooses_among_the_suitable_servers() -> None:
    seen: list[str] = []

    def select_first(servers: list[ServerDescription]) -> list[ServerDescription]:
        seen.append(addresses(servers))
        return [servers.pop(0), server("z", ServerType.SECONDARY)]

    asked = reading(Mode.SECONDARY, server_selector=select_first)
    decision = decide(MEMBERS, asked)
    assert (seen, addresses(decision.in_window)) == (["bc"], "b")
    assert addresses(suitable_of(decision)) == "bc"


def test_the_application_is_asked_before_the_latency_window_and_the_breakers() -> None:
    far = replica_set(secondary("a", average_rtt=0.001), secondary("b", average_rtt=0.9))
    refuse_near = reading(
        Mode.NEAREST,
        server_selector=lambda servers: [each for each in servers if each.address == "b"],
        open_breakers={"b": 1.0},
    )
    assert left(far, refuse_near) == "b"


def test_the_application_is_not_asked_about_nobody() -> None:
    def never(servers: list[ServerDescription]) -> Any:
        raise AssertionError(servers)

    assert left(LEADERLESS, Criteria(server_selector=never)) == ""


def test_open_breakers_leave_servers_out_while_there_is_another() -> None:
    servers = list(MEMBERS.servers)
    assert addresses(without_open_breakers(servers, {"b": 1.0})) == "acd"
    assert without_open_breakers(servers, dict.fromkeys("abcd", 1.0)) == servers
    assert left(MEMBERS, reading(Mode.SECONDARY, open_breakers={"b": 1.0})) == "c"


def test_the_latency_window_includes_its_end() -> None:
    servers = [
        secondary(name, average_rtt=rtt) for name, rtt in zip("abc", [2, 3, 3.5], strict=True)
    ]
    assert addresses(in_latency_window(servers, 1)) == "ab"
    assert addresses(in_latency_window(servers, 0)) == "a"
    assert LOCAL_THRESHOLD == 0.015


def test_who_was_not_measured_yet_waits_while_another_one_was() -> None:
    servers = [secondary("a"), secondary("b", average_rtt=9.0)]
    assert addresses(in_latency_window(servers, 0.015)) == "b"
    assert in_latency_window(servers[:1], 0.015) == servers[:1]
    assert in_latency_window([], 0.015) == []


def test_a_maximum_staleness_that_cannot_be_measured_is_refused() -> None:
    asked = reading(Mode.NEAREST, max_staleness=89)
    with pytest.raises(ValueError, match="at least 90"):
        decide(MEMBERS, asked)
