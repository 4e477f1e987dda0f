"""Where the time of one operation went: phases in order, which add up to the whole."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

SELECTION, POOL, CONNECTING, ATTEMPT, BACKOFF = (
    "server_selection", "pool_wait", "connecting", "attempt", "backoff",
)  # fmt: skip
slow_logger = logging.getLogger("pymongo_resilience.slow")


class Phase(NamedTuple):
    """One part of an operation's time."""

    name: str
    """``server_selection``, ``pool_wait``, ``connecting``, ``attempt`` (sent to a server, until its
    answer or failure) or ``backoff``."""
    milliseconds: float
    server: str | None = None
    """``"host:port"``, of an attempt."""
    reason: str | None = None
    """Why an attempt failed."""

    def __str__(self) -> str:
        where = f" on {self.server}" if self.server else ""
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.name}{where} {self.milliseconds:.1f} ms{why}"


class Wait(NamedTuple):
    """For a server or a connection, within an attempt."""

    seconds: float
    for_server: bool
    connecting: float = 0.0
    """How many of the seconds."""


class Run(NamedTuple):
    """One attempt, as it was noted when it was over."""

    ended: float
    """Seconds since the operation began."""
    server: str | None
    waits: Sequence[Wait]
    reason: str | None = None
    """None of one that succeeded, or whose failure ended the operation before any rule saw it."""
    delay: float = 0.0
    """Seconds of back-off that followed it."""


def phases(runs: Iterable[Run]) -> tuple[Phase, ...]:
    """Nothing is shorter than 0, and what a wait was cut short by is not counted twice: the sum is
    when the last one ended."""
    found: list[Phase] = []
    at = backoff = 0.0
    for run in runs:
        left = max(0.0, run.ended - at)
        parts = [(BACKOFF, backoff)]
        for wait in run.waits:
            name = SELECTION if wait.for_server else POOL
            parts += [(name, wait.seconds - wait.connecting), (CONNECTING, wait.connecting)]
        for name, seconds in parts:
            part = min(max(seconds, 0.0), left)
            left -= part
            found.append(Phase(name, part * 1000))
        # Where no server was selected, that is what it was about.
        name = SELECTION if run.server is None else ATTEMPT
        found.append(Phase(name, left * 1000, run.server, run.reason))
        at, backoff = max(at, run.ended), run.delay
    return tuple(each for each in found if each.milliseconds > 0)


def log(operation: str, namespace: str, outcome: str, timeline: Sequence[Phase]) -> None:
    """Write one line to ``pymongo_resilience.slow``, with its facts in the record's attribute
    ``pymongo_resilience`` as well."""
    facts = {
        "event": "operation.slow",
        "operation": operation,
        "namespace": namespace,
        "outcome": outcome,
        "milliseconds": sum(each.milliseconds for each in timeline),
        "timeline": [each._asdict() for each in timeline],
    }
    shown = facts | {"timeline": ", ".join(map(str, timeline))}
    text = "%(operation)s %(namespace)s took %(milliseconds).1f ms (%(outcome)s): %(timeline)s"
    slow_logger.warning(text, shown, extra={"pymongo_resilience": facts})
