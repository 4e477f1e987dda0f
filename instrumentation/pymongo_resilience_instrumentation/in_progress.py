"""The operation that the caller's thread or task is in; and what the library publishes of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from opentelemetry import context

from pymongo_resilience.internal_errors import logger
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.call import ENDED
from pymongo_resilience_instrumentation.limits import NO_DEADLINE
from pymongo_resilience_instrumentation.operation import CURRENT, Operation

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.limits import HasDeadline

T = TypeVar("T")

FOREIGN_CALL = Operation(ENDED)
"""In place of an operation, while foreign code is called."""
FOREIGN_CALL.detach()
FOREIGN_CALL.in_foreign_call = True

current_or_ended = CURRENT.get
"""The operation around the caller, one that has ended included."""


def current() -> Operation | None:
    """The operation that the caller's thread or task is in."""
    operation = CURRENT.get()
    return None if operation is None or operation.ended else operation


def in_foreign_call() -> bool:
    """Whether the library called the caller: a listener, hook, log handler or span processor.

    Its own operations are left to the driver, or it would be called for those as well.
    """
    operation = CURRENT.get()
    return operation is not None and operation.in_foreign_call


def call_foreign(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call foreign code, in which ``in_foreign_call()`` is true.

    A task that it starts reports nothing.
    """
    before = CURRENT.get()
    try:
        CURRENT.set(FOREIGN_CALL)
        return function(*args, **kwargs)
    finally:
        CURRENT.set(before)


def holds(operation: Operation) -> bool:
    """Return True if the caller's context is inside of this very operation.

    False in a coroutine that is closed from another context, as the garbage collector does. What
    the operation set is not there, so there is nothing to restore.
    """
    inner = CURRENT.get()
    while inner is not None and inner is not operation:
        inner = inner.outer
    return inner is not None


def unwind(outer: Operation | None) -> None:
    """What was begun inside of ``around``, by this thread or task, was interrupted before it was
    stored: restore what was before."""
    operation = CURRENT.get()
    if operation is None or operation is outer:
        return
    operation.leave()
    if CURRENT.get() is operation:
        CURRENT.set(outer)


def recover(entered: HasDeadline | None, outer: Operation | None) -> None:
    """Restore what was before ``entered`` began inside of ``around``, and end its span, after an
    internal error kept it from ending as usual."""
    operation = entered if isinstance(entered, Operation) else None
    if operation is None or holds(operation):
        timeout = getattr(entered, "deadline", None)
        if isinstance(timeout, driver.csot.ActiveTimeout):
            driver.csot.restore(timeout)
    if operation is None:
        return
    if holds(operation):
        if operation.outer_context is not None:
            context.attach(operation.outer_context)
        CURRENT.set(outer)
    operation.abandon()
    if operation.span is not None and operation.span.is_recording():
        call_foreign(operation.span.end)


def detach_in_child() -> None:
    """In a forked child: the operation in progress is the parent's, which ends and counts it."""
    operation = current()
    if operation is not None:
        operation.detach()


def clear_inherited() -> None:
    """Detach a task or forked child that was started inside of an operation from the operation's
    span and deadline, which end with the operation: a task keeps the context that it was started
    in."""
    operation = CURRENT.get()
    if operation is None or not operation.ended:
        return
    if operation.outer_context is not None:
        context.attach(operation.outer_context)
    if operation.deadline is not NO_DEADLINE and driver.csot.is_ours():
        driver.csot.forget_timeout()
    CURRENT.set(None)


logger.within = call_foreign
