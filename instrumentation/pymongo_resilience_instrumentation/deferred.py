"""Work that finalizers leave for later by appending it to a deque.

Finalizers, callbacks of weak references, and coroutines that are closed before they finish run
wherever the garbage collector runs: inside an allocation, and while the thread may hold any lock.
Ending a span or recording a measurement there would run foreign code, and deadlock on a lock that
is not reentrant. And if a context variable is set there while the interrupted code sets one,
CPython 3.11 crashes (gh-148891).
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
"""The work of this process. Checked when an operation begins, in pymongo's background task, and
when metrics are collected.
"""

defer = pending.append
"""Safe anywhere, because it is a single step without an allocation that triggers the collector."""


def run_deferred() -> None:
    """Run all pending work in a new context, so that commands it sends are left to pymongo.

    Raises what a signal handler raises.
    """
    kept_variables.clear()
    while pending:
        try:
            work = pending.popleft()
        except IndexError:
            # Another thread took the last item.
            return
        with contain_internal_errors("in deferred work"):
            Context().run(in_progress.call_foreign, work)


at_exit: list[Callable[[], object]] = []
"""Functions to call at exit after the deferred work. Each module with something to end adds one."""
_providers: tuple[object, object] | None = None
"""OpenTelemetry's providers when ``_finish`` was registered; None if it is not registered."""


def run_at_exit() -> None:
    """Finish open work when the process exits, before the SDKs that exist now shut down.

    Called for each client and each transaction.
    """
    global _providers  # noqa: PLW0603 - one for the process
    tracers, meters = trace.get_tracer_provider(), metrics.get_meter_provider()
    # atexit runs the last registration first, so register after each new SDK, but not more often:
    # CPython keeps a slot for each registration forever, and walks all of them to unregister one.
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
