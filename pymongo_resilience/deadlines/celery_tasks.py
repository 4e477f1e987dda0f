"""Celery: signals around each task."""

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
    """Give all operations of a task one deadline together; return a function that ends that.

    A task ends by the earliest of these: what its message header says, its ``soft_time_limit``,
    its ``time_limit``, and ``max_ms``. Celery refuses expired tasks itself (``expires``).

    Args:
        header: The name of a header of the message with milliseconds, counted from the begin of the
            task: ``place.apply_async(headers={"x-request-timeout-ms": 500})``.
        max_ms: Milliseconds that a task may have at most.
        default_ms: Milliseconds of a task without the header and without limits.

    Raises:
        ConfigurationError: One of the arguments is not legal.

    Call it once, in the module that makes the Celery application; prefork workers inherit it.
    """
    limits = RequestLimits(header=header, max_ms=max_ms, default_ms=default_ms)
    signals: Any = import_module("celery.signals")
    running: dict[str, Block] = {}

    def begin(task_id: str, task: Any, **_: Any) -> None:
        seconds = _seconds(limits, task)
        if seconds is not None:
            block = running[task_id] = Request(seconds).step()
            block.__enter__()

    def end(task_id: str, **_: Any) -> None:
        block = running.pop(task_id, None)
        if block is not None:
            block.ended = True

    signals.task_prerun.connect(begin, weak=False)
    signals.task_postrun.connect(end, weak=False)

    def disconnect() -> None:
        signals.task_prerun.disconnect(begin)
        signals.task_postrun.disconnect(end)

    return disconnect


def _seconds(limits: RequestLimits, task: Any) -> float | None:
    """Return how long a task may take; None without a limit."""
    request = task.request
    value: Any = None
    if limits.header:
        # Of Celery 5: in ``headers``, or among the attributes of the request.
        headers: Any = getattr(request, "headers", None) or {}
        value = headers.get(limits.header, getattr(request, limits.header, None))
    hard, soft = getattr(request, "timelimit", None) or (None, None)
    hard, soft = hard or task.time_limit, soft or task.soft_time_limit
    found = [float(each) for each in (hard, soft) if each]
    if value is not None or not found:
        text = None if value is None else str(value)
        said = limits.seconds_of_header(text)
        if said is not None:
            found.append(said)
    return limits.seconds_of(min(found)) if found else None
