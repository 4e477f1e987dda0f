"""Collects the state of a client and its servers for ``status(client)``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pymongo_resilience.breakers import Snapshot
from pymongo_resilience.client_status import ClientStatus, HedgeCounts, ServerStatus
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import address_text
from pymongo_resilience_instrumentation.runtime import Runtime
from pymongo_resilience_instrumentation.selection.selection_explained import error_text, servers_of
from pymongo_resilience_instrumentation.telemetry.client_tracing import tracing_of

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.addresses import Address
    from pymongo_resilience_instrumentation.call import AnyClient
    from pymongo_resilience_instrumentation.driver.protocols import Pool


def status(client: AnyClient, runtime: Runtime | None) -> ClientStatus:
    """Implementation of ``pymongo_resilience.status``. ``runtime`` is None while the library is
    off.
    """
    described = client.topology_description
    budget = hedges = dead_peer_s = None
    breakers: Mapping[Address, Snapshot] = {}
    if runtime is not None:
        budget = runtime.limits.of(client).budget
        breakers = runtime.breakers_of(client)
        hedges = None if runtime.hedges is None else runtime.hedges.known(client)
        if runtime.owns_retries and driver.connections.can_watch():
            dead_peer_s = runtime.config.dead_peer_s or None

    def pool(at: Address) -> Pool | None:
        return driver.connections.pool_at(driver.clients.topology_of(client), at)

    if driver.clients.records_spans(client):
        spans: str | None = "pymongo"
    else:
        ours = runtime is not None and runtime.config.traces
        spans = "pymongo_resilience" if ours and tracing_of(client).enabled else None
    return ClientStatus(
        spans=spans,
        topology=described.topology_type_name,
        servers=tuple(
            ServerStatus(
                address=address,
                type=each.server_type_name,
                round_trip_time=each.round_trip_time,
                minimum_round_trip_time=each.min_round_trip_time or None,
                # None also with a pymongo that lacks the name, which the self-check has logged.
                in_flight=getattr(pool(at), "operation_count", None),
                circuit_breaker=breakers[at].state.value if at in breakers else None,
                error=None if each.error is None else error_text(each.error, at),
                lost_connections=driver.connections.lost(pool(at)),
            )
            for each in servers_of(described)
            for at, address in [(each.address, address_text(each.address))]
        ),
        dead_peer_s=dead_peer_s,
        retry_tokens=None if budget is None else budget.tokens,
        hedges=None
        if hedges is None
        else HedgeCounts(hedges.budget.reads, hedges.budget.sent, hedges.won),
        config=None if runtime is None else runtime.config,
    )
