"""The three contenders: plain pymongo, a naive retry loop, and pymongo-resilience."""

from __future__ import annotations

import enum
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol

import tenacity
from pymongo import MongoClient
from pymongo.errors import PyMongoError, ServerSelectionTimeoutError
from pymongo.monitoring import (
    CommandFailedEvent,
    CommandListener,
    ConnectionCheckOutFailedEvent,
    ConnectionPoolListener,
)

from pymongo_resilience import Config, RetryScheduled, instrument

from .fault_script import MAX_IDLE
from .workload import Step, perform

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo.database import Database

    from pymongo_resilience import Event


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


class FailedAttempts(CommandListener, ConnectionPoolListener):
    """Counts each attempt that failed, by the driver's events.

    An attempt is named after the server's error code or the driver's exception class; one that
    got no connection is ``ConnectionCheckOutFailed``. For one thread at a time.
    """

    def __init__(self) -> None:
        self._failed: list[str] = []

    def take(self, error: Exception | None) -> dict[str, int]:
        """The repeated ones among the attempts of the operation that just ended.

        All but the last, if the operation raised: that one was not repeated.
        """
        failed, self._failed = self._failed, []
        # A selection that timed out sent no attempt: it is itself the end.
        if error is not None and not isinstance(error, ServerSelectionTimeoutError):
            del failed[-1:]
        return dict(Counter(failed))

    def failed(self, event: CommandFailedEvent) -> None:
        self._failed.append(str(event.failure.get("codeName") or event.failure.get("errtype")))

    def connection_check_out_failed(self, event: ConnectionCheckOutFailedEvent) -> None:
        self._failed.append("ConnectionCheckOutFailed")

    def _ignore(self, event: Any) -> None: ...

    started = succeeded = _ignore
    pool_created = pool_ready = pool_cleared = pool_closed = _ignore
    connection_created = connection_ready = connection_closed = _ignore
    connection_check_out_started = connection_checked_out = connection_checked_in = _ignore


class ReportedRetries:
    """Counts each retry, by the library's events. For one thread at a time."""

    def __init__(self) -> None:
        self._reasons: list[str] = []

    def take(self, error: Exception | None) -> dict[str, int]:
        """The reasons of the retries of the operation that just ended."""
        reasons, self._reasons = self._reasons, []
        return dict(Counter(reasons))

    def on_event(self, event: Event, /) -> None:
        """Count what was scheduled; what was declined is an error the application sees."""
        if isinstance(event, RetryScheduled):
            self._reasons.append(event.reason.name)
