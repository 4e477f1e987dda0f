"""pymongo's monitors: their waits for replies and for the next check, and the results of checks."""

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
"""Methods of monitors: the part of a check that uses the connection, the one that ends it, and the
one that an operation calls while it waits for a server.
"""
CHANGE = "on_change"
"""A method of topologies, called by a monitor with the result of a check."""
HANDLE_ERROR = "handle_error"
"""A method of topologies, called with the error of an attempt and how far its connection got."""
_READ, _PRIMARY = "_pymongo_resilience_read", "_pymongo_resilience_primary"
_HURRIES, _ASKED = "_pymongo_resilience_hurries", "_pymongo_resilience_asked"


class AwaitedReply:
    """The reply to a hello that a monitor waits for."""

    __slots__ = ("connection", "process", "woken")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.process = os.getpid()
        self.woken = False


def was_cancelled(error: BaseException) -> bool:
    return isinstance(error, _OperationCancelled)


def cancelled() -> Exception:
    """Return the error with which pymongo ends a canceled check."""
    return _OperationCancelled("operation cancelled")


def begin_reading(monitor: Monitor, connection: Connection) -> None:
    """Called before a check waits for its reply."""
    vars(monitor)[_READ] = AwaitedReply(connection)


def end_reading(monitor: Monitor) -> bool:
    """Called after a check has waited. Return True if it was woken, which counts as canceled."""
    awaited: AwaitedReply | None = vars(monitor).pop(_READ, None)
    return awaited is not None and awaited.woken


def wake(monitor: Monitor) -> None:
    """End the monitor's wait for a reply.

    Takes no locks, so it is safe in a weak reference's callback.
    """
    awaited = vars(monitor).get(_READ)
    # A forked child must not shut down a socket that it inherited from its parent.
    if awaited is not None and awaited.process == os.getpid():
        # Set before the shutdown, so that the reading thread sees why its read failed.
        awaited.woken = True
        # If a check of a lost server is canceled, pymongo 4.20 starts the next one only after
        # ``heartbeatFrequencyMS``.
        monitor._executor.skip_sleep()
        shut_down(awaited.connection)


def unknown_for(monitor: Monitor) -> tuple[Exception, float] | None:
    """Return why and since when the client considers the server unknown while its monitor waits for
    news, or None.

    pymongo 4.20 checks such a server only when that wait ends, after up to
    ``heartbeatFrequencyMS``.
    """
    awaited = vars(monitor).get(_READ)
    if awaited is None or awaited.woken or not monitor._awaited:
        return None
    descriptions = monitor._topology.description.server_descriptions()
    description = descriptions.get(monitor._server_description.address)
    if description is None or description.is_server_type_known:
        return None
    return description.error, description.last_update_time


def check_intervals(monitor: Monitor, make: Callable[[], T]) -> T:
    """Return the object that limits checks at shorter intervals. ``make`` creates it at the first
    call.
    """
    kept: T = vars(monitor).get(_HURRIES) or vars(monitor).setdefault(_HURRIES, make())
    return kept


def check_intervals_at(topology: Topology, address: Address) -> Any:
    """Return the object for a server's monitor, or None if there was no such check."""
    server = server_at(topology, address)
    return None if server is None else vars(server._monitor).get(_HURRIES)


def max_wait(topology: Topology) -> float:
    """Return the maximum seconds for which a monitor waits for news."""
    return float(topology._settings.heartbeat_frequency)


def look_every(seconds: float, topology: Topology, address: Address) -> None:
    """Set how often the server's monitor checks whether an immediate check was requested."""
    server = server_at(topology, address)
    if server is not None:
        # Between two checks, pymongo's executor sleeps for ``_min_interval`` at a time, and looks
        # for a request after each sleep (pymongo 4.20).
        server._monitor._executor._min_interval = seconds


def check_within(seconds: float, topology: Topology, address: Address) -> None:
    """Set after how long the server's monitor starts a check that was not requested."""
    server = server_at(topology, address)
    if server is not None:
        server._monitor._executor.update_interval(seconds)


