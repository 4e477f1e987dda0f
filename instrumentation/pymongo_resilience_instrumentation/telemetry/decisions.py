"""Who receives decisions: the call in progress, the logs, the application's listeners.

The timeline of a call that ran out of time, or was slow, is on its error, its span and in the log.
"""

from __future__ import annotations

from typing import Any

from pymongo_resilience import timeline
from pymongo_resilience.errors import OperationTimeoutError
from pymongo_resilience.events import Broadcast, Event, RetryEvent, RetryScheduled
from pymongo_resilience.timeline import Phase, Run, Wait
from pymongo_resilience_instrumentation import calls
from pymongo_resilience_instrumentation.calls import Call
from pymongo_resilience_instrumentation.failures.error_texts import outcome_of
from pymongo_resilience_instrumentation.timeouts.bounded_waits import For


def of_call(call: Call, seconds: float) -> tuple[Phase, ...]:
    """``seconds``: how long the call took. The phases add up to them."""
    runs = list(call.history.runs)
    if runs and not runs[-1].delay and call.history.declined_by is not None:
        # Its failure was final: what was left to do belongs to it.
        runs[-1] = runs[-1]._replace(ended=seconds)
    else:
        runs.append(Run(seconds, call.history.server_text(), _waits(call)))
    return timeline.phases(runs)


def show(call: Call, error: BaseException | None, seconds: float, slow: float | None) -> None:
    """Show the timeline of an ended call that ran out of time, or took ``slow`` seconds."""
    timed_out = isinstance(error, OperationTimeoutError)
    is_slow = slow is not None and seconds >= slow
    if not (timed_out or is_slow):
        return
    found = of_call(call, seconds)
    if isinstance(error, OperationTimeoutError):
        error.timeline = found
    if call.span is not None and call.span.is_recording():
        names = (f"{each.name} {each.server}" if each.server else each.name for each in found)
        attributes: dict[str, Any] = {
            "pymongo_resilience.timeline.phases": tuple(names),
            "pymongo_resilience.timeline.milliseconds": tuple(
                round(each.milliseconds, 3) for each in found
            ),
        }
        call.span.add_event("operation.timeline", attributes)
    timeline.log(call.operation, call.namespace, outcome_of(call, error), found)


def _waits(call: Call) -> tuple[Wait, ...]:
    """Those that no earlier attempt had."""
    taken = sum(len(each.waits) for each in call.history.runs)
    return tuple(
        Wait(each.seconds, each.what is For.SERVER, each.connecting or 0.0)
        for each in (call.history.waits or ())[taken:]
    )


UNREPORTED = (
    "a listener, hook, log handler or exporter uses MongoDB while it handles telemetry "
    "of an operation: what it sends is left to pymongo, neither repeated nor recorded; "
    "further cases are not logged"
)


class CallLog:
    """Listener: gathers the decisions on the call in progress."""

    def on_event(self, event: Event, /) -> None:
        call = calls.current()
        if call is None or not isinstance(event, RetryEvent):
            return
        delay = 0.0
        if isinstance(event, RetryScheduled):
            delay = event.delay
            call.history.reasons = (*call.history.reasons, event.reason)
            call.history.backoff += delay
        else:
            call.history.declined_by = event.rule
        run = Run(call.elapsed(), event.server, _waits(call), event.reason.value, delay)
        call.history.runs = (*call.history.runs, run)


class Reported(Broadcast):
    """For the logs and the application's listeners: what they send meanwhile is not reported."""

    def on_event(self, event: Event, /) -> None:
        calls.reported(super().on_event, event)
