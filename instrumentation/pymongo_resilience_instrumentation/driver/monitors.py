"""pymongo's monitors: the check in progress, the wait for the next one, what they have learned."""

from __future__ import annotations

import asyncio
import errno
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from operator import attrgetter
from queue import Empty, SimpleQueue
from types import ModuleType
from typing import Any

from pymongo import common
from pymongo.errors import _OperationCancelled

from pymongo_resilience_instrumentation.addresses import Address
from pymongo_resilience_instrumentation.driver.csot import now

from .clients import both
from .connections import shut_down

Interval = Callable[[float], float]
"""Seconds between two checks where one is asked for, given the driver's own."""
CHECK, READ, CANCEL, REQUEST = "_run", "_check_with_socket", "cancel_check", "request_check"
"""A monitor's methods: one check, the part that needs its connection, what ends it, and what has
the next one made soon."""
CHANGE = "_process_change"
"""A topology's method: called under its lock with every new description of a server."""
_PRIMARY = "_pymongo_resilience_primary"
OF_A_MONITOR = (CHECK, READ, CANCEL, REQUEST)
OF_AN_EXECUTOR = ("_event", "_interval", "_skip_sleep", "_stopped")
CONNECTORS = (
    ("pymongo.pool_shared", "_create_connection"),
    ("pymongo.pool_shared", "_async_create_connection"),
)
"""What opens a socket, before a TLS handshake."""
_CHECK, _WAKE_UP = "_pymongo_resilience_check", "_pymongo_resilience_wake_up"
_REFUSED = f"[Errno {errno.ECONNREFUSED}]"


class Check:
    """A check in progress. Written by its monitor alone."""

    __slots__ = ("connected", "connection", "process", "since", "woken")

    def __init__(self) -> None:
        self.since = now()
        self.connected = False
        """The server has accepted a connection."""
        self.connection: Any = None
        """The one on which the reply to hello is awaited, since then."""
        self.process = os.getpid()
        self.woken = False


_checking: ContextVar[Check | None] = ContextVar("pymongo_resilience_check", default=None)
"""The check that the caller's thread or task makes."""


def monitor_classes() -> Iterator[tuple[type, bool]]:
    """The classes that check servers, and whether they are of asyncio."""
    return ((module.Monitor, asynchronous) for module, asynchronous in both("monitor"))


def connectors() -> Iterator[tuple[ModuleType, str]]:
    """Where the driver looks up what opens a socket."""
    for module, name in CONNECTORS:
        yield importlib.import_module(module), name


def was_cancelled(error: BaseException) -> bool:
    return isinstance(error, _OperationCancelled)


@contextmanager
def checking(monitor: Any) -> Iterator[None]:
    """Around one check."""
    made = vars(monitor)[_CHECK] = Check()
    _checking.set(made)  # for good: a monitor has a context of its own, and may end in another one
    try:
        yield
    finally:
        vars(monitor).pop(_CHECK, None)


def note_connected() -> None:
    """The caller has opened a socket."""
    check = _checking.get()
    if check is not None:
        check.connected = True


@contextmanager
def reading(monitor: Any, connection: Any) -> Iterator[None]:
    """Around a check's wait for its reply; one that was woken counts as cancelled."""
    check = vars(monitor).setdefault(_CHECK, Check())
    check.since, check.connection = now(), connection
    try:
        yield
    except ReferenceError:  # the client was collected
        raise
    except Exception:
        if check.woken:
            raise _OperationCancelled("operation cancelled") from None
        raise
    finally:
        vars(monitor).pop(_CHECK, None)


def check_in_progress(topology: Any, address: Address) -> Check | None:
    server = topology.get_server_by_address(address)
    return None if server is None else vars(server._monitor).get(_CHECK)


def wake(monitor: Any) -> None:
    """End the monitor's wait, for a reply or between two checks. It takes no locks: safe in a weak
    reference's callback."""
    check = vars(monitor).get(_CHECK)
    # A socket that was inherited by a fork is still the parent's.
    if check is not None and check.connection is not None and check.process == os.getpid():
        check.woken = True
        shut_down(check.connection)
    end_sleep(monitor)


