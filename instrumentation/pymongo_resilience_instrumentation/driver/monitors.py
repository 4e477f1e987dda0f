"""pymongo's monitors: the reply awaited, the wait for the next check, what they have learned."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from pymongo import common
from pymongo.errors import _OperationCancelled

from pymongo_resilience_instrumentation.addresses import Address

from .clients import existing_clients, server_at, topology_of
from .connections import shut_down

if TYPE_CHECKING:
    from .protocols import Connection, Monitor, Topology

T = TypeVar("T")

READ, CANCEL, REQUEST = "_check_with_socket", "cancel_check", "request_check"
"""A monitor's methods: the part of a check that needs its connection, what ends it, and what an
operation calls that waits for a server."""
CHANGE = "on_change"
"""A topology's method: called by a monitor with the description that its check has made."""
HANDLE_ERROR = "handle_error"
"""A topology's method: called with the error of an attempt, and how far its connection came."""
_READ, _PRIMARY = "_pymongo_resilience_read", "_pymongo_resilience_primary"
_HURRIES, _ASKED = "_pymongo_resilience_hurries", "_pymongo_resilience_asked"


class AwaitedReply:
    """The reply to hello that a monitor waits for."""

    __slots__ = ("connection", "process", "woken")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.process = os.getpid()
        self.woken = False


def was_cancelled(error: BaseException) -> bool:
    return isinstance(error, _OperationCancelled)


def cancelled() -> Exception:
    """Return the error by which pymongo ends a check that was cancelled."""
    return _OperationCancelled("operation cancelled")


def begin_reading(monitor: Monitor, connection: Connection) -> None:
    """Before a check's wait for its reply."""
    vars(monitor)[_READ] = AwaitedReply(connection)


def end_reading(monitor: Monitor) -> bool:
    """After a check's wait for its reply: return True if it was woken; that counts as cancelled."""
    awaited: AwaitedReply | None = vars(monitor).pop(_READ, None)
    return awaited is not None and awaited.woken


def wake(monitor: Monitor) -> None:
    """End the monitor's wait for a reply. It takes no locks: safe in a weak reference's
    callback."""
    awaited = vars(monitor).get(_READ)
    # A socket that was inherited by a fork is still the parent's.
    if awaited is not None and awaited.process == os.getpid():
        awaited.woken = True
        shut_down(awaited.connection)


def unknown_for(monitor: Monitor) -> tuple[Exception, float] | None:
    """The reply for which the client takes the server for unknown while the monitor waits for the
    server to report news, and since when, on the driver's clock; None otherwise. pymongo 4.20
    checks such a server when that wait ends, after up to ``heartbeatFrequencyMS``."""
    awaited = vars(monitor).get(_READ)
    if awaited is None or awaited.woken or not monitor._awaited:
        return None
    described = monitor._topology.description.server_descriptions()
    found = described.get(monitor._server_description.address)
    if found is None or found.is_server_type_known:
        return None
    return found.error, found.last_update_time


def check_intervals(monitor: Monitor, make: Callable[[], T]) -> T:
    """What limits the checks that requests cut short; made at the first one."""
    kept: T = vars(monitor).get(_HURRIES) or vars(monitor).setdefault(_HURRIES, make())
    return kept


def check_intervals_at(topology: Topology, address: Address) -> Any:
    """The same, of a server's monitor; None if there was no such check."""
    server = server_at(topology, address)
    return None if server is None else vars(server._monitor).get(_HURRIES)


def max_wait(topology: Topology) -> float:
    """Seconds for which a monitor waits for news, at most."""
    return float(topology._settings.heartbeat_frequency)


def look_every(seconds: float, topology: Topology, address: Address) -> None:
    """How often the server's monitor looks, between two checks, whether one was requested."""
    server = server_at(topology, address)
    if server is not None:
        server._monitor._executor._min_interval = seconds


def addresses(topology: Topology) -> set[Address]:
    """Of the servers that it checks."""
    return set(topology.description.server_descriptions())


def restore_check_frequency() -> None:
    """Have all monitors of the process do so again."""
    for client in existing_clients():
        topology = topology_of(client)
        for address in () if topology is None else topology.description.server_descriptions():
            look_every(common.MIN_HEARTBEAT_INTERVAL, topology, address)


def replaced_primary(topology: Topology) -> Address | None:
    """The last primary's address after a change, once, where another member is primary now."""
    described = topology.description.server_descriptions()
    before: Address | None = getattr(topology, _PRIMARY, None)
    now = next((at for at, each in described.items() if each.server_type_name == "RSPrimary"), None)
    if now is None or now == before:
        return None
    setattr(topology, _PRIMARY, now)
    return before


def is_known(topology: Topology, address: Address) -> bool:
    """Return True if the client knows what the server is: its last check or attempt reached it."""
    found = topology.description.server_descriptions().get(address)
    return found is not None and bool(found.is_server_type_known)


def last_reply_at(topology: Topology, address: Address) -> float:
    """When the server answered a check, on the driver's clock; -inf where the last one failed."""
    found = topology.description.server_descriptions().get(address)
    if found is None or not found.is_server_type_known:
        return float("-inf")
    return float(found.last_update_time)


def may_ask(topology: Topology, address: Address, every: float) -> bool:
    """Whether the last question to the server was ``every`` seconds ago or earlier; if so, one is
    counted now. Called by one task of a client."""
    server, now = server_at(topology, address), time.monotonic()
    if server is None or now - vars(server._monitor).get(_ASKED, -math.inf) < every:
        return False
    vars(server._monitor)[_ASKED] = now
    return True


def request_check(topology: Topology, address: Address) -> None:
    """Have the server checked anew, as after a network error, also where the check that runs waits
    for news. It takes no lock."""
    server = server_at(topology, address)
    if server is not None:
        server._monitor.cancel_check()
        server._monitor.request_check()
