"""The operation that the caller's thread or task is in, and calls of foreign code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from opentelemetry import context

from pymongo_resilience.internal_errors import ForeignError, logger
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.call import ENDED
from pymongo_resilience_instrumentation.limits import NO_DEADLINE
from pymongo_resilience_instrumentation.operation import CURRENT, Operation

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.limits import HasDeadline

T = TypeVar("T")

FOREIGN_CALL = Operation(ENDED)
"""Stands in for the operation while foreign code is called."""
FOREIGN_CALL.detach()
FOREIGN_CALL.in_foreign_call = True

current_or_ended = CURRENT.get
"""Return the operation around the caller, even if it has ended."""


def current() -> Operation | None:
    """Return the operation that the caller's thread or task is in, or None."""
    operation = CURRENT.get()
    return None if operation is None or operation.ended else operation


def in_foreign_call() -> bool:
    """Return True if the library called the current code: a listener, hook, log handler, or span
    processor.

    Operations of such code are left to pymongo. Otherwise, it would be called for those as well.
    """
    operation = CURRENT.get()
    return operation is not None and operation.in_foreign_call


def call_foreign(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call foreign code. Inside, ``in_foreign_call()`` is true.

    Tasks that the foreign code starts report nothing, either.
    """
    before = CURRENT.get()
    try:
        CURRENT.set(FOREIGN_CALL)
        return function(*args, **kwargs)
    finally:
        CURRENT.set(before)


def call_foreign_wrapped(function: Callable[..., T], *args: Any) -> T:
    """Do what ``call_foreign`` does, and wrap an error of the foreign code, in one call.

    Raises:
        ForeignError: the foreign code has raised an exception.
    """
    before = CURRENT.get()
    try:
        CURRENT.set(FOREIGN_CALL)
        return function(*args)
    except Exception as error:
        raise ForeignError(error) from error
    finally:
        CURRENT.set(before)


def holds(operation: Operation) -> bool:
    """Return True if the caller's context is inside of this very operation.

    False if the garbage collector closes a coroutine in another context. That context does not
    contain what the operation has set, so nothing must be restored there.
    """
    inner = CURRENT.get()
    while inner is not None and inner is not operation:
        inner = inner.outer
    return inner is not None


def unwind(outer: Operation | None) -> None:
    """Leave operations that this thread or task began inside of ``outer``, if a signal handler
    raised before ``enter`` could return them.
    """
    operation = CURRENT.get()
    if operation is None or operation is outer:
        return
    operation.leave()
    if CURRENT.get() is operation:
        CURRENT.set(outer)


def recover(entered: HasDeadline | None, outer: Operation | None) -> None:
    """Restore the state from before ``entered`` began inside of ``outer``, and end its span.

    Called after an internal error prevented its normal end.
    """
    operation = entered if isinstance(entered, Operation) else None
    if operation is None or holds(operation):
        timeout = getattr(entered, "deadline", None)
        if isinstance(timeout, driver.csot.ActiveTimeout):
            driver.csot.restore(timeout)
    if operation is None:
        return
    if holds(operation):
        if operation.outer_context is not None:
            # The operation's span must not become the parent of what the application does next.
            context.attach(operation.outer_context)
        CURRENT.set(outer)
    operation.abandon()
    # Not by Operation.span: this runs after a bug, which may be in there.
    span = None if operation.shown is None else operation.shown.span
    if span is not None and span.is_recording():
        call_foreign_wrapped(span.end)


def detach_in_child() -> None:
    """In a forked child, detach the current operation, which the parent ends and counts."""
    operation = current()
    if operation is not None:
        operation.detach()


def clear_inherited() -> None:
    """Detach a task or a forked child from the operation in which it was started, if that has
    ended.
    """
    operation = CURRENT.get()
    if operation is None or not operation.ended:
        return
    # A task keeps the context in which it was started. Its spans must not belong to an ended
    # operation.
    if operation.outer_context is not None:
        context.attach(operation.outer_context)
    # The timeout belonged to the operation. Without this, the task would keep an expired deadline.
    if operation.deadline is NO_DEADLINE or driver.csot.forget_ended():
        CURRENT.set(None)


# Log handlers are foreign code: one that writes to MongoDB must not log its own writes.
logger.within = call_foreign
