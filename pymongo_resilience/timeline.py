"""How one operation spent its time: consecutive phases that add up to the whole."""

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
    """``server_selection``, ``pool_wait``, ``connecting``, ``attempt`` (from sending the command to
    its reply or failure) or ``backoff``.
    """
    milliseconds: float
    server: str | None = None
    """``"host:port"`` of an attempt."""
    reason: str | None = None
    """Why the attempt failed."""

    def __str__(self) -> str:
        on = f" on {self.server}" if self.server else ""
        because = f" ({self.reason})" if self.reason else ""
        return f"{self.name}{on} {self.milliseconds:.1f} ms{because}"


class Wait(NamedTuple):
    """A wait for a server or a connection, within an attempt."""

    seconds: float
    for_server: bool
    connecting: float = 0.0
    """The part of ``seconds`` that was spent on connecting."""


class Run(NamedTuple):
    """One attempt, recorded when it ended."""

    ended: float
    """Seconds after the start of the operation."""
    server: str | None
    waits: Sequence[Wait]
    reason: str | None = None
    """Why it failed. None if it succeeded, or if its failure ended the operation before the rules
    saw it.
    """
    delay: float = 0.0
    """Seconds of back-off after it."""


def phases(runs: Iterable[Run]) -> tuple[Phase, ...]:
    """Return the phases of an operation.

    No phase is negative, and overlapping times are counted once, so the sum is the end of the last
    attempt.
    """
    result: list[Phase] = []
    at = backoff = 0.0
    for run in runs:
        left = max(0.0, run.ended - at)
        parts = [(BACKOFF, backoff)]
        for wait in run.waits:
            name = SELECTION if wait.for_server else POOL
            parts += [(name, wait.seconds - wait.connecting), (CONNECTING, wait.connecting)]
        for name, seconds in parts:
            # Waits are measured separately, so their sum may be slightly longer than the attempt.
            part = min(max(seconds, 0.0), left)
            left -= part
            result.append(Phase(name, part * 1000))
        # Without a server, the attempt spent its time on server selection.
        name = SELECTION if run.server is None else ATTEMPT
        result.append(Phase(name, left * 1000, run.server, run.reason))
        at, backoff = max(at, run.ended), run.delay
    return tuple(phase for phase in result if phase.milliseconds > 0)


def log(
    operation: str,
    namespace: str,
    outcome: str,
    timeline: Sequence[Phase],
    query_text: str | None = None,
) -> None:
    """Write one line to the logger ``pymongo_resilience.slow``.

    The facts are also in the record's attribute ``pymongo_resilience``. ``query_text`` is the shape
    of the last command, without values.
    """
    facts: dict[str, object] = {
        "event": "operation.slow",
        "operation": operation,
        "namespace": namespace,
        "outcome": outcome,
        "milliseconds": sum(phase.milliseconds for phase in timeline),
        "timeline": [phase._asdict() for phase in timeline],
    }
    shown = facts | {"timeline": ", ".join(map(str, timeline))}
    text = "%(operation)s %(namespace)s took %(milliseconds).1f ms (%(outcome)s): %(timeline)s"
    if query_text is not None:
        shown["query_text"] = facts["query_text"] = query_text
        text += "; %(query_text)s"
    slow_logger.warning(text, shown, extra={"pymongo_resilience": facts})
