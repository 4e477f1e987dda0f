"""The three contenders: plain pymongo, a naive retry loop, and pymongo-resilience."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final, Protocol

import tenacity
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from pymongo_resilience import Config, instrument

from .attempt_counts import FailedAttempts, ReportedRetries
from .fault_script import MAX_IDLE
from .workload import Step, perform

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo.database import Database

DEADLINE_MS: Final = 20_000
_TRIES: Final = 3
_PAUSE: Final = 0.05


class Side(enum.Enum):
    """Who runs the workload; the value names it in JSON and, as ``demo_*``, its database."""

    PLAIN = "plain"
    NAIVE = "naive"
    OURS = "ours"

    @property
    def title(self) -> str:
        """Its name for people."""
        return {
            Side.PLAIN: "plain pymongo",
            Side.NAIVE: "naive retry loop",
            Side.OURS: "pymongo-resilience",
        }[self]

    @property
    def database(self) -> str:
        """The database that this side alone writes to."""
        return f"demo_{self.value}"


class Counts(Protocol):
    """Knows which failed attempts of the last operation were repeated."""

    def take(self, error: Exception | None) -> dict[str, int]:
        """Counts by reason; forgets them."""


def connect(
    side: Side, uri: str, providers: dict[str, Any]
) -> tuple[Callable[[Step], None], Counts]:
    """Open the side's client; returns what runs one step and what counts its retries.

    ``providers`` are the tracer and meter provider for :func:`pymongo_resilience.instrument`.
    Patches pymongo in this process on our side.
    """
    counts: FailedAttempts | ReportedRetries
    listeners: list[Any] = []
    if side is Side.OURS:
        counts = ReportedRetries()
        instrument(config=Config(timeout_ms=DEADLINE_MS), listeners=[counts], **providers)
    else:
        counts = FailedAttempts()
        listeners = [counts]
    client: MongoClient[dict[str, Any]] = MongoClient(
        uri, maxIdleTimeMS=round(MAX_IDLE * 1000), event_listeners=listeners
    )
    database = client[side.database]
    if side is Side.NAIVE:
        return _in_a_retry_loop(database), counts
    return lambda step: perform(database, step), counts


def _in_a_retry_loop(database: Database[dict[str, Any]]) -> Callable[[Step], None]:
    """What one writes in a hurry: again on any error, around the code that builds the document."""
    again = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(_TRIES),
        wait=tenacity.wait_fixed(_PAUSE),
        retry=tenacity.retry_if_exception_type(PyMongoError),
        reraise=True,
    )
    return lambda step: again(perform, database, step)
