"""Which servers an operation may go to, and which rule left each other one out.

The rules of Server Selection, "Rules for server selection", in order. What each has left is kept:
an explanation is read off these steps, and decides nothing. All times are in seconds.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from pymongo_resilience.rules.explanations import NOT_CHOSEN

from .server_description import (
    REPLICA_SETS,
    UNAVAILABLE,
    ServerDescription,
    ServerType,
    TopologyDescription,
    TopologyType,
)

Servers = list[ServerDescription]
TagSet = Mapping[str, object]
ServerSelector = Callable[[Servers], Iterable[ServerDescription]]
"""The application's own: it may leave some of the servers out."""

LOCAL_THRESHOLD: Final = 0.015
NO_MAXIMUM = -1
"""What the specifications and the driver write for "no maximum staleness"."""
SMALLEST_MAXIMUM = 90.0
IDLE_WRITE_PERIOD = 10.0
"""How often an idle primary writes."""


class Mode(enum.Enum):
    """The five modes of a read preference, by the names that a ``$readPreference`` holds."""

    PRIMARY = "primary"
    PRIMARY_PREFERRED = "primaryPreferred"
    SECONDARY = "secondary"
    SECONDARY_PREFERRED = "secondaryPreferred"
    NEAREST = "nearest"


@dataclass(frozen=True, slots=True)
class ReadPreference:
    """Mode, tag sets and maximum staleness. Immutable, so thread- and task-safe.

    Raises ValueError for a maximum staleness that is no positive number, and for the mode
    ``primary`` with anything else. Whether a maximum is too small depends on how often servers are
    checked: see ``check_maximum``. Source: Server Selection, "Read Preference".
    """

    mode: Mode = Mode.PRIMARY
    tag_sets: Sequence[TagSet] = ({},)
    """Tried in order; an empty list matches every server, as does an empty tag set."""
    max_staleness: float | None = None
    """None or -1 for no maximum."""

    def __post_init__(self) -> None:
        limit = self.staleness_limit
        if limit is not None and not limit > 0:
            raise ValueError(f"maxStalenessSeconds must be a positive number, not {limit}")
        if self.mode is not Mode.PRIMARY:
            return
        if limit is not None:
            raise ValueError("read preference mode primary cannot have a maxStalenessSeconds")
        if any(self.tag_sets):
            raise ValueError("read preference mode primary cannot have tag sets")

    @property
    def staleness_limit(self) -> float | None:
        """The maximum staleness, if there is one."""
        return None if self.max_staleness == NO_MAXIMUM else self.max_staleness


PRIMARY: Final = ReadPreference()


class SelectionRule(enum.StrEnum):
    """What leaves a server out."""

    AVAILABILITY = "availability"
    BOUND = "bound"
    """The operation goes to one server and no other, as a cursor's next batch does."""
    MODE = "mode"
    """The type of the deployment, the kind of the operation, or the read preference's mode."""
    DEPRIORITIZED = "deprioritized"
    STALENESS = "staleness"
    TAGS = "tags"
    APPLICATION = "application"
    CIRCUIT_BREAKER = "circuit_breaker"
    LATENCY = "latency"


class Criteria(NamedTuple):
    """What one operation asks of its server. Immutable, so thread- and task-safe."""

    write: bool = False
    """A write ignores the read preference."""
    read_preference: ReadPreference = PRIMARY
    bound_elsewhere: bool = False
    """The operation goes to one server and no other, and that one is not available."""
    deprioritized: Collection[str] = ()
    """Addresses of servers that are taken only if no other is suitable."""
    server_selector: ServerSelector | None = None
    open_breakers: Mapping[str, float] = MappingProxyType({})
    """Addresses of servers whose breaker is open, with the seconds until the next probe."""
    local_threshold: float = LOCAL_THRESHOLD
    """The size of the latency window, in seconds."""

    @property
    def mode(self) -> Mode:
        return Mode.PRIMARY if self.write else self.read_preference.mode


class Decision(NamedTuple):
    """What each rule has left, in the order in which they were applied."""

    topology: TopologyDescription
    criteria: Criteria
    steps: Sequence[tuple[SelectionRule, Servers]]

    @property
    def in_window(self) -> Servers:
        """The servers that may be chosen."""
        return self.steps[-1][1]


