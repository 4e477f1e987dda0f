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


def former_primary(topology: Any) -> Address | None:
    """After a change: the address of the member that was the primary until then, where another one
    is now, or where its own reply is that of no primary. Each is reported once."""
    described = topology._description.server_descriptions()
    before: Address | None = getattr(topology, _PRIMARY, None)
    now = next((at for at, each in described.items() if each.server_type_name == "RSPrimary"), None)
    if now is not None:
        setattr(topology, _PRIMARY, now)
        return None if before == now else before
    if before is None or before not in described or not described[before].is_server_type_known:
        return None
    setattr(topology, _PRIMARY, None)
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


def is_known(topology: Any, address: Address) -> bool:
    found = topology._description.server_descriptions().get(address)
    return found is not None and bool(found.is_server_type_known)


def check(topology: Any, address: Address) -> None:
    """Have the server checked anew."""
    server = topology._servers.get(address)
    if server is not None:
        server._monitor.cancel_check()
        server._monitor.request_check()
