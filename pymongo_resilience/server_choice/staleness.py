"""How far secondaries may lag behind, and how far they do ("maxStalenessSeconds").

Source: Server Selection and Max Staleness. All times are in seconds.
"""

from __future__ import annotations

from collections.abc import Callable

from .server_description import ServerDescription, ServerType, TopologyDescription, TopologyType

IDLE_WRITE_PERIOD = 10.0
"""How often an idle primary writes."""
SMALLEST_MAXIMUM = 90.0

Staleness = Callable[[ServerDescription], float | None]
"""The staleness of a server; None where a date that it takes is missing."""


def check_maximum(maximum: float, heartbeat_frequency: float) -> None:
    """Raise ValueError for a maximum that no estimate is exact enough for."""
    smallest = max(SMALLEST_MAXIMUM, heartbeat_frequency + IDLE_WRITE_PERIOD)
    if maximum < smallest:
        raise ValueError(
            f"maxStalenessSeconds is {maximum:g}, but must be at least {smallest:g}: "
            f"{SMALLEST_MAXIMUM:g}, and heartbeatFrequencyMS ({heartbeat_frequency * 1000:g}) "
            f"with {IDLE_WRITE_PERIOD:g} seconds added"
        )


def estimate(topology: TopologyDescription) -> Staleness:
    """How stale each server of a replica set is, at worst; what is no secondary never is.

    Deprioritized servers count: whether one is avoided changes nothing about what it has written.
    """
    frequency = topology.heartbeat_frequency
    if topology.type is TopologyType.REPLICA_SET_WITH_PRIMARY:
        primary = next((s for s in topology.servers if s.type is ServerType.PRIMARY), None)
        lead = None if primary is None else _delay(primary)

        def behind(server: ServerDescription) -> float | None:
            delay = _delay(server)
            return None if delay is None or lead is None else delay - lead + frequency

    else:
        writes = [s.last_write for s in topology.servers if s.type is ServerType.SECONDARY]
        newest = max((each for each in writes if each is not None), default=0.0)

        def behind(server: ServerDescription) -> float | None:
            return None if server.last_write is None else newest - server.last_write + frequency

    return lambda server: behind(server) if server.type is ServerType.SECONDARY else 0.0


def _delay(server: ServerDescription) -> float | None:
    return None if server.last_write is None else server.last_update - server.last_write
