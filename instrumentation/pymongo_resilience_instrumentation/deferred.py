"""What finalizers leave for later: they only append to a deque.

A finalizer, a weak reference's callback and a coroutine that is closed unfinished run wherever the
garbage collector does: inside an allocation, while the thread holds a lock of anybody's. Ending a
span or recording a measurement there runs foreign code. On CPython 3.11 a context variable that is
set there, while the interrupted code sets one, ends in a crash (CPython issue 148891); on any
version a lock that is not reentrant deadlocks.
"""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Callable
from contextvars import Context

from opentelemetry import metrics, trace

from pymongo_resilience.closing import kept_variables
from pymongo_resilience.internal_errors import contain_internal_errors

from . import in_progress

pending: deque[Callable[[], object]] = deque()
"""For the process. Its truth is tested where an operation begins, in the driver's background task
and where metrics are collected."""

defer = pending.append
"""Safe anywhere: one step, and no allocation that the collector counts."""


def run_deferred() -> None:
    """Everything that is pending, in a context of its own: what is sent meanwhile is the driver's
    alone. Raises what a signal handler does."""
    kept_variables.clear()
    while pending:
        try:
            work = pending.popleft()
        except IndexError:  # another thread was faster
            return
        with contain_internal_errors("in deferred work"):
            Context().run(in_progress.call_foreign, work)


at_exit: list[Callable[[], object]] = []
"""Called at exit after the deferred work; each module that has something to end adds to it once."""
_providers: tuple[object, object] | None = None
"""OpenTelemetry's, as they were when ``_finish`` was registered; None while it is not."""


def run_at_exit() -> None:
    """Finish open work when the process exits, before the SDKs shut down that exist by now: what
    is registered last runs first.

    Called for each client and transaction, but registered anew only for another SDK. CPython keeps
    a slot for each registration for ever, and walks all of them to unregister one.
    """
    global _providers  # noqa: PLW0603 - one for the process
    tracers, meters = trace.get_tracer_provider(), metrics.get_meter_provider()
    if _providers is None or _providers[0] is not tracers or _providers[1] is not meters:
        atexit.unregister(_finish)
        atexit.register(_finish)
        _providers = tracers, meters


def do_not_run_at_exit() -> None:
    global _providers  # noqa: PLW0603 - as above
    if _providers is not None:
        atexit.unregister(_finish)
        _providers = None


def _finish() -> None:
    run_deferred()
    for end in at_exit:
        end()