def end_sleep(monitor: Any) -> None:
    """Have a monitor that waits for its next check look again at when that is."""
    wake_up = vars(monitor).get(_WAKE_UP)
    if isinstance(wake_up, SimpleQueue):
        wake_up.put(None)
    elif wake_up is not None:
        try:
            wake_up.get_loop().call_soon_threadsafe(answer, wake_up)
        except RuntimeError:  # the loop is closed
            return


def answer(wake_up: asyncio.Future[None]) -> None:
    """End a wait in its own loop, if nothing else has."""
    if not wake_up.done():
        wake_up.set_result(None)


def last_check(monitor: Any) -> tuple[bool, bool]:
    """Whether the last check reached the server, and whether the address refused a connection."""
    found = monitor._server_description
    return found.is_server_type_known, _REFUSED in str(found.error)


def seen_as_known(monitor: Any) -> bool:
    """Whether the client knows the server now: a failed operation makes it unknown."""
    try:
        servers = monitor._topology.description.server_descriptions()
    except ReferenceError:  # the client was collected
        return True
    found = servers.get(monitor._server_description.address)
    return found is None or found.is_server_type_known


def pause(monitor: Any, interval: Interval) -> None:
    """Wait until the next check is due; the driver looks every half second if one is asked for."""
    executor, ended = monitor._executor, now()
    if executor._skip_sleep:
        return
    try:
        while True:
            wake_up = vars(monitor)[_WAKE_UP] = SimpleQueue[None]()
            left = _left(executor, ended, interval)
            if left <= 0:
                break
            with suppress(Empty):
                wake_up.get(timeout=left)
    finally:
        vars(monitor).pop(_WAKE_UP, None)
    if not executor._stopped:
        executor.skip_sleep()


async def pause_async(monitor: Any, interval: Interval) -> None:
    executor, ended = monitor._executor, now()
    if executor._skip_sleep:
        return
    try:
        while True:
            wake_up = vars(monitor)[_WAKE_UP] = asyncio.get_running_loop().create_future()
            left = _left(executor, ended, interval)
            if left <= 0:
                break
            await asyncio.wait([wake_up], timeout=left)
    finally:
        vars(monitor).pop(_WAKE_UP, None)
    if not executor._stopped:
        executor.skip_sleep()


def _left(executor: Any, ended: float, interval: Interval) -> float:
    """Seconds to sleep at most: what does not wake it is seen as soon as by the driver itself."""
    if executor._stopped:
        return 0.0
    due = ended + (
        interval(common.MIN_HEARTBEAT_INTERVAL) if executor._event else executor._interval
    )
    return min(due - now(), common.MIN_HEARTBEAT_INTERVAL)


topology_of = attrgetter("_topology")
"""A client's; None before it has begun to look for servers."""


def topologies() -> Iterator[tuple[type, bool]]:
    """The classes of topologies, and whether they are of asyncio."""
    return ((module.Topology, asynchronous) for module, asynchronous in both("topology"))


def replaced_primary(topology: Any) -> Address | None:
    """The last primary's address after a change, once, where another member is primary now."""
    described = topology.description.server_descriptions()
    before: Address | None = getattr(topology, _PRIMARY, None)
    now = next((at for at, each in described.items() if each.server_type_name == "RSPrimary"), None)
    if now is None or now == before:
        return None
    setattr(topology, _PRIMARY, now)
    return before


def pool_at(topology: Any, address: Address) -> Any:
    """None where the client does not know the server any more, or is closed."""
    server = topology.get_server_by_address(address)
    return None if server is None or server.pool.closed else server.pool


def last_reply_at(topology: Any, address: Address) -> float:
    """When the server answered a check, on the driver's clock; -inf where the last one failed."""
    server = topology.get_server_by_address(address)
    if server is None:
        return float("-inf")
    found = server._monitor._server_description
    return float(found.last_update_time) if found.is_server_type_known else float("-inf")


def request_check(topology: Any, address: Address) -> None:
    """Have the server checked anew."""
    server = topology.get_server_by_address(address)
    if server is not None:
        server._monitor.cancel_check()
        server._monitor.request_check()
