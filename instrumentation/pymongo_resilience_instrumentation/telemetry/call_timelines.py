"""The timeline of a call that ran out of time, or was slow: on its error, its span and in the log.

A healthy call notes nothing for it. What is known is when it began, its waits, which are timed
where they have to be, and when a rule saw an attempt fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience import timeline
from pymongo_resilience.errors import OperationTimeoutError
from pymongo_resilience.rules.events import RetryScheduled
from pymongo_resilience.timeline import Run, Wait
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import address_text
from pymongo_resilience_instrumentation.failures.outcomes import outcome_of
from pymongo_resilience_instrumentation.timeouts.wait_times import For

from . import semconv

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pymongo_resilience.rules.events import RetryDeclined
    from pymongo_resilience.timeline import Phase
    from pymongo_resilience_instrumentation.calls import Call


def note(call: Call, event: RetryScheduled | RetryDeclined) -> None:
    """An attempt has failed just now."""
    delay = event.delay if isinstance(event, RetryScheduled) else 0.0
    taken = sum(len(each.waits) for each in call.runs)
    run = Run(call.elapsed(), event.server, _waits(call, taken), event.reason.value, delay)
    call.runs = (*call.runs, run)


def of_call(call: Call, seconds: float) -> tuple[Phase, ...]:
    """``seconds``: how long the call took. The phases add up to them."""
    runs = list(call.runs)
    if runs and not runs[-1].delay and call.declined_by is not None:
        # Its failure was final: what was left to do belongs to it.
        runs[-1] = runs[-1]._replace(ended=seconds)
    else:
        taken = sum(len(each.waits) for each in runs)
        runs.append(Run(seconds, _server(call), _waits(call, taken)))
    return timeline.phases(runs, call.policy_seconds)


def show(call: Call, error: BaseException | None, seconds: float, slow: float | None) -> None:
    """Of a call that has ended, where it ran out of time or took ``slow`` seconds; None is off."""
    timed_out = isinstance(error, OperationTimeoutError)
    is_slow = slow is not None and seconds >= slow
    if not (timed_out or is_slow):
        return
    found = of_call(call, seconds)
    if isinstance(error, OperationTimeoutError):
        error.timeline = found
    if call.span is not None and call.span.is_recording():
        call.span.add_event(semconv.EVENT_TIMELINE, _attributes(found))
    timeline.log(call.operation, call.namespace, outcome_of(call, error), found)


def _attributes(found: Sequence[Phase]) -> dict[str, Any]:
    return {
        semconv.PHASES: tuple(
            f"{each.name} {each.server}" if each.server else each.name for each in found
        ),
        semconv.MILLISECONDS: tuple(round(each.milliseconds, 3) for each in found),
    }


def _waits(call: Call, taken: int) -> tuple[Wait, ...]:
    return tuple(
        Wait(each.seconds, each.what is For.SERVER, each.connecting or 0.0)
        for each in (call.waits or ())[taken:]
    )


def _server(call: Call) -> str | None:
    selected = call.server
    if call.selected is not None:
        selected = driver.selection.address(call.selected)
    return None if selected is None else address_text(selected)
