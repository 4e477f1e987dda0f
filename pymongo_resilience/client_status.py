"""What ``status(client)`` and ``explain_selection(client)`` return."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from pymongo_resilience.config import Config

__all__ = [
    "ClientStatus",
    "HedgeCounts",
    "Readiness",
    "SelectionRule",
    "ServerStatus",
    "ServerVerdict",
]


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """One server. Immutable, so thread- and task-safe."""

    address: str
    """``"host:port"``."""
    type: str
    """By the name in MongoDB's specifications: ``RSPrimary``, ``Mongos``, ``Unknown``."""
    round_trip_time: float | None
    """The weighted average in seconds; None while the server is unknown, or is not monitored."""
    minimum_round_trip_time: float | None
    """The smallest of the last ten, in seconds; None before there are two."""
    in_flight: int | None
    """Operations that have or await a connection; None where they are not counted."""
    circuit_breaker: str | None
    """The state of its circuit breaker; None without one."""
    error: str | None
    """Why its last check failed, without any text of the server's."""
    lost_connections: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)
    """How many connections of operations were ended for a reason that pymongo does not name:
    ``dead_peer``, ``interrupted``, ``attempt_timeout``."""


@dataclass(frozen=True, slots=True)
class HedgeCounts:
    """A client's reads under a policy that hedges. Immutable, so thread- and task-safe."""

    reads: int
    """Those that could have been sent to a second server."""
    sent: int
    """Those that were."""
    won: int
    """Among those, the ones that the second server answered first."""


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """One client. Immutable, so thread- and task-safe."""

    topology: str
    """The type of the deployment: ``ReplicaSetWithPrimary``, ``Sharded``, ``Unknown``."""
    servers: tuple[ServerStatus, ...]
    retry_tokens: float | None
    """What its retries may still spend; None without a budget."""
    dead_peer_s: int | None = None
    """Seconds without a packet from a server's host, after which a new connection to it is closed;
    None where it is not: the option is off, or the system cannot do it."""
    spans: str | None = None
    """Who records the spans of its operations: ``pymongo_resilience``, or ``pymongo`` where the
    application asked the driver for its own; None where nothing does."""
    hedges: HedgeCounts | None = None
    """None before the first read that a policy hedges."""
    config: Config | None = None
    """The configuration in force in the process; None while the library is off."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a client is ready for operations. Immutable, so thread- and task-safe."""

    ready_to_write: bool
    ready_to_read: bool
    """For the read preference that was asked for."""
    why_not: str
    """What is wrong, in one sentence; empty if nothing is. During the grace period the client
    counts as ready although something is wrong."""
    since: float
    """When what is wrong began, or if nothing is, since when all is well: seconds since the epoch,
    as ``time.time()`` has them."""


class SelectionRule(enum.StrEnum):
    """What leaves a server out."""

    AVAILABILITY = "availability"
    BOUND = "bound"
    """The operation goes to one server and no other, as a cursor's next batch does."""
    MODE = "mode"
    """The type of the deployment, the kind of the operation, or the read preference's mode."""
    STALENESS = "staleness"
    TAGS = "tags"
    APPLICATION = "application"
    CIRCUIT_BREAKER = "circuit_breaker"
    LATENCY = "latency"


@dataclass(frozen=True, slots=True)
class ServerVerdict:
    """What became of one server in a selection, and why. Immutable."""

    address: str
    """``"host:port"``."""
    excluded_by: SelectionRule | None
    """None for a server that may be chosen."""
    text: str

    @property
    def eligible(self) -> bool:
        return self.excluded_by is None

    def __str__(self) -> str:
        return self.text
