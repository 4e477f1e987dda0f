"""What the check of a server that has no result yet is waiting for.

pymongo keeps no account of that, and it is asked where a selection has failed: so it is read off
the stack of the monitor that checks.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from pymongo_resilience_instrumentation.driver.csot import now

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from pymongo_resilience_instrumentation.addresses import Address

STARTED = {"_get_conn": "checkout_started_time", "_check_with_socket": "start"}
"""The method that connects and the one that waits for the answer to hello, and their variables that
say since when."""
CONNECTING = ("_create_connection", "_async_create_connection")
HANDSHAKING = ("_configured_socket_interface", "_configured_protocol_interface")


class Check(NamedTuple):
    """A check in progress. Immutable."""

    seconds: float
    connecting: bool
    """The server has not accepted the connection."""
    handshaking: bool
    """It has, and has not finished the TLS handshake."""


def check_in_progress(topology: Any, address: Address) -> Check | None:
    """None where none is, or nothing is waited for."""
    server = topology._servers.get(address)
    frames = [] if server is None else list(_frames(server._monitor._executor))
    names = {frame.f_code.co_name for frame in frames}
    for frame in frames:
        started = frame.f_locals.get(STARTED.get(frame.f_code.co_name, ""))
        if started is not None:
            connecting = bool(names.intersection(CONNECTING))
            handshaking = not connecting and bool(names.intersection(HANDSHAKING))
            return Check(now() - started, connecting, handshaking)
    return None


def topology_of(client: Any) -> Any:
    """None before the client has begun to look for servers."""
    return client._topology


def _frames(executor: Any) -> Iterator[FrameType]:
    """Of a monitor's thread or task."""
    task = getattr(executor, "_task", None)
    if task is not None:
        yield from frames_of_a_task(task)
        return
    thread = getattr(executor, "_thread", None)
    yield from outwards(None if thread is None else sys._current_frames().get(thread.ident))


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def frames_of_a_task(task: Any) -> Iterator[FrameType]:
    waits = task.get_coro()
    while waits is not None:
        frame = getattr(waits, "cr_frame", None) or getattr(waits, "ag_frame", None)
        if frame is None:
            return
        yield frame
        awaited = getattr(waits, "cr_await", None) or getattr(waits, "ag_await", None)
        if not (hasattr(awaited, "cr_frame") or hasattr(awaited, "ag_frame")):
            # A context manager that is a generator (pymongo 4.17) does not say what it awaits.
            awaited = getattr(frame.f_locals.get("self"), "gen", None)
        waits = awaited
