"""pymongo's pools while they create connections: idle connections, and operations that wait."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from .clients import ASYNC_API, SYNC_API

if TYPE_CHECKING:
    from .protocols import Connection, Pool

T = TypeVar("T")

PERISHED = "_perished"
"""A method of pools that returns whether a connection was lost or is too old, and then closes
it.
"""
WAITED_FOR = "_max_connecting_cond"
_KEPT = "_pymongo_resilience_dialing"


def is_monitor_pool(pool: Pool) -> bool:
    """Return True for the pool of a server's monitor, which has one connection."""
    # pymongo turns off pausing only for the pools of monitors.
    return not pool.opts.pause_enabled


def kept(pool: Pool, make: Callable[[], T]) -> T:
    """Return the object that is stored on the pool. ``make`` creates it at the first call."""
    found: T | None = getattr(pool, _KEPT, None)
    if found is None:
        found = make()
        setattr(pool, _KEPT, found)
    return found


condition = attrgetter(WAITED_FOR)
"""The condition that operations wait on until a connection is idle or another may be created. It
uses the pool's lock.
"""


def has_other_connections(pool: Pool, making: int) -> bool:
    """Return True if the pool has connections besides the ``making`` ones being created. The lock
    is held.
    """
    return len(pool.conns) + len(pool.active_contexts) > making


def count_waiting(pool: Pool) -> int:
    """Return the number of operations that wait for a connection, besides one whose connection has
    just failed.
    """
    return max(0, pool.operation_count - len(pool.active_contexts) - 1)


def take_idle(pool: Pool) -> Connection | None:
    """Take an idle connection from the pool, or return None. The lock is held."""
    if not pool.conns:
        return None
    connection: Connection = pool.conns.popleft()
    # pymongo's checkout does this only for connections that it has taken from the pool itself. It
    # considers the one that we return newly created.
    pool.active_contexts.add(connection.cancel_context)
    return connection


def wait(pool: Pool, seconds: float) -> None:
    """Wait until a connection was returned or created. The lock is held."""
    getattr(SYNC_API.module("pool"), SYNC_API.wait)(condition(pool), seconds)


async def wait_async(pool: Pool, seconds: float) -> None:
    """As ``wait``, in a task."""
    await getattr(ASYNC_API.module("pool"), ASYNC_API.wait)(condition(pool), seconds)


def is_usable(pool: Pool, connection: Connection) -> bool:
    """Return False if the connection was lost or is too old. Then it was closed."""
    if not pool._perished(connection):
        return True
    pool.active_contexts.discard(connection.cancel_context)
    return False


async def is_usable_async(pool: Pool, connection: Connection) -> bool:
    """As ``is_usable``, in a task."""
    if not await pool._perished(connection):
        return True
    pool.active_contexts.discard(connection.cancel_context)
    return False


def wait_queue_timeout(pool: Pool) -> float | None:
    """Return ``waitQueueTimeoutMS`` in seconds, or None."""
    limit: float | None = pool.opts.wait_queue_timeout
    return limit
