"""Why a server may be chosen, or which rule left it out: one line for each server.

Read off the steps of a decision; nothing is decided here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .eligibility import (
    Criteria,
    Decision,
    Mode,
    SelectionRule,
    decide,
    latency_window_end,
    matches,
    staleness,
)
from .server_description import (
    REPLICA_SETS,
    ServerDescription,
    ServerType,
    TopologyDescription,
    TopologyType,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES: Final = {
    ServerType.UNKNOWN: "unknown",
    ServerType.POSSIBLE_PRIMARY: "possible primary",
    ServerType.STANDALONE: "standalone",
    ServerType.MONGOS: "mongos",
    ServerType.PRIMARY: "primary",
    ServerType.SECONDARY: "secondary",
    ServerType.ARBITER: "arbiter",
    ServerType.OTHER: "other member",
    ServerType.GHOST: "ghost",
    ServerType.LOAD_BALANCER: "load balancer",
}


@dataclass(frozen=True, slots=True)
class ServerVerdict:
    """What became of one server in a selection, and why."""

    address: str
    excluded_by: SelectionRule | None
    """None for a server that may be chosen."""
    text: str

    @property
    def eligible(self) -> bool:
        return self.excluded_by is None

    def __str__(self) -> str:
        return self.text


def explain(topology: TopologyDescription, criteria: Criteria) -> tuple[ServerVerdict, ...]:
    """Every server of the topology, in its order. Raises what ``decide`` raises."""
    decision = decide(topology, criteria)
    excluded: dict[str, SelectionRule] = {}
    present = {server.address for server in decision.topology.servers}
    for rule, left in decision.steps:
        still_present = {server.address for server in left}
        excluded.update(dict.fromkeys(present - still_present, rule))
        present = still_present
    return tuple(
        _verdict(each, excluded.get(each.address), decision) for each in decision.topology.servers
    )


def _verdict(
    server: ServerDescription, rule: SelectionRule | None, decision: Decision
) -> ServerVerdict:
    start = f"{server.address} {_NAMES[server.type]}"
    if rule is SelectionRule.AVAILABILITY:
        return ServerVerdict(server.address, rule, f"{start}: {_last_error(server)}")
    if rule is not None:
        return ServerVerdict(
            server.address, rule, f"{start}, excluded: {_why(rule, server, decision)}"
        )
    # Open breakers exclude no server where every breaker is open.
    is_open = server.address in decision.criteria.open_breakers
    note = f", {_breaker(server, decision)}" if is_open else ""
    return ServerVerdict(server.address, None, f"{start}, eligible{note}")


def _why(rule: SelectionRule, server: ServerDescription, decision: Decision) -> str:
    match rule:
        case SelectionRule.BOUND:
            return "the operation is bound to another server"
        case SelectionRule.DEPRIORITIZED:
            return "deprioritized, another server can serve"
        case SelectionRule.STALENESS:
            return _stale(server, decision)
        case SelectionRule.TAGS:
            return _tags(server, decision)
        case SelectionRule.APPLICATION:
            return "removed by the application's server selector"
        case SelectionRule.CIRCUIT_BREAKER:
            return _breaker(server, decision)
        case SelectionRule.LATENCY:
            return _far(server, decision)
        case _:
            return _mode(server, decision)


def _last_error(server: ServerDescription) -> str:
    if server.error is None:
        return server.check or "not checked yet"
    if server.error_age is None:
        return server.error
    return f"{server.error} {server.error_age:.1f} s ago"


def _mode(server: ServerDescription, decision: Decision) -> str:
    topology, criteria = decision.topology.type, decision.criteria
    if topology is TopologyType.UNKNOWN:
        return "the type of the deployment is not known yet"
    if topology not in REPLICA_SETS:
        return f"the deployment is {topology.value}"
    if server.type not in {ServerType.PRIMARY, ServerType.SECONDARY}:
        return "neither primary nor secondary"
    if criteria.write:
        return "writes go to the primary"
    there = {
        Mode.PRIMARY_PREFERRED: ", and a primary is there",
        Mode.SECONDARY_PREFERRED: ", and a secondary is eligible",
    }
    return f"mode {criteria.mode.value}{there.get(criteria.mode, '')}"


def _stale(server: ServerDescription, decision: Decision) -> str:
    behind = staleness(server, decision.topology)
    how = "staleness unknown" if behind is None else f"stale by {_tenths(behind)} s"
    return f"{how}, allowed {_tenths(decision.criteria.read_preference.staleness_limit or 0)} s"


def _tags(server: ServerDescription, decision: Decision) -> str:
    wanted = decision.criteria.read_preference.tag_sets
    if any(matches(tag_set, server) for tag_set in wanted):
        return f"tags {_tag_set(server.tags)}, another server matches an earlier tag set"
    return f"tags {_tag_set(server.tags)}, wanted {' or '.join(map(_tag_set, wanted))}"


def _tag_set(tags: Mapping[str, object]) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in tags.items()) + "}"


def _breaker(server: ServerDescription, decision: Decision) -> str:
    wait = decision.criteria.open_breakers[server.address]
    return f"circuit breaker open, next probe in {_tenths(wait)} s"


def _far(server: ServerDescription, decision: Decision) -> str:
    if server.average_rtt is None:
        return "no round-trip time measured yet"
    end = latency_window_end(decision.before_window, decision.criteria.local_threshold) or 0
    return (
        f"round-trip time {_tenths(server.average_rtt * 1000)} ms, "
        f"the latency window ends at {_tenths(end * 1000)} ms"
    )


def _tenths(value: float) -> str:
    """Rounded up, so that what is a little over a limit does not read as equal to it."""
    return f"{math.ceil(round(value, 3) * 10) / 10:.1f}".removesuffix(".0")
