"""The engine's server selection and pymongo's, for the same deployments and the same questions.

These combine what the specification's tests have one by one. pymongo looks at the servers as with
the library, which measures staleness against the whole set. Left out is a selector of the
application where there is one server only: pymongo does not call it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from bson.datetime_ms import EPOCH_NAIVE
from hypothesis import event, given
from pymongo import server_selectors
from pymongo.hello import Hello
from pymongo.read_preferences import make_read_preference
from pymongo.server_description import ServerDescription as DriverServer
from pymongo.synchronous.settings import TopologySettings
from pymongo.topology_description import TOPOLOGY_TYPE, TopologyDescription as DriverTopology
from pymongo_resilience_instrumentation.retries import deprioritized
from support.engine.topologies import ALONE, any_criteria, topologies
from support.hostile_input import examples

from pymongo_resilience.server_choice.eligibility import Criteria, Mode, decide
from pymongo_resilience.server_choice.server_description import (
    ServerDescription,
    ServerType,
    TopologyDescription,
)

IN_A_SET = {"ok": 1, "setName": "rs"}
HELLOS: dict[ServerType, dict[str, Any]] = {
    ServerType.UNKNOWN: {},
    ServerType.POSSIBLE_PRIMARY: {},
    ServerType.STANDALONE: {"ok": 1},
    ServerType.MONGOS: {"ok": 1, "msg": "isdbgrid"},
    ServerType.PRIMARY: {**IN_A_SET, "isWritablePrimary": True},
    ServerType.SECONDARY: {**IN_A_SET, "secondary": True},
    ServerType.ARBITER: {**IN_A_SET, "arbiterOnly": True},
    ServerType.OTHER: IN_A_SET,
    ServerType.GHOST: {"ok": 1, "isreplicaset": True},
    ServerType.LOAD_BALANCER: {"ok": 1, "serviceId": "one"},
}
LOOK: Any = deprioritized.select.in_place_of(DriverTopology.apply_selector)
NUMBERS = {
    Mode.PRIMARY: 0,
    Mode.PRIMARY_PREFERRED: 1,
    Mode.SECONDARY: 2,
    Mode.SECONDARY_PREFERRED: 3,
    Mode.NEAREST: 4,
}


@examples(400)
@given(topology=topologies(), criteria=any_criteria())
def test_both_leave_the_same_servers(topology: TopologyDescription, criteria: Criteria) -> None:
    criteria = criteria._replace(open_breakers={})
    if topology.type in ALONE:
        criteria = criteria._replace(server_selector=None)
    ours = {each.address for each in decide(topology, criteria).in_window}
    event(f"{len(ours)} servers")
    assert ours == left_by_the_driver(topology, criteria)


def left_by_the_driver(topology: TopologyDescription, criteria: Criteria) -> set[str]:
    servers = {(each.address, 27017): in_the_driver(each) for each in topology.servers}
    settings = TopologySettings(
        heartbeat_frequency=int(topology.heartbeat_frequency),
        local_threshold_ms=criteria.local_threshold * 1000,
    )
    description = DriverTopology(
        getattr(TOPOLOGY_TYPE, topology.type.value), servers, "rs", None, None, settings
    )
    mark = deprioritized.avoid(tuple((each, 27017) for each in criteria.deprioritized), None)
    try:
        left = LOOK.__get__(description, DriverTopology)(
            selector(criteria),
            None,
            criteria.server_selector and refusing_the_same(criteria, topology),
        )
    finally:
        deprioritized.end(mark)
    return {each.address[0] for each in left}


def in_the_driver(server: ServerDescription) -> DriverServer:
    hello = {
        **HELLOS[server.type],
        "tags": server.tags,
        "lastWrite": {"lastWriteDate": EPOCH_NAIVE + timedelta(seconds=server.last_write or 0)},
    }
    described = DriverServer((server.address, 27017), Hello(hello), server.average_rtt)
    described._last_update_time = server.last_update
    return described


def selector(criteria: Criteria) -> Any:
    if criteria.write:
        return server_selectors.writable_server_selector
    preference = criteria.read_preference
    limit = preference.staleness_limit
    return make_read_preference(
        NUMBERS[preference.mode],
        list(preference.tag_sets) or None,
        -1 if limit is None else int(limit),
    )


def refusing_the_same(
    criteria: Criteria, topology: TopologyDescription
) -> Callable[[list[DriverServer]], list[DriverServer]]:
    def select(servers: list[DriverServer]) -> list[DriverServer]:
        asked = {each.address[0] for each in servers}
        ours = [each for each in topology.servers if each.address in asked]
        accepted = {each.address for each in criteria.server_selector(ours)}
        return [each for each in servers if each.address[0] in accepted]

    return select
