"""What a client that is being made gets of the library: listeners, a retry budget, a selector."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pymongo_resilience_instrumentation import monkey_patching
from pymongo_resilience_instrumentation.listeners import OurListener, listeners_of
from pymongo_resilience_instrumentation.other_tracers import contrib_is_active
from pymongo_resilience_instrumentation.tracing import keep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pymongo_resilience_instrumentation.runtime import Runtime

logger = logging.getLogger("pymongo_resilience")


def equip(
    runtime: Runtime,
    client: Any,
    listeners: Sequence[Any],
    adaptive: bool | None,
    said_of_tracing: Mapping[str, Any] | None = None,
) -> list[Any]:
    """The client's listeners: its own, and ours once.

    ``adaptive``, ``said_of_tracing``: what the client says of its retry budget and its spans.
    """
    own = [each for each in listeners if not isinstance(each, OurListener)]
    if not _may_act(runtime):
        return own
    budget = runtime.budgets.open(client, adaptive)
    runtime.coroutines.meet(client)
    state = runtime.clients.add(client, budget)
    tracing = runtime.tracers.settle(said_of_tracing)
    keep(client, tracing)
    draws = runtime.command_spans is not None and tracing.enabled
    return own + listeners_of(
        state,
        runtime.command_spans if draws else None,
        runtime.driver_metrics,
        runtime.switch,
        tracing=tracing,
        tells_server=not runtime.judges,
        drawn_elsewhere=(
            contrib_is_active if draws and runtime.tracers.drawn_by_contrib() else None
        ),
    )


def select_for(
    runtime: Runtime, client: Any, option: tuple[str, tuple[Any, ...]], kwargs: dict[str, Any]
) -> None:
    """Put our selector among the client's options, around its own."""
    name, given = option
    own = given[0] if given else None
    # What cannot be called is the driver's to refuse.
    if runtime.selectors is not None and runtime.switch.on and (own is None or callable(own)):
        kwargs[name] = runtime.selectors.of_new_client(client, own)


def _may_act(runtime: Runtime) -> bool:
    """False once the process was monkey-patched after ``instrument()``: then it is all off.

    Asked when a client is made, since the patching itself tells nobody.
    """
    refusal = monkey_patching.refusal()
    if refusal is not None:
        runtime.switch.on = False
        logger.error("%s; pymongo-resilience is switched off from here on", refusal)
    return refusal is None