def decide(topology: TopologyDescription, criteria: Criteria) -> Decision:
    """Apply every rule once. Raises ValueError for a maximum staleness that is too small for the
    replica set, and whatever the application's selector raises."""
    limit = criteria.read_preference.staleness_limit
    if limit is not None and topology.type in REPLICA_SETS and not criteria.write:
        check_maximum(limit, topology.heartbeat_frequency)

    left = [server for server in topology.servers if server.type not in UNAVAILABLE]
    steps = [(SelectionRule.AVAILABILITY, left)]
    if criteria.bound_elsewhere and topology.type not in _ONE_ADDRESS:
        left = []
        steps.append((SelectionRule.BOUND, left))
    left = _candidates(left, topology.type, criteria.mode)
    steps.append((SelectionRule.MODE, left))
    steps += _first_without_deprioritized(left, topology, criteria)
    left = steps[-1][1]
    if criteria.server_selector is not None and left:
        accepted = {server.address for server in criteria.server_selector(list(left))}
        left = [server for server in left if server.address in accepted]
        steps.append((SelectionRule.APPLICATION, left))
    left = without_open_breakers(left, criteria.open_breakers)
    steps.append((SelectionRule.CIRCUIT_BREAKER, left))
    steps.append((SelectionRule.LATENCY, in_latency_window(left, criteria.local_threshold)))
    return Decision(topology, criteria, steps)


def without_open_breakers(servers: Servers, open_breakers: Collection[str]) -> Servers:
    """Those whose breaker lets operations pass; all of them where there is none."""
    if not open_breakers:
        return servers
    return [server for server in servers if server.address not in open_breakers] or servers


def in_latency_window(servers: Servers, local_threshold: float) -> Servers:
    """The nearest server, and those at most ``local_threshold`` seconds farther away; one that was
    not measured only where none was. Source: "Filtering suitable servers based on the latency
    window"."""
    end = latency_window_end(servers, local_threshold)
    if end is None:
        return servers
    return [s for s in servers if s.average_rtt is not None and s.average_rtt <= end]


def latency_window_end(servers: Servers, local_threshold: float) -> float | None:
    """The longest average round trip that is near enough; None where none was measured."""
    measured = [s.average_rtt for s in servers if s.average_rtt is not None]
    return min(measured) + local_threshold if measured else None


def check_maximum(maximum: float, heartbeat_frequency: float) -> None:
    """Raise ValueError for a maximum staleness that no estimate is exact enough for. Source: Max
    Staleness, "maxStalenessSeconds"."""
    smallest = max(SMALLEST_MAXIMUM, heartbeat_frequency + IDLE_WRITE_PERIOD)
    if maximum < smallest:
        raise ValueError(
            f"maxStalenessSeconds is {maximum:g}, but must be at least {smallest:g}: "
            f"{SMALLEST_MAXIMUM:g}, and heartbeatFrequencyMS ({heartbeat_frequency * 1000:g}) "
            f"with {IDLE_WRITE_PERIOD:g} seconds added"
        )


def staleness(server: ServerDescription, topology: TopologyDescription) -> float | None:
    """How stale a server of a replica set is, at worst; None where a date that it takes is missing.
    Deprioritized servers count, too. Source: Max Staleness, "Client"."""
    if server.type is not ServerType.SECONDARY:
        return 0.0
    if server.last_write is None:
        return None
    if topology.type is TopologyType.REPLICA_SET_WITH_PRIMARY:
        primary = next((s for s in topology.servers if s.type is ServerType.PRIMARY), None)
        if primary is None or primary.last_write is None:
            return None
        lead = primary.last_update - primary.last_write
        return server.last_update - server.last_write - lead + topology.heartbeat_frequency
    writes = [s.last_write for s in topology.servers if s.type is ServerType.SECONDARY]
    newest = max(each for each in writes if each is not None)
    return newest - server.last_write + topology.heartbeat_frequency


