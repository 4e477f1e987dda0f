"""Ends sessions of the library's where their own end was interrupted, or cannot be awaited."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pymongo_resilience_instrumentation.deferred import defer

if TYPE_CHECKING:
    import asyncio

_ending: set[asyncio.Task[Any]] = set()
"""A loop holds its tasks weakly."""


def end_unfinished(session: Any, loop: asyncio.AbstractEventLoop | None) -> None:
    """End the session if it has not ended; an open transaction is aborted.

    ``loop``: of the async API, where it ends later, for its coroutine may be closed already. Where
    the loop has ended by then, the server aborts the transaction after its time limit.
    """
    if session.has_ended:
        return
    if loop is None:
        session.end_session()
    else:
        defer(partial(_end_in, loop, session))


def _end_in(loop: asyncio.AbstractEventLoop, session: Any) -> None:
    def end() -> None:
        task = loop.create_task(session.end_session())
        _ending.add(task)
        task.add_done_callback(_ended)

    try:
        loop.call_soon_threadsafe(end)
    except RuntimeError:
        return


def _ended(task: asyncio.Task[Any]) -> None:
    _ending.discard(task)
    if not task.cancelled():
        task.exception()
