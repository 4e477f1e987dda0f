"""What observes operations, and the observer that every ``instrument()`` has.

The timeline of an operation that ran out of time, or was slow, is on its error, its span and in the
log.
"""

from __future__ import annotations

from typing import Any

from pymongo_resilience import timeline
from pymongo_resilience.errors import OperationTimeoutError
from pymongo_resilience.events import Event, RetryEvent, RetryScheduled
from pymongo_resilience.internal_errors import call_handlers
from pymongo_resilience.timeline import Phase, Run, Wait
from pymongo_resilience_instrumentation import in_progress
from pymongo_resilience_instrumentation.failures.error_texts import outcome_of
from pymongo_resilience_instrumentation.operation import Operation
from pymongo_resilience_instrumentation.timeouts.bounded_waits import For


class Observer:
    """Shows some of what operations do. Thread- and task-safe: what changes is on the operation."""

    def begins(self, operation: Operation) -> None:
        """It is in progress, under its deadline."""

    def on_event(self, event: Event, /) -> None:
        """A decision on the operation in progress, or on what it has found out of a server."""

    def ends(self, operation: Operation, error: BaseException | None) -> None:
        """``error``: the one that the application gets."""


class Timelines(Observer):
    """Gathers the decisions on an operation, and shows where its time went."""

    def __init__(self, slow_ms: int | None) -> None:
        self._slow_ms = slow_ms
        """Operations that take as long are shown, whatever they end with; None is off."""

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

    def ends(self, operation: Operation, error: BaseException | None) -> None:
        is_slow = self._slow_ms is not None and operation.seconds * 1000 >= self._slow_ms
        if not (is_slow or isinstance(error, OperationTimeoutError)):
            return
        phases = _phases(operation)
        if isinstance(error, OperationTimeoutError):
            error.timeline = phases
        if operation.span is not None:
            names = (f"{each.name} {each.server}" if each.server else each.name for each in phases)
            attributes: dict[str, Any] = {
                "pymongo_resilience.timeline.phases": tuple(names),
                "pymongo_resilience.timeline.milliseconds": tuple(
                    round(each.milliseconds, 3) for each in phases
                ),
            }
            operation.span.add_event("operation.timeline", attributes, operation.ended_ns)
        outcome = outcome_of(operation, error)
        in_progress.reported(
            call_handlers, timeline.log, operation.name, operation.namespace, outcome, phases
        )


def _phases(operation: Operation) -> tuple[Phase, ...]:
    """They add up to how long the operation took."""
    runs = list(operation.history.runs)
    if runs and not runs[-1].delay and operation.history.declined_by is not None:
        # Its failure was final: what was left to do belongs to it.
        runs[-1] = runs[-1]._replace(ended=operation.seconds)
    else:
        server = operation.history.server_text()
        runs.append(Run(operation.seconds, server, _waits(operation)))
    return timeline.phases(runs)


def _waits(operation: Operation) -> tuple[Wait, ...]:
    """Those that no earlier attempt had."""
    taken = sum(len(each.waits) for each in operation.history.runs)
    return tuple(
        Wait(each.seconds, each.what is For.SERVER, each.connecting or 0.0)
        for each in (operation.history.waits or ())[taken:]
    )
