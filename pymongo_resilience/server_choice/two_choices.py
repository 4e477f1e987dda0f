"""The power of two random choices: of two servers, the less loaded one.

Source: Server Selection, "operationCount-based selection within the latency window".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pymongo_resilience.rules.backoff import Random

    from .server_description import ServerDescription


def choose(
    servers: Sequence[ServerDescription], loads: Mapping[str, float], random: Random
) -> ServerDescription:
    """Of two servers picked at random, the one with the smaller load.

    ``servers`` must not be empty. ``loads``: by address the number of operations in progress, or
    what PeakEwma makes of it; 0 where it has none. ``random`` returns a float in [0, 1).
    """
    if len(servers) == 1:
        return servers[0]
    one = int(random() * len(servers))
    other = int(random() * (len(servers) - 1))
    first, second = servers[one], servers[other + (other >= one)]
    if loads.get(second.address, 0) < loads.get(first.address, 0):
        return second
    return first
