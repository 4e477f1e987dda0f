"""What pymongo knows of a deployment, and where it learns it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pymongo_resilience_instrumentation.addresses import Address

CHANGE = "_process_change"
"""A topology's method: called under its lock with every new description of a server."""
_PRIMARY = "_pymongo_resilience_primary"


def topologies() -> Iterator[tuple[type, bool]]:
    """Its classes, and whether they are of asyncio."""
    for half in ("synchronous", "asynchronous"):
        yield importlib.import_module(f"pymongo.{half}.topology").Topology, half == "asynchronous"


def replaced_primary(topology: Any) -> Address | None:
    """After a change: the address of the last primary, where another member is it now. Each is
    reported once."""
    described = topology._description.server_descriptions()
    before: Address | None = getattr(topology, _PRIMARY, None)
    now = next((at for at, each in described.items() if each.server_type_name == "RSPrimary"), None)
    if now is None or now == before:
        return None
    setattr(topology, _PRIMARY, now)
    return before


def pool_at(topology: Any, address: Address) -> Any:
    """None where the client does not know the server any more, or is closed."""
    server = topology._servers.get(address) if topology._opened else None
    return None if server is None else server.pool


def last_reply_at(topology: Any, address: Address) -> float:
    """On the driver's clock: when the server answered a check. Minus infinity where the last one
    failed."""
    server = topology._servers.get(address)
    if server is None:
        return float("-inf")
    found = server._monitor._server_description
    return float(found.last_update_time) if found.is_server_type_known else float("-inf")


def check(topology: Any, address: Address) -> None:
    """Have the server checked anew."""
    server = topology._servers.get(address)
    if server is not None:
        server._monitor.cancel_check()
        server._monitor.request_check()
