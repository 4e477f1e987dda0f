"""What is known of a deployment and its servers at one moment, as plain values.

The names are those of Server Discovery and Monitoring and of Server Selection. Nothing here knows
the driver: the caller states what the driver knows. All times are in seconds.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class ServerType(enum.Enum):
    """The server's type. The values are the names that the specifications and the driver use."""

    UNKNOWN = "Unknown"
    POSSIBLE_PRIMARY = "PossiblePrimary"
    STANDALONE = "Standalone"
    MONGOS = "Mongos"
    PRIMARY = "RSPrimary"
    SECONDARY = "RSSecondary"
    ARBITER = "RSArbiter"
    OTHER = "RSOther"
    GHOST = "RSGhost"
    LOAD_BALANCER = "LoadBalancer"


UNAVAILABLE = frozenset({ServerType.UNKNOWN, ServerType.POSSIBLE_PRIMARY})
"""The types of a server that nothing can be sent to (Server Selection, "Terms")."""


class TopologyType(enum.Enum):
    """The topology's type. The values are the names that the specifications and the driver use."""

    UNKNOWN = "Unknown"
    SINGLE = "Single"
    REPLICA_SET_NO_PRIMARY = "ReplicaSetNoPrimary"
    REPLICA_SET_WITH_PRIMARY = "ReplicaSetWithPrimary"
    SHARDED = "Sharded"
    LOAD_BALANCED = "LoadBalanced"


REPLICA_SETS = frozenset(
    {TopologyType.REPLICA_SET_NO_PRIMARY, TopologyType.REPLICA_SET_WITH_PRIMARY}
)


class ServerDescription(NamedTuple):
    """One server at one moment. Immutable, so thread- and task-safe."""

    address: str
    """``"host:port"``; what a server is known by everywhere."""
    type: ServerType = ServerType.UNKNOWN
    tags: Mapping[str, object] = MappingProxyType({})
    last_write: float | None = None
    """When the server's last write was made, by the primary's clock; None where it sent none."""
    last_update: float = 0.0
    """When its last reply came, on a clock that is the same for all servers of a topology."""
    average_rtt: float | None = None
    """None until a round trip was measured, and for an unavailable server."""
    minimum_rtt: float | None = None
    error: str | None = None
    """Why its last check failed, as it may be shown; no value of a document is taken out here."""
    error_age: float | None = None
    """How long ago that was."""
    check: str | None = None
    """What the check in progress waits for, where none before has had a result."""


class TopologyDescription(NamedTuple):
    """A deployment at one moment. Immutable, so thread- and task-safe."""

    type: TopologyType
    servers: tuple[ServerDescription, ...]
    heartbeat_frequency: float = 10.0
    """How often servers are checked: ``heartbeatFrequencyMS``, in seconds."""
