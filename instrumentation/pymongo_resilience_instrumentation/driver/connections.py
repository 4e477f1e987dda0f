"""pymongo's connection pools, the sockets of connections, and the method that every command passes.

That method is ``send_cluster_time`` of a connection: it is called with each acknowledged command
and its client, after session and server API were added and before the command is encoded.
Unacknowledged bulk writes do not pass it, because they have no session.
"""

from __future__ import annotations

import errno
import functools
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pymongo.server_type import SERVER_TYPE

from .clients import classes, defining, each_api, server_at, topology_of
from .csot import RTT

if TYPE_CHECKING:
    from pymongo.hello import Hello

    from pymongo_resilience_instrumentation.addresses import Address
    from pymongo_resilience_instrumentation.selection.second_look import Look

    from .protocols import Client, Command, Connection, NetworkInterface, Pool, Topology

OUT_OF_TIME = "_raise_wait_queue_timeout"
"""A method of pools, called if an operation has waited too long for a connection."""
FAILED = "_raise_connection_failure"
"""A method of connections, called with the error that ended the connection before the socket is
closed.
"""
HELLO = "hello"
"""A method of connections: the handshake of a connection for operations, not for monitors."""
CAN_WAKE = sys.platform not in {"win32", "cygwin", "emscripten", "wasi"}
"""True if a read ends when another thread shuts down the socket."""
_DROP_TIME = 0x80
"""TCP_RXT_CONNDROPTIME of macOS, for which Python has no name."""
_STATE, _RETRANSMITS, _PROBES, _UNACKNOWLEDGED, _SINCE_DATA, _SINCE_ACKNOWLEDGED = (
    0,
    2,
    3,
    12,
    19,
    20,
)
_CLOSED, _INFO = 7, struct.Struct("8B24I")
"""Fields of Linux's TCP_INFO: the state; how often in a row the oldest segment was retransmitted;
how often a peer with a full buffer was probed without an answer; the number of unacknowledged
segments; milliseconds since the peer's last data, and since its last acknowledgment.
"""
_UNANSWERED = 2
"""Minimum number of either, in addition to the time, because a single packet may be lost."""
_REASON, _LOST = "_pymongo_resilience_reason", "_pymongo_resilience_lost"
_REFUSED, _LOOK = "_pymongo_resilience_refused", "_pymongo_resilience_look"


def watch_peer(interface: NetworkInterface, seconds: int, *, is_monitor_pool: bool) -> None:
    """Make the kernel close the connection ``seconds`` after the peer's last packet.

    While sent data is unacknowledged, this applies only to monitors; see ``peer_is_gone``.
    """
    # For a closed socket, asyncio raises OSError and uvloop ValueError.
    with suppress(OSError, ValueError):
        if interface.sock.family != socket.AF_UNIX:
            _watch(interface.sock, seconds, is_monitor_pool=is_monitor_pool)


