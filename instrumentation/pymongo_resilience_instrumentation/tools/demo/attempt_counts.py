"""Counts failed attempts that were repeated, on sides that do not report them themselves."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from pymongo.errors import ServerSelectionTimeoutError
from pymongo.monitoring import (
    CommandFailedEvent,
    CommandListener,
    ConnectionCheckOutFailedEvent,
    ConnectionPoolListener,
)

from pymongo_resilience import RetryScheduled

if TYPE_CHECKING:
    from pymongo_resilience import Event


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
        del event
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
        del error
        reasons, self._reasons = self._reasons, []
        return dict(Counter(reasons))

    def on_event(self, event: Event, /) -> None:
        """Count what was scheduled; what was declined is an error the application sees."""
        if isinstance(event, RetryScheduled):
            self._reasons.append(event.reason.name)
