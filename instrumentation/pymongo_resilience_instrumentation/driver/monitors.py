"""pymongo's monitors: the check in progress, the wait for the next one, what they have learned."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from operator import attrgetter
from types import ModuleType
from typing import Any

from pymongo import common, pool_shared
from pymongo.errors import _OperationCancelled

from pymongo_resilience_instrumentation.addresses import Address
from pymongo_resilience_instrumentation.driver.csot import now

from .clients import both, existing_clients
from .connections import shut_down

CHECK, READ, CANCEL = "_run", "_check_with_socket", "cancel_check"
"""A monitor's methods: one check, the part that needs its connection, and what ends it."""
CHANGE = "on_change"
"""A topology's method: called by a monitor with the description that its check has made."""
CONNECTORS = "_create_connection", "_async_create_connection"
"""Functions that open a socket, before a TLS handshake."""
_CHECK, _PRIMARY = "_pymongo_resilience_check", "_pymongo_resilience_primary"


class CheckInProgress:
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


_checking: ContextVar[CheckInProgress | None] = ContextVar("pymongo_resilience_check", default=None)
"""The check that the caller's thread or task makes."""


def monitor_classes() -> Iterator[type]:
    """The classes that check servers."""
    return (module.Monitor for module, _ in both("monitor"))


def connectors() -> Iterator[tuple[ModuleType, str]]:
    """What opens a socket, where the driver looks it up."""
    return ((pool_shared, name) for name in CONNECTORS)


def was_cancelled(error: BaseException) -> bool:
    return isinstance(error, _OperationCancelled)


@contextmanager
def checking(monitor: Any) -> Iterator[None]:
    """Around one check."""
    made = vars(monitor)[_CHECK] = CheckInProgress()
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
    check = vars(monitor).setdefault(_CHECK, CheckInProgress())
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


def check_in_progress(topology: Any, address: Address) -> CheckInProgress | None:
    server = topology.get_server_by_address(address)
    return None if server is None else vars(server._monitor).get(_CHECK)


def wake(monitor: Any) -> None:
    """End the monitor's wait for a reply. It takes no locks: safe in a weak reference's
    callback."""
    check = vars(monitor).get(_CHECK)
    # A socket that was inherited by a fork is still the parent's.
    if check is not None and check.connection is not None and check.process == os.getpid():
        check.woken = True
        shut_down(check.connection)


def look_every(seconds: float, topology: Any, address: Address) -> None:
    """How often the server's monitor looks, between two checks, whether one was requested."""
    server = topology.get_server_by_address(address)
    if server is not None:
        server._monitor._executor._min_interval = seconds


def look_as_the_driver_does() -> None:
    """Have all monitors of the process do so again."""
    for client in existing_clients():
        topology = topology_of(client)
        for address in () if topology is None else topology.description.server_descriptions():
            look_every(common.MIN_HEARTBEAT_INTERVAL, topology, address)


topology_of = attrgetter("_topology")
"""A client's; None before it has begun to look for servers."""


def topologies() -> Iterator[type]:
    """The classes of topologies."""
    return (module.Topology for module, _ in both("topology"))


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
    found = topology.description.server_descriptions().get(address)
    if found is None or not found.is_server_type_known:
        return float("-inf")
    return float(found.last_update_time)


def request_check(topology: Any, address: Address) -> None:
    """Have the server checked anew."""
    server = topology.get_server_by_address(address)
    if server is not None:
        server._monitor.cancel_check()
        server._monitor.request_check()
