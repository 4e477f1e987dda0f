"""Who receives decisions: the call in progress, the logs, the application's listeners."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from pymongo_resilience.internal_errors import logger
from pymongo_resilience.rules.events import Broadcast, RetryEvent, RetryScheduled
from pymongo_resilience_instrumentation import calls

from .call_timelines import note

if TYPE_CHECKING:
    from pymongo_resilience.rules.events import Event


class CallLog:
    """Listener: gathers the decisions on the call in progress."""

    def on_event(self, event: Event, /) -> None:
        call = calls.current()
        if call is None or not isinstance(event, RetryEvent):
            return
        note(call, event)
        if isinstance(event, RetryScheduled):
            call.reasons = (*call.reasons, event.reason)
            call.backoff += event.delay
        else:
            call.declined_by = event.rule


class Reported(Broadcast):
    """For the logs and the application's listeners: what they send meanwhile is not reported."""

    def on_event(self, event: Event, /) -> None:
        calls.reported(super().on_event, event)


class Unreported:
    """Counts what others send while they handle an event; logs the first. Thread-safe."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.count = 0
        """How many runs of the driver's loop there were."""

    def note(self) -> None:
        self.count = next(self._numbers)
        if self.count == 1:
            logger.warning(
                "a listener, hook, log handler or exporter uses MongoDB while it handles telemetry "
                "of an operation: what it sends is left to pymongo, neither repeated nor recorded; "
                "further cases are not logged"
            )