def addresses(topology: Topology) -> set[Address]:
    """Return the addresses of the servers that the topology checks."""
    return set(topology.description.server_descriptions())


def restore_check_frequency() -> None:
    """Reset all monitors of the process to pymongo's own intervals."""
    for client in existing_clients():
        topology = topology_of(client)
        for address in () if topology is None else topology.description.server_descriptions():
            look_every(common.MIN_HEARTBEAT_INTERVAL, topology, address)
            check_within(max_wait(topology), topology, address)


def replaced_primary(topology: Topology) -> Address | None:
    """Return the address of the previous primary, once, if another member is primary now."""
    descriptions = topology.description.server_descriptions()
    before: Address | None = getattr(topology, _PRIMARY, None)
    now = next(
        (
            at
            for at, description in descriptions.items()
            if description.server_type_name == "RSPrimary"
        ),
        None,
    )
    if now is None or now == before:
        return None
    # Remember the new primary, so that each change is reported once.
    setattr(topology, _PRIMARY, now)
    return before


def is_known(topology: Topology, address: Address) -> bool:
    """Return True if the client knows the type of the server, because its last check or attempt
    reached it.
    """
    found = topology.description.server_descriptions().get(address)
    return found is not None and bool(found.is_server_type_known)


def last_reply_at(topology: Topology, address: Address) -> float:
    """Return when the server last answered a check, on pymongo's clock; -inf if the last check
    failed.
    """
    found = topology.description.server_descriptions().get(address)
    if found is None or not found.is_server_type_known:
        return float("-inf")
    return float(found.last_update_time)


def may_ask(topology: Topology, address: Address, every: float) -> bool:
    """Return True if no check was started in the last ``every`` seconds, and record a new one.

    Called by only one task of each client.
    """
    server, now = server_at(topology, address), time.monotonic()
    # The time is stored on the monitor, so that it disappears with the server.
    if server is None or now - vars(server._monitor).get(_ASKED, -math.inf) < every:
        return False
    vars(server._monitor)[_ASKED] = now
    return True


def request_check(topology: Topology, address: Address) -> None:
    """Check the server again now, as after a network error, even while its monitor waits for news.
    Takes no lock.
    """
    server = server_at(topology, address)
    if server is not None:
        # End the wait for news first, or the request would only be noticed after it.
        server._monitor.cancel_check()
        server._monitor.request_check()


def request_next_check(topology: Topology, address: Address) -> None:
    """Check the server again soon after the current check succeeds or fails. Takes no lock."""
    server = server_at(topology, address)
    if server is not None:
        server._monitor.request_check()


class SignOfLife:
    """Finds out whether a server answers a check that was requested when the object was created.

    Creating the object neither waits nor opens a connection. It requests a check from the server's
    monitor and from its round-trip monitor. If the monitor is already waiting for news from the
    server, it continues to wait, but the round-trip monitor sends a hello within half a second.
    """

    __slots__ = ("_address", "_asked_at", "_round_trip", "_topology")

    def __init__(self, topology: Topology, address: Address) -> None:
        self._topology, self._address = topology, address
        self._asked_at = time.monotonic()
        self._round_trip = _round_trip(topology, address)
        server = server_at(topology, address)
        if server is not None:
            server._monitor.request_check()
            server._monitor._rtt_monitor.request_check()

    def is_seen(self) -> bool:
        """Return True if the server has answered a check since the object was created."""
        if last_reply_at(self._topology, self._address) >= self._asked_at:
            return True
        round_trip = _round_trip(self._topology, self._address)
        # Compare identities: a new sample may leave the value unchanged.
        return round_trip is not None and round_trip is not self._round_trip


def _round_trip(topology: Topology, address: Address) -> float | None:
    """Return the average round-trip time to a server, or None if it is unknown.

    Each new sample creates a new float object, even if the value stays the same.
    """
    server = server_at(topology, address)
    if server is None:
        return None
    average: float | None = server._monitor._rtt_monitor._moving_average.average
    return average
