"""The results of ``status(client)`` and ``explain_selection(client)``."""

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
    """The status of one server. Immutable, so thread- and task-safe."""

    address: str
    """``"host:port"``."""
    type: str
    """The server type, as named in MongoDB's specifications: ``RSPrimary``, ``Mongos``,
    ``Unknown``.
    """
    round_trip_time: float | None
    """Weighted average in seconds; None if the server is unknown or not monitored."""
    minimum_round_trip_time: float | None
    """Minimum of the last ten, in seconds; None until there are two."""
    in_flight: int | None
    """Number of operations that use or wait for a connection; None if they are not counted."""
    circuit_breaker: str | None
    """State of the circuit breaker; None without one."""
    error: str | None
    """Why the last check failed, without any text from the server."""
    lost_connections: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)
    """Number of connections that the library closed, by reason: ``dead_peer``, ``interrupted``,
    ``attempt_timeout``. pymongo reports none of these.
    """


@dataclass(frozen=True, slots=True)
class HedgeCounts:
    """Counts of a client's reads under a policy with ``hedge``. Immutable, so thread- and
    task-safe.
    """

    reads: int
    """Reads that could have been sent to a second server."""
    sent: int
    """Reads that were sent to a second server."""
    won: int
    """Reads that the second server answered first."""


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """The status of one client. Immutable, so thread- and task-safe."""

    topology: str
    """The topology type: ``ReplicaSetWithPrimary``, ``Sharded``, ``Unknown``."""
    servers: tuple[ServerStatus, ...]
    retry_tokens: float | None
    """Tokens left in the retry budget; None without a budget."""
    dead_peer_s: int | None = None
    """Seconds without a packet from a server's host after which new connections to it are closed.
    None if the option is off or the operating system does not support it.
    """
    spans: str | None = None
    """Who records the spans of its operations: ``pymongo_resilience``, or ``pymongo`` if the
    application turned on pymongo's own spans. None if nobody does.
    """
    hedges: HedgeCounts | None = None
    """None until the first read under a policy with ``hedge``."""
    config: Config | None = None
    """The active configuration of the process; None while the library is off."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a client is ready for operations. Immutable, so thread- and task-safe."""

    ready_to_write: bool
    ready_to_read: bool
    """With the read preference that was passed."""
    why_not: str
    """What is wrong, in one sentence; empty if nothing is wrong. During the grace period, the
    client counts as ready although something is wrong.
    """
    since: float
    """When the current problem began, or without a problem, since when there is none. Seconds since
    the epoch, as for ``time.time()``.
    """


class SelectionRule(enum.StrEnum):
    """The rule that excluded a server from selection."""

    AVAILABILITY = "availability"
    BOUND = "bound"
    """The operation can only run on one server, for example a cursor's next batch."""
    MODE = "mode"
    """The type of the deployment, the kind of operation, or the mode of the read preference."""
    STALENESS = "staleness"
    TAGS = "tags"
    APPLICATION = "application"
    CIRCUIT_BREAKER = "circuit_breaker"
    LATENCY = "latency"


@dataclass(frozen=True, slots=True)
class ServerVerdict:
    """Whether one server can be selected, and why. Immutable."""

    address: str
    """``"host:port"``."""
    excluded_by: SelectionRule | None
    """None if the server can be selected."""
    text: str

    @property
    def eligible(self) -> bool:
        return self.excluded_by is None

    def __str__(self) -> str:
        return self.text
