"""Calls that begin late: where nothing holds for an operation and no telemetry watches it, its
wrapper makes no call, and most operations end without one.

Who needs the call after all, as a failed attempt does, has it begun by ``begin_late``: each wrapper
on the stack that has put its own off then enters it, the outermost first, as if it had at once.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from pymongo_resilience.internal_errors import shielded
from pymongo_resilience_instrumentation import calls, driver

if TYPE_CHECKING:
    from types import CodeType

    from pymongo_resilience_instrumentation.calls import Call

NOT_SET: Any = object()
wrappers: set[CodeType] = set()
"""Of the functions that put calls off: they have a variable ``put_off`` while they do, and
``interceptor``, ``given`` and ``kwargs`` are what it takes to begin one."""


def set_nothing() -> None:
    """Set the driver's timeout and deadline to what they are where none is in force: to read a
    variable that is not set takes as long as to read three that are, and the driver reads the
    timeout sixteen times."""
    driver.csot.TIMEOUT.set(None)
    driver.csot.DEADLINE.set(calls.NEVER)


def begin_late() -> None:
    """Begin the calls that wrappers around the caller have put off, where none has begun."""
    if calls.found() is not None:
        return
    waiting: list[dict[str, Any]] = []
    frame = inspect.currentframe()
    this = None if frame is None else frame.f_code
    while frame is not None:
        frame = frame.f_back
        if frame is not None and frame.f_code in wrappers:
            if "put_off" in frame.f_locals:
                waiting.append(frame.f_locals)
        elif frame is not None and frame.f_code is this:
            return
    for variables in reversed(waiting):
        interceptor, given = variables["interceptor"], variables["given"]
        with shielded(f"before {type(interceptor).__name__}"):
            call = interceptor.enter(given, variables["kwargs"])
            if call is not None:
                call.late_for = given


def begun_for(given: tuple[Any, ...]) -> Call | None:
    """The call in progress, where it was begun late for the wrapper that has these arguments."""
    call = calls.found()
    return call if call is not None and call.late_for is given else None
