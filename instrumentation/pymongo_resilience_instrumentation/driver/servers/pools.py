"""What pymongo's pool of one server has at the moment.

Each is one look without the pool's lock, so it is right or a step behind; what is counted by events
would cost each operation.
"""

from __future__ import annotations

from typing import Any

IDLE, IN_USE = "conns", "requests"
PLACES = ("size_cond", "_max_connecting_cond")
"""Where a check-out waits: for its place among maxPoolSize, and among those who connect."""


def pool_of(client: Any, address: Any) -> Any:
    """Of one server; None where the client does not look at it, or has not begun to."""
    topology = client._topology
    server = None if topology is None else topology.get_server_by_address(address)
    return None if server is None else server.pool


def connections(client: Any, address: Any) -> tuple[int, int]:
    """How many are idle, and how many are in use at most: those that are being made and those that
    are taken, wherever they are now. Neither has those that the pool is closing."""
    pool = pool_of(client, address)
    return (0, 0) if pool is None else (len(getattr(pool, IDLE)), getattr(pool, IN_USE))


def operations_in_progress(client: Any, address: Any) -> int | None:
    """Operations that have a connection of the server's pool or wait for one; None where the
    client has not begun to look for servers."""
    pool = pool_of(client, address)
    return None if pool is None else int(pool.operation_count)


def places_to_wait(client: Any, address: Any) -> tuple[Any, ...]:
    """What a wait for one of the pool's connections is for: the pool itself, where it connects."""
    pool = pool_of(client, address)
    return () if pool is None else (pool, *(getattr(pool, name) for name in PLACES))
