"""Resets in a forked child what it must not inherit from its parent.

A child has a single thread, the one that forked, so a lock that another thread held would stay
locked forever. Every lock is replaced, and nothing is in progress: no operation or span, no
attempt, no deferred work, and no server of an inherited client until the child uses it. Budgets are
full and breakers closed. Patches, the enabled flag and the configuration stay.

OpenTelemetry's SDK cannot be reset from here. An SDK that was set up before the fork continues in
the child with its sums, and a lock of its metrics that another thread held stays locked
(opentelemetry-sdk 1.45.2). So servers that fork workers should set up the SDK in each worker.
"""

from __future__ import annotations

import os
import threading

from pymongo_resilience.internal_errors import contain_internal_errors
from pymongo_resilience.policies.blocks import policies_used
from pymongo_resilience_instrumentation.recovery import silent_servers
from pymongo_resilience_instrumentation.runtime import Runtime
from pymongo_resilience_instrumentation.telemetry import transaction_spans
from pymongo_resilience_instrumentation.telemetry.transaction_spans import sessions_used
from pymongo_resilience_instrumentation.timeouts.command_limits import reply_limits_used
from pymongo_resilience_instrumentation.timeouts.precedence import cursor_timeouts_used

from . import deferred, in_progress

HAVE_LOCKS = ("clients", "limits", "hedges")
switching = threading.RLock()
"""Held while the library is turned on or off."""
_watched: Runtime | None = None


def watch(runtime: Runtime | None) -> None:
    """Reset the state of ``runtime`` in forked children from now on. None stops that."""
    global _watched  # noqa: PLW0603 - one for the process, as is the hook below
    _watched = runtime


def _in_child() -> None:
    """Reset the state. Runs in the thread that forked, before any other code of the program."""
    global switching  # noqa: PLW0603 - one for the process
    switching = threading.RLock()
    for used in (policies_used, cursor_timeouts_used, reply_limits_used, sessions_used):
        used.reset_after_fork()
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


# Windows has no fork.
if hasattr(os, "register_at_fork"):
    # Runs after pymongo's own hook, because pymongo was imported before. pymongo's hook calls no
    # listener.
    os.register_at_fork(after_in_child=_in_child)
