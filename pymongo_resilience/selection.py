"""One server for one operation (Server Selection, "Server Selection Algorithm", steps 2 to 8).

Waiting for a server, and counting the operation in and out, are the caller's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pymongo_resilience.eligibility import Criteria, decide
from pymongo_resilience.explanation import ServerVerdict, verdicts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pymongo_resilience.backoff import Random
    from pymongo_resilience.server_description import ServerDescription, TopologyDescription


class ServerSelectionError(Exception):
    """No server is suitable: which there are, and why each of them is not.

    ``str()`` names every server with the rule that left it out.
    """

    def __init__(self, wanted: str, servers: tuple[ServerVerdict, ...]) -> None:
        self.wanted = wanted
        self.servers = servers
        super().__init__(wanted, servers)

    def __str__(self) -> str:
        known = "; ".join(map(str, self.servers)) or "no server is known"
        return f"no server is suitable for {self.wanted}: {known}"


def select(
    topology: TopologyDescription,
    criteria: Criteria,
    operations: Mapping[str, int],
    random: Random,
) -> ServerDescription:
    """The server that the operation goes to.

    ``operations`` has the number of operations in progress by address, 0 where it has none. Raises
    ServerSelectionError, and what ``decide`` raises. Keeps nothing, so thread- and task-safe.
    """
    decision = decide(topology, criteria)
    servers = decision.in_window
    if not servers:
        wanted = "a write" if criteria.write else f"a read with mode {criteria.mode.value}"
        raise ServerSelectionError(wanted, verdicts(decision))
    return choose(servers, operations, random)


def choose(
    servers: Sequence[ServerDescription], loads: Mapping[str, float], random: Random
) -> ServerDescription:
    """Of two servers picked at random, the one with the smaller load.

    ``servers`` must not be empty. ``loads``: by address the number of operations in progress, or
    what PeakEwma makes of it; 0 where it has none. ``random`` returns a float in [0, 1).
    Source: "operationCount-based selection within the latency window".
    """
    if len(servers) == 1:
        return servers[0]
    one = int(random() * len(servers))
    other = int(random() * (len(servers) - 1))
    first, second = servers[one], servers[other + (other >= one)]
    if loads.get(second.address, 0) < loads.get(first.address, 0):
        return second
    return first
