"""Attempts that have a connection at this moment: found where their threads and tasks stand.

So operations that are never interrupted record nothing for it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from .checks import frames_of_a_task, outwards

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator
    from types import FrameType

ATTEMPTS = ("_read", "_write")
"""The loop's methods that make one."""
CONNECTION, CONNECTING = "conn", "connect"
"""A local variable of theirs, and of the pool's method that makes it."""
CLEAR = "_reset"
CONTEXTS = "active_contexts"


class InFlight(NamedTuple):
    """Compared by identity."""

    loop: Any
    connection: Any


def in_threads(pool: Any) -> list[InFlight]:
    """On connections of the pool."""
    found: list[InFlight] = []
    for frame in sys._current_frames().values():
        found += _among(outwards(frame), pool)
    return found


def in_tasks(pool: Any) -> list[InFlight]:
    """As ``in_threads``, of the tasks of the caller's loop."""
    found: list[InFlight] = []
    for task in asyncio.all_tasks():
        found += _among(reversed(list(frames_of_a_task(task))), pool)
    return found


def _among(frames: Iterable[FrameType], pool: Any) -> Iterator[InFlight]:
    """``frames``: the innermost first."""
    connection = None
    for frame in frames:
        name = frame.f_code.co_name
        if name == CONNECTING and frame.f_locals.get("self") is pool:
            connection = frame.f_locals.get(CONNECTION)
        elif name in ATTEMPTS:
            variables = frame.f_locals
            own = variables.get(CONNECTION, connection)
            if own is not None and own.pool_ref() is pool and not own.closed:
                yield InFlight(variables.get("self"), own)
            connection = None


class _Chosen(set[Any]):
    """The contexts of a pool's connections in use, of which an interruption reaches some."""

    def __init__(self, contexts: Iterable[Any], chosen: Container[Any]) -> None:
        super().__init__(contexts)
        self.chosen: Container[Any] | None = chosen

    def __iter__(self) -> Iterator[Any]:
        chosen = self.chosen
        return iter([each for each in super().__iter__() if chosen is None or each in chosen])


def interrupt(pool: Any, connections: Iterable[Any], *, pause: bool) -> None:
    """As the driver interrupts all connections of a pool, events for listeners included.

    ``pause``: until its server answers a check, who waits for a connection gets an error.
    """
    chosen = {each.cancel_context for each in connections}
    with pool.lock:
        contexts = _Chosen(getattr(pool, CONTEXTS), chosen)
        setattr(pool, CONTEXTS, contexts)
    getattr(pool, CLEAR)(close=False, pause=pause, interrupt_connections=True)
    contexts.chosen = None


async def interrupt_async(pool: Any, connections: Iterable[Any], *, pause: bool) -> None:
    """As ``interrupt``."""
    chosen = {each.cancel_context for each in connections}
    async with pool.lock:
        contexts = _Chosen(getattr(pool, CONTEXTS), chosen)
        setattr(pool, CONTEXTS, contexts)
    await getattr(pool, CLEAR)(close=False, pause=pause, interrupt_connections=True)
    contexts.chosen = None
