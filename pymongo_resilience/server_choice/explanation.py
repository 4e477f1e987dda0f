"""What became of each server in a selection: one line each, with the sentence of NOT_CHOSEN.

Read off the steps of a decision; nothing is decided here.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pymongo_resilience.rules.explanations import NOT_CHOSEN

from .eligibility import Criteria, Decision, SelectionRule, decide, latency_window_end, staleness
from .server_description import REPLICA_SETS, ServerDescription, TopologyDescription

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    present = {server.address for server in topology.servers}
    for rule, left in decision.steps:
        still_present = {server.address for server in left}
        excluded.update(dict.fromkeys(present - still_present, rule))
        present = still_present
    return tuple(_verdict(each, excluded.get(each.address), decision) for each in topology.servers)


def _verdict(
    server: ServerDescription, rule: SelectionRule | None, decision: Decision
) -> ServerVerdict:
    # "PossiblePrimary" is a possible primary, "RSPrimary" a primary.
    words = re.findall("[A-Z][a-z]+", server.type.value.removeprefix("RS"))
    text = f"{server.address} {' '.join(words).lower()}"
    if rule is None:
        text += ", eligible"
        # Open breakers exclude no server where every breaker is open.
        if server.address in decision.criteria.open_breakers:
            text += f", {_why(SelectionRule.CIRCUIT_BREAKER, server, decision)}"
    else:
        begins = ": " if rule is SelectionRule.AVAILABILITY else ", excluded: "
        text += begins + _why(rule, server, decision)
    return ServerVerdict(server.address, rule, text)


def _why(rule: SelectionRule, server: ServerDescription, decision: Decision) -> str:
    return NOT_CHOSEN[rule.value].format(**_facts(rule, server, decision))


def _facts(rule: SelectionRule, server: ServerDescription, decision: Decision) -> dict[str, str]:
    criteria, topology = decision.criteria, decision.topology
    preference = criteria.read_preference
    match rule:
        case SelectionRule.AVAILABILITY:
            error = server.error or server.check or "not checked yet"
            age = "" if server.error_age is None else f" {server.error_age:.1f} s ago"
            return {"error": error + age}
        case SelectionRule.MODE if topology.type not in REPLICA_SETS:
            return {"wanted": f"the deployment is {topology.type.value}"}
        case SelectionRule.MODE:
            mode = f"mode {criteria.mode.value}"
            return {"wanted": "writes go to the primary" if criteria.write else mode}
        case SelectionRule.STALENESS:
            behind = staleness(server, topology)
            how = "staleness unknown" if behind is None else f"stale by {_tenths(behind)} s"
            return {"behind": how, "allowed": _tenths(preference.staleness_limit or 0)}
        case SelectionRule.TAGS:
            wanted = ", else ".join(map(_tag_set, preference.tag_sets))
            return {"tags": _tag_set(server.tags), "wanted": wanted}
        case SelectionRule.CIRCUIT_BREAKER:
            return {"probe": _tenths(criteria.open_breakers[server.address])}
        case SelectionRule.LATENCY:
            end = latency_window_end(decision.before_window, criteria.local_threshold) or 0
            rtt = server.average_rtt
            took = "not measured yet" if rtt is None else f"{_tenths(rtt * 1000)} ms"
            return {"rtt": took, "end": _tenths(end * 1000)}
    return {}


def _tag_set(tags: Mapping[str, object]) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in tags.items()) + "}"


def _tenths(value: float) -> str:
    """Rounded up, so that what is a little over a limit does not read as equal to it."""
    return f"{math.ceil(round(value, 3) * 10) / 10:.1f}".removesuffix(".0")
