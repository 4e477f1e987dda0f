"""What a client that is being made gets of the library: listeners, a retry budget, a selector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience.enabled_flag import EnabledFlag
from pymongo_resilience.internal_errors import logger
from pymongo_resilience_instrumentation import deferred, monkey_patching
from pymongo_resilience_instrumentation.telemetry.client_tracing import (
    contrib_is_active,
    keep,
    tracing_of,
)
from pymongo_resilience_instrumentation.telemetry.command_spans import Commands
from pymongo_resilience_instrumentation.telemetry.listeners import Heartbeats, OurListener, Pools

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pymongo_resilience_instrumentation.clients.client_registry import ClientState
    from pymongo_resilience_instrumentation.runtime import Runtime
    from pymongo_resilience_instrumentation.telemetry.client_tracing import Tracing


def configure(
    runtime: Runtime,
    client: Any,
    listeners: Sequence[Any],
    adaptive: bool | None,
    tracing_option: Mapping[str, Any] | None = None,
) -> list[Any]:
    """The client's listeners: its own, and ours once.

    ``adaptive``, ``tracing_option``: what the client says of its retry budget and its spans.
    """
    own = [each for each in listeners if not isinstance(each, OurListener)]
    if not _may_act(runtime):
        return own
    deferred.run_at_exit(True)
    budget = runtime.budgets.open(client, adaptive)
    runtime.coroutines.register(client)
    state = runtime.clients.add(client, budget)
    tracing = runtime.tracers.settle(tracing_option)
    keep(client, tracing)
    return own + _listeners(runtime, state, tracing)


def carry_over(runtime: Runtime, client: Any) -> bool:
    """Have the listeners that a client got of an earlier ``instrument()`` report to this one.

    False where it has not all those that a new client gets now: it keeps the kinds it was made
    with. In the driver's own view nothing changes.
    """
    ours = [each for each in client.options.event_listeners if isinstance(each, OurListener)]
    state = next((each.client for each in ours if isinstance(each, Pools)), None)
    if state is None or not runtime.clients.has(state):
        return False
    state.budget = runtime.budgets.of(client)
    wanted = {type(each): each for each in _listeners(runtime, state, tracing_of(client))}
    for each in ours:
        made = wanted.pop(type(each), None)
        if made is None:
            each.enabled_flag = EnabledFlag()
        else:
            vars(each).update(vars(made))
    return not wanted and not runtime.counts_in_flight


def _listeners(runtime: Runtime, state: ClientState, tracing: Tracing) -> list[Any]:
    """The listeners of one new client: only what is consumed, since each listener costs.

    No server or topology listeners: with one, pymongo starts a thread for each client, whose
    ``close()`` then takes half a second longer, and an async client can no longer be made outside
    of a running event loop. ``client.topology_description`` has the same facts.
    """
    spans, metrics = runtime.command_spans if tracing.enabled else None, runtime.driver_metrics
    if spans is None and metrics is None:
        return []
    flag = runtime.enabled_flag
    chosen: list[Any] = []
    # Where pymongo's own loop decides, only a command's event shows which server it went to.
    if spans is not None or not runtime.owns_retries:
        by_contrib = spans is not None and runtime.tracers.recorded_by_contrib()
        elsewhere = contrib_is_active if by_contrib else None
        chosen.append(Commands(spans, flag, tracing, elsewhere))
    if metrics is not None:
        chosen.append(Heartbeats(metrics, flag))
    # Only pool events name the connection of a command, so spans need them too.
    chosen.append(Pools(state, metrics, flag))
    return chosen


def select_for(
    runtime: Runtime, client: Any, option: tuple[str, tuple[Any, ...]], kwargs: dict[str, Any]
) -> None:
    """Put our selector among the client's options, around its own."""
    name, given = option
    own = given[0] if given else None
    # What cannot be called is the driver's to refuse.
    if runtime.selectors is not None and runtime.enabled_flag.on and (own is None or callable(own)):
        kwargs[name] = runtime.selectors.of_new_client(client, own)


def _may_act(runtime: Runtime) -> bool:
    """False once the process was monkey-patched after ``instrument()``: then it is all off.

    Checked when a client is made, since the patching itself cannot be noticed.
    """
    refusal = monkey_patching.refusal()
    if refusal is not None:
        runtime.enabled_flag.turn(on=False)
        logger.error("%s; pymongo-resilience is switched off from now on", refusal)
    return refusal is None