def _watch(sock: socket.socket, seconds: int, *, is_monitor_pool: bool) -> None:
    # Two fifths of the time idle, then three probes one fifth apart, add up to ``seconds``.
    tcp, idle, interval = socket.IPPROTO_TCP, max(1, seconds * 2 // 5), max(1, seconds // 5)
    if sys.platform == "darwin":
        sock.setsockopt(tcp, socket.TCP_KEEPALIVE, idle)
        sock.setsockopt(tcp, socket.TCP_KEEPCNT, 3)
        sock.setsockopt(tcp, _DROP_TIME, seconds)
    else:
        sock.setsockopt(tcp, socket.TCP_KEEPIDLE, idle)
        sock.setsockopt(tcp, socket.TCP_KEEPCNT, 3)
        if is_monitor_pool:
            # Linux also counts the time in which a peer's buffer is full, although its kernel
            # answers each probe. With large writes, a server that is only slow would be lost, so
            # this is for monitors only.
            sock.setsockopt(tcp, socket.TCP_USER_TIMEOUT, seconds * 1000)
    sock.setsockopt(tcp, socket.TCP_KEEPINTVL, interval)


@functools.cache
def can_watch() -> bool:
    """Return True if Python and the kernel support these options. Tried on an unused socket."""
    try:
        with socket.socket() as unused:
            # Try it out: some operating systems lack the options, and some sandboxes forbid them.
            _watch(unused, 1, is_monitor_pool=True)
    except (AttributeError, OSError):
        return False
    return True


def peer_was_silent(connection: Connection, error: Exception, seconds: int) -> bool:
    """Return True if ``error`` ended the connection because nothing arrived from its peer.

    Call it before the socket is closed, because pymongo's read mistakes the kernel's error for its
    own timeout.
    """
    # The kernel itself has given up.
    if isinstance(error, OSError) and error.errno == errno.ETIMEDOUT:
        return True
    facts = _facts(connection)
    if facts is None:
        return False
    # If the monitor on the same path fails first, pymongo interrupts the connection before the
    # kernel does.
    unanswered = max(facts[_RETRANSMITS], facts[_PROBES]) >= _UNANSWERED
    silent = facts[_SINCE_ACKNOWLEDGED] >= seconds * 1000
    return silent and (facts[_STATE] == _CLOSED or unanswered)


def peer_is_gone(connection: Connection, seconds: int) -> bool:
    """Return True if sent data was not acknowledged for ``seconds``, although it was retransmitted.

    A peer that does not read still acknowledges probes, so it is not gone. Linux only.
    """
    facts = _facts(connection)
    if facts is None or facts[_SINCE_ACKNOWLEDGED] < seconds * 1000:
        return False
    # Data that was sent but not acknowledged, or probes of a full buffer that got no answer.
    sent_again = facts[_UNACKNOWLEDGED] > 0 and facts[_RETRANSMITS] >= _UNANSWERED
    return bool(sent_again or facts[_PROBES] > _UNANSWERED)


def ignore_transient_state(connection: Connection, hello: Hello[Any]) -> None:
    """Correct a connection whose server was neither primary nor secondary during the handshake."""
    sessions = hello.logical_session_timeout_minutes is not None
    if sessions and hello.server_type in {SERVER_TYPE.RSOther, SERVER_TYPE.RSGhost}:
        # A member in that state, for example while it steps down, is usable again soon. The
        # connection would still lack sessions then, and its pool would lack unacknowledged writes.
        connection.supports_sessions = True
        pool = connection.pool_ref()
        if pool is not None:
            connection.is_writable = bool(pool.is_writable)


def is_of(connection: Connection, pool: Pool) -> bool:
    """Return True if the connection belongs to the pool and is open."""
    return connection.pool_ref() is pool and not connection.closed


def is_silent_for(connection: Connection, seconds: float) -> bool:
    """Return True if no data arrived for ``seconds``, or if the operating system does not report
    it.
    """
    facts = _facts(connection)
    return facts is None or bool(facts[_SINCE_DATA] >= seconds * 1000)


def _facts(connection: Connection) -> tuple[int, ...] | None:
    try:
        found = connection.conn.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        return _INFO.unpack(found)
    except (OSError, ValueError, AttributeError, struct.error):
        # The socket is closed, is not a TCP socket, or this is not Linux.
        return None


def end(connection: Connection, reason: OSError) -> None:
    """Make the operation that waits on the connection fail with ``reason``."""
    # Store the reason first: the waiting thread looks for it as soon as its read fails.
    vars(connection)[_REASON] = reason
    # pymongo checks this between two reads; shutting down the socket ends the current one.
    connection.cancel_context.cancel()
    if CAN_WAKE:
        shut_down(connection)


def reason_of(connection: Connection) -> OSError | None:
    """Return why the connection was ended, and forget it."""
    found: OSError | None = vars(connection).pop(_REASON, None)
    return found


def count_lost(connection: Connection, reason: str) -> None:
    """Count a lost connection, unless its pool is a monitor's."""
    pool = connection.pool_ref()
    if pool is not None and not pool.is_sdam:
        counts = lost(pool)
        # Set a new dictionary, because other threads read the old one without a lock.
        setattr(pool, _LOST, counts | {reason: counts.get(reason, 0) + 1})


def lost(pool: Pool | None) -> dict[str, int]:
    """Return the number of a pool's lost connections by reason."""
    return dict(getattr(pool, _LOST, ()))


def shut_down(connection: Connection) -> None:
    """End a wait for a reply on the connection, as if the server had closed it.

    Takes no lock and closes no file descriptor, so it is safe in any thread and in a weak
    reference's callback.
    """
    inner = connection.conn.conn
    try:
        if isinstance(inner, tuple):
            # asyncio: the transport and its protocol.
            transport, protocol = inner
            # A transport may only be used in the thread of its event loop.
            protocol._closed.get_loop().call_soon_threadsafe(transport.abort)
        elif isinstance(inner, socket.socket):
            # Do not call the method of the TLS socket: the reader would continue without TLS.
            socket.socket.shutdown(inner, socket.SHUT_RDWR)
        else:
            # PyOpenSSL.
            inner.sock_shutdown(socket.SHUT_RDWR)
    except (OSError, RuntimeError):
        # The socket or its event loop is closed.
        return


def pool_at(topology: Topology | None, address: Address) -> Pool | None:
    """Return the pool of one server, or None."""
    server = server_at(topology, address)
    return None if server is None else server.pool


def count_login(pool: Pool, *, refused: bool) -> None:
    """Count a login of a connection of the pool, or reset the count of refused ones."""
    setattr(pool, _REFUSED, getattr(pool, _REFUSED, 0) + 1 if refused else 0)


def refused_logins(client: Client, address: Address) -> int:
    """Return how many consecutive logins a server has refused."""
    return getattr(pool_at(topology_of(client), address), _REFUSED, 0)


def keep_look(pool: Pool, look: Look) -> None:
    """Store what was found out about a pool's server; see ``selection/second_look.py``."""
    setattr(pool, _LOOK, look)


def last_look(pool: Pool) -> Look | None:
    look: Look | None = getattr(pool, _LOOK, None)
    return look


def tls_context(pool: Pool) -> Any:
    """Return the TLS context of a pool's connections, or None without TLS."""
    return pool.opts._ssl_context


def open_pools(client: Client) -> dict[Address, Pool]:
    """Return the pools of a client by server, if the client is not closed and was used in this
    process.
    """
    topology = getattr(client, "_topology", None)
    known = () if topology is None else topology.description.server_descriptions()
    pools = {at: pool for at in known if (pool := pool_at(topology, at)) is not None}
    # A pool inherited by a forked child counts the parent's connections until it is used.
    pid = os.getpid()
    return {at: pool for at, pool in pools.items() if not pool.closed and pool.pid == pid}


def counts(pool: Pool) -> tuple[int, int, int]:
    """Return the number of idle connections, of those in use or being created, and of operations
    that use or await one.
    """
    return len(pool.conns), len(pool.active_contexts), pool.operation_count


PASSED = "send_cluster_time"
LIMIT = "maxTimeMS"
LIMITED = "apply_timeout"
"""A method of connections that adds the time limit to a command."""
RECEIVE = "receive_message"
MAKE_CURSORS = frozenset({"aggregate", "bulkWrite", "find", "listCollections", "listIndexes"})
"""Commands whose maxTimeMS applies to the whole cursor: each getMore gets what is left of it."""


def receivers() -> Iterator[tuple[ModuleType, str]]:
    """Yield the functions that wait for a reply."""
    for module, asynchronous in each_api("pool"):
        yield module, "async_" * asynchronous + RECEIVE


socket_timeout_of = attrgetter("opts.socket_timeout")
"""A connection's socketTimeoutMS in seconds, or None."""


def keep_socket_timeout(connection: Connection) -> None:
    """Restore the connection's socketTimeoutMS if it is shorter. Called after pymongo has limited a
    command.
    """
    seconds = socket_timeout_of(connection)
    if seconds is not None:
        _shorten_socket_timeout(connection, seconds)


class SocketTimeoutError(TimeoutError):
    """``socketTimeoutMS`` expired before a reply arrived."""

    arrived: bool
    """False if the server's host has not acknowledged what was sent: the connection is dead, as
    when a firewall has forgotten it. True if that is not known.
    """


def socket_timed_out(connection: Connection) -> SocketTimeoutError:
    """Return the error that plain pymongo raises when socketTimeoutMS expires, with the same text.

    Under a deadline, pymongo would name the operation's timeout instead (``_get_timeout_details``,
    pymongo 4.20).
    """
    options = connection.opts
    timeouts = {
        "socketTimeoutMS": options.socket_timeout,
        "connectTimeoutMS": options.connect_timeout,
    }
    named = [f"{name}: {seconds * 1000}ms" for name, seconds in timeouts.items() if seconds]
    facts = _facts(connection)
    error = SocketTimeoutError(f"timed out (configured timeouts: {', '.join(named)})")
    error.arrived = facts is None or facts[_UNACKNOWLEDGED] == 0
    return error


def limit_attempt(connection: Connection, command: Command, seconds: float) -> bool:
    """Limit a command to ``seconds`` if its limit is longer. Called after pymongo has limited it.

    Returns:
        True if this is the limit that the server gets.
    """
    _shorten_socket_timeout(connection, seconds)
    # The limit would apply to all batches of the cursor.
    if next(iter(command)) in MAKE_CURSORS:
        return False
    # The reply needs half a round trip to arrive, and the request the other half (Client Side
    # Operations Timeout, "Command Execution"). 0 would mean no limit.
    server_limit_ms, application_limit = (
        max(1, int((seconds - RTT.get()) * 1000)),
        command.get(LIMIT),
    )
    if isinstance(application_limit, int | float) and 0 < application_limit <= server_limit_ms:
        return False
    command[LIMIT] = server_limit_ms
    return True


def _shorten_socket_timeout(connection: Connection, seconds: float) -> None:
    current = connection.conn.gettimeout
    # A method of the sync interface, a property of the async one.
    seconds_now = current() if callable(current) else current
    if seconds_now is None or seconds_now > seconds:
        connection.set_conn_timeout(seconds)


def connections_with(method: str) -> list[type]:
    """Return the classes of connections that define a method."""
    return defining(method, *classes("pool", "*Connection"))


def passing_command(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Return the command and its client from the method's arguments. The client is None for
    pymongo's own commands.
    """
    arguments = dict(zip(("command", "session", "client"), args, strict=False)) | kwargs
    return arguments["command"], arguments["client"]


def lift_limits(connection: Connection, command: Command | None) -> None:
    """Remove the limits from the command and from the connection's socket."""
    if command is not None:
        command.pop(LIMIT, None)
    connection.set_conn_timeout(None)