_ONE_ADDRESS: Final = frozenset({TopologyType.SINGLE, TopologyType.LOAD_BALANCED})
_MEMBERS: Final = frozenset({ServerType.PRIMARY, ServerType.SECONDARY})
_BY_MODE: Final = {
    Mode.PRIMARY: frozenset({ServerType.PRIMARY}),
    Mode.PRIMARY_PREFERRED: _MEMBERS,
    Mode.SECONDARY: frozenset({ServerType.SECONDARY}),
    Mode.SECONDARY_PREFERRED: _MEMBERS,
    Mode.NEAREST: _MEMBERS,
}


def _candidates(available: Servers, topology: TopologyType, mode: Mode) -> Servers:
    match topology:
        case TopologyType.UNKNOWN:
            return []
        case TopologyType.SINGLE | TopologyType.LOAD_BALANCED:
            return available
        case TopologyType.SHARDED:
            types = frozenset({ServerType.MONGOS})
        case _:
            types = _BY_MODE[mode]
    return [server for server in available if server.type in types]


def _first_without_deprioritized(
    candidates: Servers, topology: TopologyDescription, criteria: Criteria
) -> list[tuple[SelectionRule, Servers]]:
    """The steps without the deprioritized servers, or with them where nothing else is suitable."""
    preferred = [each for each in candidates if each.address not in criteria.deprioritized]
    if len(preferred) < len(candidates):
        steps = [
            (SelectionRule.DEPRIORITIZED, preferred),
            *_narrowed(preferred, topology, criteria),
        ]
        if steps[-1][1]:
            return steps
    return _narrowed(candidates, topology, criteria)


def _narrowed(
    candidates: Servers, topology: TopologyDescription, criteria: Criteria
) -> list[tuple[SelectionRule, Servers]]:
    """Staleness before tags, each for those that it holds for ("Read operations")."""
    mode = criteria.mode
    if topology.type not in REPLICA_SETS or mode is Mode.PRIMARY:
        return []
    if mode is Mode.NEAREST:
        return _eligible(candidates, topology, criteria.read_preference)
    primary = [server for server in candidates if server.type is ServerType.PRIMARY]
    if mode is Mode.PRIMARY_PREFERRED and primary:
        return [(SelectionRule.MODE, primary)]
    secondaries = [server for server in candidates if server.type is ServerType.SECONDARY]
    steps = _eligible(secondaries, topology, criteria.read_preference)
    eligible = steps[-1][1] if steps else secondaries
    # Staleness and tags do not apply to the primary: only the mode can leave it out.
    with_primary = [(rule, left + primary) for rule, left in steps]
    return [*with_primary, (SelectionRule.MODE, eligible or primary)]


def _eligible(
    candidates: Servers, topology: TopologyDescription, preference: ReadPreference
) -> list[tuple[SelectionRule, Servers]]:
    steps = []
    limit = preference.staleness_limit
    if limit is not None:
        candidates = [
            server
            for server in candidates
            if (behind := staleness(server, topology)) is not None and behind <= limit
        ]
        steps.append((SelectionRule.STALENESS, candidates))
    if preference.tag_sets:
        steps.append((SelectionRule.TAGS, _with_first_matching(preference.tag_sets, candidates)))
    return steps


def matches(tag_set: TagSet, server: ServerDescription) -> bool:
    """Whether the server has every tag of the set."""
    return tag_set.items() <= server.tags.items()


def _with_first_matching(tag_sets: Sequence[TagSet], candidates: Servers) -> Servers:
    for tag_set in tag_sets:
        matching = [server for server in candidates if matches(tag_set, server)]
        if matching:
            return matching
    return []


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
            before = decision.steps[-2][1]
            end = latency_window_end(before, criteria.local_threshold) or 0
            rtt = server.average_rtt
            took = "not measured yet" if rtt is None else f"{_tenths(rtt * 1000)} ms"
            return {"rtt": took, "end": _tenths(end * 1000)}
    return {}


def _tag_set(tags: Mapping[str, object]) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in tags.items()) + "}"


def _tenths(value: float) -> str:
    """Rounded up, so that what is a little over a limit does not read as equal to it."""
    return f"{math.ceil(round(value, 3) * 10) / 10:.1f}".removesuffix(".0")
