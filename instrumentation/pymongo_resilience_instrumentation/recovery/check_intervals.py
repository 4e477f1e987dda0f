"""How long to wait between two checks of a server that an operation waits for."""

from __future__ import annotations

import random

FIRST = 0.01
"""Seconds to the second check of a server that could be reached until now."""
REFUSED = 0.03
"""Seconds at least to where the interval stops doubling while connections are refused: nothing
listens there, so a check costs a packet each way and no server a hello."""
REFUSED_PART = 0.04
"""Of the time that connections have been refused for: how late the server is found at most."""
LONGEST = 1.0
"""Seconds; the driver's own interval is shorter."""
MOST_HELLOS = 10
"""Of an outage that may be sent at shorter intervals than the specification's."""


class CheckIntervals:
    """Of one server's monitor, which alone uses it.

    Source: Server Discovery and Monitoring, "minHeartbeatFrequencyMS", which has 500 ms for all.
    """

    def __init__(self) -> None:
        self._reached = False
        self._failed_at: float | None = None
        self._interval = FIRST
        self._hellos = 0

    def note(self, now: float, *, known: bool, refused: bool) -> None:
        """After each check. ``now`` in seconds; ``refused``: the address refused the connection."""
        if known:
            self._reached, self._failed_at, self._interval = True, None, FIRST
            self._hellos = 0
            return
        self._hellos += not refused
        if self._failed_at is None:
            self._failed_at = now
        else:
            doubled = min(self._interval * 2, LONGEST)
            limit = max(REFUSED, (now - self._failed_at) * REFUSED_PART)
            self._interval = min(doubled, limit) if refused else doubled

    def seconds(self, most: float) -> float:
        """To the next check; ``most`` is the specification's, which holds for a server that was
        never reached."""
        if not self._reached or self._interval >= most or self._hellos >= MOST_HELLOS:
            return most
        # Not all clients of a server at once.
        return min(self._interval * random.uniform(0.75, 1.25), most)  # noqa: S311 - no secret
