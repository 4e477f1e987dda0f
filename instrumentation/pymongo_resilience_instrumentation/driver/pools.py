"""What pymongo's pool of one server has at the moment.

Each is one look without the pool's lock, so it is right or a step behind; what is counted by events
would cost each operation.
"""

from __future__ import annotations

from typing import Any

IDLE = "conns"
PLACES = ("size_cond", "_max_connecting_cond")
"""Where a check-out waits: for its place among maxPoolSize, and among those who connect."""


def _pool(client: Any, address: Any) -> Any:
    """None where the client does not look at that server, or has not begun to."""
    topology = client._topology
    server = None if topology is None else topology.get_server_by_address(address)
    return None if server is None else server.pool


def idle_connections(client: Any, address: Any) -> int:
    pool = _pool(client, address)
    return 0 if pool is None else len(getattr(pool, IDLE))


def operations_in_progress(client: Any, address: Any) -> int | None:
    """Operations that have a connection of the server's pool or wait for one; None where the
    client has not begun to look for servers."""
    pool = _pool(client, address)
    return None if pool is None else int(pool.operation_count)


def waits_in(client: Any, address: Any, place: Any) -> bool:
    """Whether ``place`` is of that pool: what the driver waits for, or the pool that connects."""
    pool = _pool(client, address)
    return pool is not None and (
        place is pool or any(place is getattr(pool, name) for name in PLACES)
    )
