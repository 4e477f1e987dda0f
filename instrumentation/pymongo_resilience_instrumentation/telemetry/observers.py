"""The interface of observers of operations, and the observer of those that timed out or were slow.

Their timeline is on their error and span, and in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pymongo_resilience import timeline
from pymongo_resilience.errors import OperationTimeoutError
from pymongo_resilience.events import Event
from pymongo_resilience.internal_errors import call_handlers
from pymongo_resilience.timeline import Phase, Run, Wait
from pymongo_resilience_instrumentation import driver, in_progress
from pymongo_resilience_instrumentation.failures.error_texts import outcome_of
from pymongo_resilience_instrumentation.operation import Operation
from pymongo_resilience_instrumentation.timeouts import bounded_waits
from pymongo_resilience_instrumentation.timeouts.bounded_waits import WaitKind

from .query_text import shape_of


class Observer:
    """Observes operations. Thread- and task-safe, because all changing state is on the
    operation.
    """

    def on_event(self, event: Event, /) -> None:
        """Called with each event, in the thread or task of the operation that caused it."""

    def ends(self, operation: Operation, error: BaseException | None) -> None:
        """Called when the operation has ended, with the error for the application, or None."""


class Timelines(Observer):
    """Shows how an operation that timed out or was slow spent its time."""

    def ends(self, operation: Operation, error: BaseException | None) -> None:
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
        sent = operation.last_command
        shape = None if sent is None else shape_of(sent.command)
        in_progress.call_foreign(
            call_handlers, timeline.log, operation.name, operation.namespace, outcome, phases, shape
        )


def _phases(operation: Operation) -> tuple[Phase, ...]:
    """Return the phases, which add up to the duration of the operation."""
    outcome, waits = operation.outcome, operation.limits.waits or []
    began = driver.csot.now() - operation.elapsed()
    runs, shown = [], 0
    for record in outcome.attempts:
        own = [each for each in waits[shown:] if each.began - began <= record.ended]
        shown += len(own)
        reason, delay = record.reason.value, record.delay or 0.0
        runs.append(Run(record.ended, record.server, _shown(own), reason, delay))
    if outcome.declined_by is not None and runs and outcome.attempts[-1].delay is None:
        # The last attempt was final, so the rest of the operation's time belongs to it.
        runs[-1] = runs[-1]._replace(ended=operation.seconds)
    else:
        runs.append(Run(operation.seconds, operation.server_text(), _shown(waits[shown:])))
    return timeline.phases(runs)


def _shown(waits: Sequence[bounded_waits.Wait]) -> tuple[Wait, ...]:
    return tuple(
        Wait(each.seconds, each.what is WaitKind.SERVER, each.connecting or 0.0) for each in waits
    )
