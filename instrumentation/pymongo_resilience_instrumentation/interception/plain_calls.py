"""Calls that nothing holds for, neither a policy nor a timeout: most of them.

The way in is short for those.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from pymongo_resilience import blocks
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.calls import NEVER
from pymongo_resilience_instrumentation.deferred import pending, run_deferred

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.runtime import Runtime

UNKNOWN = float("nan")


def none_holds(runtime: Runtime) -> Callable[[Any], bool]:
    """Whether a call of a client is one, but for what the call's own object and session say."""
    # On the way of every operation, so looked up once.
    found, around = calls.found, blocks.innermost
    timeout_in_force, deadline = driver.deadline.TIMEOUT.get, driver.deadline.DEADLINE.get
    own_timeouts = runtime.client_timeouts
    if not runtime.no_configured_timeout:
        return lambda _: False

    def holds_not(client: Any) -> bool:
        return (
            found() is None
            and around() is None
            and timeout_in_force() is None
            and deadline() == NEVER
            and own_timeouts.get(id(client), UNKNOWN) is None
        )

    return holds_not


def enter(runtime: Runtime) -> Callable[[Call], None]:
    """As ``Runtime.begin``, for such a call."""
    make_current, light = calls.make_current, runtime.light
    # Of a variable that is not set, its default is looked for anew each time: as long as for three
    # that are set, and the driver asks for this one sixteen times.
    set_timeout = driver.deadline.TIMEOUT.set

    def enter_plain(call: Call) -> None:
        if pending:
            run_deferred()
        call.started = perf_counter()
        call.light = light
        call.token = make_current(call)
        set_timeout(None)

    return enter_plain
