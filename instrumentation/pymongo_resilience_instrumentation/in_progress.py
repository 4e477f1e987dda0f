"""The operation that the caller's thread or task is in, and how it is entered and left."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

from bson.errors import BSONError
from opentelemetry import context
from pymongo.errors import PyMongoError

from pymongo_resilience.internal_errors import catch_also, foreign, logger
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.operation import LEFT, NO_DEADLINE, PAST_DEADLINE, Operation

T = TypeVar("T")

REPORTING = Operation(None, "", ("", None))
"""In place of an operation, while foreign code is called."""
REPORTING.reporting = REPORTING.ended = True
REPORTING.public = REPORTING.reads_inside = False

_current: ContextVar[Operation | None] = ContextVar("pymongo_resilience_call", default=None)


found = _current.get
"""The operation around the caller, one that has ended included."""


def current() -> Operation | None:
    """The operation that the caller's thread or task is in."""
    operation = _current.get()
    return None if operation is None or operation.ended else operation


def reporting() -> bool:
    """Whether the library called the caller: a listener, hook, log handler or span processor.

    Its own operations are left to the driver, or it would be called for those as well.
    """
    operation = _current.get()
    return operation is not None and operation.reporting


def reported(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call foreign code; ``reporting()`` is true inside. A task that it starts reports nothing."""
    before = _current.get()
    _current.set(REPORTING)
    try:
        return function(*args, **kwargs)
    finally:
        _current.set(before)


def publish(operation: Operation, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Operation ``reported`` code in a block that catches our faults; ``operation`` is in progress.

    Raises ForeignError.
    """
    before = operation.reporting, operation.ended
    operation.reporting = operation.ended = True
    try:
        return foreign(function, *args, **kwargs)
    finally:
        operation.reporting, operation.ended = before


make_current = _current.set


def leave(operation: Operation) -> None:
    """The caller's own span is the current one again.

    Where an exception of a signal handler strikes half-way, it may be called once more: so what is
    in force ends first, and the operation is forgotten last.
    """
    operation.ended = True
    if _current.get() is operation:
        if (
            isinstance(operation.deadline, driver.csot.InForce)
            and operation.deadline.before is not None
        ):
            operation.deadline.__exit__(None, None, None)
        if operation.outer_context is not None:
            # Not by detaching, which takes any exception for its own fault.
            context.attach(operation.outer_context)
        if operation.token is not None:
            _current.reset(operation.token)
    if operation.deadline is not NO_DEADLINE:
        # A context that outlives the operation, a connection's or a task's, keeps the operation.
        operation.deadline = PAST_DEADLINE
    operation.history = LEFT
    operation.interruption = operation.terminal_detector = None
    operation.command_spans.clear()
    operation.client = operation.instance = operation.session = None


def unwind(around: Operation | None) -> None:
    """What was begun inside of ``around``, by this thread or task, was interrupted before it was
    stored: restore what was before."""
    operation = _current.get()
    if operation is None or operation is around:
        return
    leave(operation)
    if _current.get() is operation:
        _current.set(around)


def leave_unfinished(operation: Operation) -> None:
    """A coroutine is closed unfinished, in whatever context: see ``deferred``. Nothing is set or
    reset; an operation that begins in its own context finds the operation among what is
    inherited."""
    operation.ended = True
    operation.client = operation.instance = operation.session = None
    operation.history.loop = operation.history.final_error = operation.terminal_detector = None
    operation.token = None


def detach_in_child() -> None:
    """In a forked child: the operation in progress is the parent's, which ends and counts it."""
    operation = current()
    if operation is None:
        return
    operation.ended = True
    operation.public = operation.reads_inside = False
    operation.span = None
    operation.command_spans.clear()


def clear_inherited() -> None:
    """Detach a task or forked child that was started inside of an operation from the operation's
    span and deadline, which end with the operation: a task keeps the context that it was started
    in."""
    operation = _current.get()
    if operation is None or not operation.ended:
        return
    if operation.outer_context is not None:
        context.attach(operation.outer_context)
    ours = operation.deadline is not NO_DEADLINE
    if ours and driver.csot.timeout_in_force() == operation.timeout:
        driver.csot.forget_timeout()
    _current.set(None)


logger.within = reported
catch_also(PyMongoError, BSONError)
