"""Request deadlines for Celery: signals before and after each task."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from pymongo_resilience.deadlines.limits import RequestLimits
from pymongo_resilience.deadlines.request import Request
from pymongo_resilience.policies.blocks import Block


def connect_celery(
    *, header: str | None = None, max_ms: int | None = None, default_ms: int | None = None
) -> Callable[[], None]:
    """Give each task a deadline for all of its operations.

    A task's operations end at the earliest of these times: the value of its message header, its
    ``soft_time_limit``, its ``time_limit``, and ``max_ms``. Celery itself refuses expired tasks
    (``expires``).

    Call it once, in the module that creates the Celery application. Prefork workers inherit it.

    Args:
        header: The name of a message header with milliseconds, counted from the start of the task,
            as in ``place.apply_async(headers={"x-request-timeout-ms": 500})``.
        max_ms: The maximum for a task, in milliseconds.
        default_ms: The timeout of a task without the header and without limits, in milliseconds.

    Returns:
        A function that undoes the call.

    Raises:
        ConfigurationError: An argument is invalid.
    """
    limits = RequestLimits(header=header, max_ms=max_ms, default_ms=default_ms)
    signals: Any = import_module("celery.signals")
    running: dict[str, Block] = {}

    def begin(task_id: str, task: Any, **_: Any) -> None:
        seconds = _seconds(limits, task)
        if seconds is not None:
            block = running[task_id] = Request(seconds).step()
            # Not a ``with`` statement, because Celery reports the start and the end of a task
            # separately.
            block.__enter__()

    def end(task_id: str, **_: Any) -> None:
        block = running.pop(task_id, None)
        if block is not None:
            # Only mark the block as ended, because this may run in another context than ``begin``.
            block.ended = True

    # Celery keeps only weak references to receivers by default, and no other reference to these two
    # functions would remain.
    signals.task_prerun.connect(begin, weak=False)
    signals.task_postrun.connect(end, weak=False)

    def disconnect() -> None:
        signals.task_prerun.disconnect(begin)
        signals.task_postrun.disconnect(end)

    return disconnect


def _seconds(limits: RequestLimits, task: Any) -> float | None:
    """Return how long a task may take, or None if it has no limit."""
    request = task.request
    value: Any = None
    if limits.header:
        # Celery 5 stores a message's headers in ``headers``, or as attributes of the request.
        headers: Any = getattr(request, "headers", None) or {}
        value = headers.get(limits.header, getattr(request, limits.header, None))
    # The message's own limits, as (hard, soft), take precedence over those of the task's class.
    hard, soft = getattr(request, "timelimit", None) or (None, None)
    hard, soft = hard or task.time_limit, soft or task.soft_time_limit
    limits_s = [float(each) for each in (hard, soft) if each]
    # The default applies only to tasks without a header and without limits.
    if value is not None or not limits_s:
        text = None if value is None else str(value)
        from_header = limits.seconds_of_header(text)
        if from_header is not None:
            limits_s.append(from_header)
    return limits.seconds_of(min(limits_s)) if limits_s else None
