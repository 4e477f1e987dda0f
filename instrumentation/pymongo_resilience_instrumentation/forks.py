"""What a forked child must not take over from its parent: here, and nowhere else.

A child has the parent's memory and a single thread, the one that forked. What the other threads
were doing is never finished there: a lock they held would stay locked, a connection in use would be
counted as used for ever. So in the child

- every lock is a new one;
- no client has a server until the child uses it. pymongo gives an inherited client a new topology
  and new connections, and the gauges show only those: the parent shows its own;
- a call in progress is the parent's, which ends its spans and counts it. What the child calls has
  neither that span above it nor that deadline, even where the fork happened inside of the call (in
  a generator that ``insert_many`` reads from, say);
- so is a command in flight without a call, as a ``close()`` sends it with the strategy ``driver``;
- what the parent's finalizers, and its open transactions, left for later is the parent's to do;
- no attempt is counted as in progress on a server: those are the parent's;
- retry budgets are full again and circuit breakers closed, with locks of their own. A permit that
  the parent's call holds does not count.

The patches, the enabled flag and the configuration stay: a fork after ``instrument()`` is
instrumented.

Not ours to reset is OpenTelemetry's SDK. One that was set up before the fork goes on in the child
with the sums it had, and a lock of its metrics that some thread held just then stays locked there
(opentelemetry-sdk 1.45.2). So servers that fork their workers set it up in each worker.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pymongo_resilience.internal_errors import shielded

from . import calls, deferred
from .clients import by_client

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.runtime import Runtime

_watched: Runtime | None = None


def watch(runtime: Runtime | None) -> None:
    """Reset the state of ``runtime`` in a forked child from now on; None for none."""
    global _watched  # noqa: PLW0603 - one for the process, as is the hook below
    _watched = runtime


def _in_child() -> None:
    """Runs in the thread that forked, before anything else of the program does."""
    runtime = _watched
    if runtime is None:
        return
    parts = (
        runtime.clients,
        runtime.budgets,
        runtime.closings,
        runtime.breakers,
        runtime.shedding,
        runtime.selectors,
        runtime.transaction_spans,
        runtime.hedges,
    )
    steps = [deferred.forget_deferred, calls.detach_in_child, calls.clear_inherited]
    steps += [by_client.reset_after_fork]
    steps.append(runtime.in_flight.clear)
    steps += [part.reset_after_fork for part in parts if part is not None]
    for step in steps:
        with shielded("in a forked child"):
            step()


if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    # After pymongo's own hook, since pymongo was imported before: that one calls no listener.
    os.register_at_fork(after_in_child=_in_child)
