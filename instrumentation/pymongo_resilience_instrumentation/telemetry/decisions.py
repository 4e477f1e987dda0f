"""Who receives decisions: the operation in progress, the logs, the application's listeners.

The timeline of an operation that ran out of time, or was slow, is on its error, its span and in the
log.
"""

from __future__ import annotations

from typing import Any

from pymongo_resilience import timeline
from pymongo_resilience.errors import OperationTimeoutError
from pymongo_resilience.events import Broadcast, Event, RetryEvent, RetryScheduled
from pymongo_resilience.timeline import Phase, Run, Wait
from pymongo_resilience_instrumentation import in_progress
from pymongo_resilience_instrumentation.failures.error_texts import outcome_of
from pymongo_resilience_instrumentation.operation import Operation
from pymongo_resilience_instrumentation.timeouts.bounded_waits import For


def of_call(operation: Operation, seconds: float) -> tuple[Phase, ...]:
    """``seconds``: how long the operation took. The phases add up to them."""
    runs = list(operation.history.runs)
    if runs and not runs[-1].delay and operation.history.declined_by is not None:
        # Its failure was final: what was left to do belongs to it.
        runs[-1] = runs[-1]._replace(ended=seconds)
    else:
        runs.append(Run(seconds, operation.history.server_text(), _waits(operation)))
    return timeline.phases(runs)


def show(
    operation: Operation, error: BaseException | None, seconds: float, slow: float | None
) -> None:
    """Show the timeline of an ended operation that ran out of time, or took ``slow`` seconds."""
    timed_out = isinstance(error, OperationTimeoutError)
    is_slow = slow is not None and seconds >= slow
    if not (timed_out or is_slow):
        return
    found = of_call(operation, seconds)
    if isinstance(error, OperationTimeoutError):
        error.timeline = found
    if operation.span is not None and operation.span.is_recording():
        names = (f"{each.name} {each.server}" if each.server else each.name for each in found)
        attributes: dict[str, Any] = {
            "pymongo_resilience.timeline.phases": tuple(names),
            "pymongo_resilience.timeline.milliseconds": tuple(
                round(each.milliseconds, 3) for each in found
            ),
        }
        operation.span.add_event("operation.timeline", attributes)
    timeline.log(operation.name, operation.namespace, outcome_of(operation, error), found)


def _waits(operation: Operation) -> tuple[Wait, ...]:
    """Those that no earlier attempt had."""
    taken = sum(len(each.waits) for each in operation.history.runs)
    return tuple(
        Wait(each.seconds, each.what is For.SERVER, each.connecting or 0.0)
        for each in (operation.history.waits or ())[taken:]
    )


UNREPORTED = (
    "a listener, hook, log handler or exporter uses MongoDB while it handles telemetry "
    "of an operation: what it sends is left to pymongo, neither repeated nor recorded; "
    "further cases are not logged"
)


class OperationLog:
    """Listener: gathers the decisions on the operation in progress."""

    def on_event(self, event: Event, /) -> None:
        operation = in_progress.current()
        if operation is None or not isinstance(event, RetryEvent):
            return
        delay = 0.0
        if isinstance(event, RetryScheduled):
            delay = event.delay
            operation.history.reasons = (*operation.history.reasons, event.reason)
            operation.history.backoff += delay
        else:
            operation.history.declined_by = event.rule
        run = Run(operation.elapsed(), event.server, _waits(operation), event.reason.value, delay)
        operation.history.runs = (*operation.history.runs, run)


class Reported(Broadcast):
    """For the logs and the application's listeners: what they send meanwhile is not reported."""

    def on_event(self, event: Event, /) -> None:
        in_progress.reported(super().on_event, event)
