"""Servers and topologies, as the tests of server selection describe them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from pymongo_resilience.server_choice.eligibility import (
    PRIMARY,
    Criteria,
    Decision,
    Mode,
    ReadPreference,
    SelectionRule,
)
from pymongo_resilience.server_choice.server_description import (
    REPLICA_SETS,
    ServerDescription,
    ServerType,
    TopologyDescription,
    TopologyType,
)

NOW = 1_000.0
"""When every server of ``any_servers`` was checked, and the newest write there can be."""
TICK = 1 / 1024
"""Times of whole ticks add up exactly, and a few of them meet the limits of what is asked."""


def server(address: str, type_: ServerType, **facts: Any) -> ServerDescription:
    return ServerDescription(address, type_, **facts)


def primary(address: str, **facts: Any) -> ServerDescription:
    return server(address, ServerType.PRIMARY, **facts)


def secondary(address: str, **facts: Any) -> ServerDescription:
    return server(address, ServerType.SECONDARY, **facts)


def unknown(address: str, **facts: Any) -> ServerDescription:
    return server(address, ServerType.UNKNOWN, **facts)


def replica_set(*servers: ServerDescription, **facts: Any) -> TopologyDescription:
    """Servers that are one replica set; of which type tells whether there is a primary."""
    led = any(each.type is ServerType.PRIMARY for each in servers)
    type_ = TopologyType.REPLICA_SET_WITH_PRIMARY if led else TopologyType.REPLICA_SET_NO_PRIMARY
    return TopologyDescription(type_, servers, **facts)


def reading(mode: Mode, *tag_sets: dict[str, str], **criteria: Any) -> Criteria:
    """A read with this mode; ``max_staleness`` belongs to its read preference."""
    staleness = criteria.pop("max_staleness", None)
    preference = ReadPreference(mode, tag_sets or ({},), staleness)
    return Criteria(read_preference=preference, **criteria)


ADDRESSES = tuple(f"db{number}:27017" for number in range(6))
TAGS = st.dictionaries(st.sampled_from("xy"), st.sampled_from("12"), max_size=2)
_TYPES = {
    TopologyType.UNKNOWN: [ServerType.UNKNOWN, ServerType.GHOST],
    TopologyType.SINGLE: list(ServerType),
    TopologyType.LOAD_BALANCED: [ServerType.LOAD_BALANCER],
    TopologyType.SHARDED: [ServerType.MONGOS, ServerType.UNKNOWN],
}
_MEMBERS = [
    *[ServerType.SECONDARY] * 10,  # what most members of a set are
    ServerType.ARBITER,
    ServerType.GHOST,
    ServerType.OTHER,
    ServerType.POSSIBLE_PRIMARY,
    ServerType.UNKNOWN,
]
ALONE = {TopologyType.SINGLE, TopologyType.LOAD_BALANCED}


SETS = sorted(REPLICA_SETS, key=lambda each: each.value)  # a set's order is another in every run


@st.composite
def topologies(draw: st.DrawFn) -> TopologyDescription:
    """A deployment of any type, with the servers that it may have."""
    type_ = draw(st.sampled_from([*TopologyType, *SETS * 4]))
    number = 1 if type_ in ALONE else draw(st.sampled_from([0, 1, *[3, len(ADDRESSES)] * 3]))
    kinds = draw(
        st.lists(st.sampled_from(_TYPES.get(type_, _MEMBERS)), min_size=number, max_size=number)
    )
    if type_ is TopologyType.REPLICA_SET_WITH_PRIMARY:
        kinds = [ServerType.PRIMARY, *kinds[1:]]
    servers = [
        ServerDescription(
            address,
            kind,
            tags=draw(TAGS),
            last_write=NOW - draw(st.sampled_from([0, 80, 100, 150])),
            last_update=NOW,
            average_rtt=draw(st.sampled_from([0, 8, 16, 17])) * TICK,
        )
        for address, kind in zip(ADDRESSES, kinds, strict=False)
    ]
    return TopologyDescription(type_, tuple(draw(st.permutations(servers))))


def or_any(tag_sets: list[dict[str, str]]) -> list[dict[str, str]]:
    return [*tag_sets[:2], {}]


@st.composite
def read_preferences(draw: st.DrawFn) -> ReadPreference:
    """Any that is valid, wherever it is used."""
    mode = draw(st.sampled_from(Mode))
    if mode is Mode.PRIMARY:
        return PRIMARY
    tag_sets = draw(st.just([{}]) | st.lists(TAGS, max_size=3) | st.lists(TAGS).map(or_any))
    return ReadPreference(mode, tag_sets, draw(st.none() | st.sampled_from([90, 110])))


some = st.just(set[str]()) | st.sets(st.sampled_from(ADDRESSES), max_size=3)


@st.composite
def any_criteria(draw: st.DrawFn) -> Criteria:
    """What an operation may ask; half of them with a selector of the application."""
    refused = draw(st.none() | some)
    return Criteria(
        write=draw(st.integers(0, 3)) == 0,
        read_preference=draw(read_preferences()),
        deprioritized=draw(some),
        server_selector=None
        if refused is None
        else lambda servers: [each for each in servers if each.address not in refused],
        open_breakers=dict.fromkeys(draw(some), 1.5),
        local_threshold=16 * TICK,
    )


def suitable_of(decision: Decision) -> list[ServerDescription]:
    """What is left before the application's selector, the breakers and the latency window."""
    later = {
        SelectionRule.APPLICATION,
        SelectionRule.CIRCUIT_BREAKER,
        SelectionRule.LATENCY,
    }
    return [left for rule, left in decision.steps if rule not in later][-1]
