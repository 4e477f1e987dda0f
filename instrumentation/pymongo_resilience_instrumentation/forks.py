"""What a forked child must not take over from its parent: here, and nowhere else.

A child has a single thread, the one that forked: a lock that another one held would stay locked.
So every lock there is a new one, and nothing is in progress: no operation and none of its spans, no
attempt, no deferred work, no server of an inherited client until the child uses it. Budgets are
full, breakers closed. The patches, the enabled flag and the configuration stay.

Not ours to reset is OpenTelemetry's SDK. One that was set up before the fork goes on in the child
with the sums it had, and a lock of its metrics that some thread held just then stays locked there
(opentelemetry-sdk 1.45.2). So servers that fork their workers set it up in each worker.
"""

from __future__ import annotations

import os
import threading

from pymongo_resilience.internal_errors import contain_internal_errors
from pymongo_resilience_instrumentation.recovery import silent_servers
from pymongo_resilience_instrumentation.runtime import Runtime
from pymongo_resilience_instrumentation.telemetry import transaction_spans

from . import deferred, in_progress

HAVE_LOCKS = ("clients", "limits", "hedges")
switching = threading.RLock()
"""Held while the library is switched on or off."""
_watched: Runtime | None = None


def watch(runtime: Runtime | None) -> None:
    """Reset the state of ``runtime`` in a forked child from now on; None for none."""
    global _watched  # noqa: PLW0603 - one for the process, as is the hook below
    _watched = runtime


def _in_child() -> None:
    """Runs in the thread that forked, before anything else of the program does."""
    global switching  # noqa: PLW0603 - one for the process
    switching = threading.RLock()
    runtime = _watched
    if runtime is None:
        return
    steps = [deferred.pending.clear, in_progress.detach_in_child, in_progress.clear_inherited]
    steps += [runtime.in_flight.clear, transaction_spans.open_spans.clear]
    steps += [silent_servers.watcher.reset_after_fork]
    for name in HAVE_LOCKS:
        part = getattr(runtime, name)
        if part is not None:
            steps.append(part.reset_after_fork)
    for step in steps:
        with contain_internal_errors("in a forked child"):
            step()


if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    # After pymongo's own hook, since pymongo was imported before: that one calls no listener.
    os.register_at_fork(after_in_child=_in_child)
